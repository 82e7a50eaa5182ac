//! Storage below host memory, and what the store hears of it.

use crate::cost::{ReadCost, SourceId};
use crate::{Block, Checksum, SlotId};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;

/// Storage below host memory: a disk, an object store, another agent.
///
/// Calls return at once; work goes on elsewhere and ends in [`TierReport`]s. A tier bounds what it
/// has queued, and refuses the rest by reporting that it failed.
pub trait Tier: Send + Sync {
    /// The medium by which events and metrics name it.
    fn medium(&self) -> Medium;

    /// Reads a block into a slot, which the caller keeps for it until the report.
    fn read(&self, read: TierRead);

    /// Writes a block from a slot, which nobody changes until the report.
    fn write(&self, write: TierWrite);

    /// Nobody wants this read any more. A read that has not begun is dropped and reported as
    /// [`TierError::Cancelled`]; one that has begun, or was reported, is left alone. A tier that queues
    /// nothing has nothing to drop.
    fn cancel(&self, _name: BlockName, _slot: SlotId) {}

    /// Forgets blocks, also such as are being written, and such as are not there.
    fn forget(&self, names: &[BlockName]);

    /// Forgets all blocks.
    fn clear(&self);
}

/// A block to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRead {
    /// The block.
    pub name: BlockName,
    /// Slot that the block is read into.
    pub slot: SlotId,
    /// Whether a request waits for it.
    pub urgency: Urgency,
}

/// A block to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierWrite {
    /// The block.
    pub block: Block,
    /// Slot that has its KV.
    pub slot: SlotId,
    /// Checksum of the KV.
    pub checksum: Checksum,
}

/// Priority of work where bandwidth is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A request waits for it.
    Demand,
    /// No request waits for it yet.
    Prefetch,
    /// Nobody waits.
    Offload,
}

/// Report of a tier: ended work, found and lost blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierReport {
    /// A read has ended. The tier has verified the checksum of what it read.
    Read {
        /// The block.
        name: BlockName,
        /// Its slot.
        slot: SlotId,
        /// The checksum of the KV that is in the slot now. After an error the slot holds nothing.
        result: Result<Checksum, TierError>,
    },
    /// A write has ended.
    Written {
        /// The block.
        name: BlockName,
        /// Its slot, which the tier needs no more.
        slot: SlotId,
        /// Whether the tier holds the block now.
        result: Result<(), TierError>,
    },
    /// Blocks that the tier found at its start, parents first.
    Found(Vec<Block>),
    /// Blocks that the tier reads from one of several sources, such as one of several agents.
    Located {
        /// The blocks, as far as the tier holds them.
        names: Vec<BlockName>,
        /// The source.
        source: SourceId,
        /// Measured cost of reads from it; none where nothing is known of it.
        cost: Option<ReadCost>,
    },
    /// Blocks that the tier has evicted or lost.
    Gone(Vec<BlockName>),
}

/// A change of what a medium holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierEvent {
    /// The medium holds the block.
    Stored {
        /// The block.
        block: Block,
        /// The medium.
        medium: Medium,
    },
    /// The medium holds the block no more.
    Removed {
        /// The block.
        block: Block,
        /// The medium.
        medium: Medium,
    },
    /// No medium holds any block any more.
    Cleared,
}

/// Why a tier did not do as told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// The tier does not hold the block.
    #[error("the block is not there")]
    Missing,
    /// The tier's bytes under the name are not the block.
    #[error("the block is corrupt")]
    Corrupt,
    /// The read was dropped before it began: nobody wanted it any more.
    #[error("nobody wants the block any more")]
    Cancelled,
    /// Too much is queued.
    #[error("too much is queued")]
    Busy,
    /// The tier has no room, for example on a full disk.
    #[error("there is no room")]
    Full,
    /// The device, the store or the other agent failed.
    #[error("the storage failed")]
    Failed,
}
