//! Values that go into the store and come out of it.

use crate::SlotId;
use crate::tier::{TierEvent, TierRead, TierWrite, Urgency};
use stator_protos::name::BlockName;
use std::time::Duration;

/// An engine that uses the store: a connection, or the built-in engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u64);

/// A request of an owner, which chose the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Index of a tier among those of [`super::StoreSettings::tiers`], nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierId(pub u8);

impl From<TierId> for usize {
    fn from(tier: TierId) -> Self {
        tier.0.into()
    }
}

impl TierId {
    /// The bit of the tier in a set of tiers.
    pub(super) fn bit(self) -> u8 {
        1 << self.0
    }
}

/// Blocks of a prompt that the store has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Slots of the leading blocks that are in host memory, pinned until the request ends.
    pub ready: Vec<SlotId>,
    /// Blocks behind those that are on their way: [`Action::Ready`] tells when they are there.
    pub pending: usize,
}

/// Bounds of what is done for another agent that asks for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanTerms {
    /// Longest time until the blocks are there. The store's own limit holds too.
    pub wait: Duration,
    /// Blocks that are read from disk for it, at most.
    pub reads_max: usize,
    /// Whether a request of the other agent waits for the blocks.
    pub urgency: Urgency,
}

/// Reads under way for a request whose engine asks later: each by its slot and its number there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AheadReads(pub(super) Vec<(SlotId, u64)>);

/// Outcome of filling a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The block is visible to all owners now.
    Registered,
    /// The block was there already. The slot stays granted, for another block.
    Duplicate,
    /// The owner filled a slot that it does not hold.
    NotGranted,
    /// The block's tenant has as many slots as it may have, and all are in use. The slot stays
    /// granted, for another block.
    OverQuota,
}

/// Outcome of keeping blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepOutcome {
    /// Blocks that are in host memory, and stay there.
    pub here: usize,
    /// Blocks that are kept as soon as they come: they are in a tier below or on their way.
    pub coming: usize,
    /// Blocks beyond those that may be kept.
    pub refused: usize,
}

/// Outcome of forgetting blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetOutcome {
    /// Blocks that left host memory.
    pub host: usize,
    /// Copies in tiers below that are forgotten.
    pub below: usize,
}

/// Work for the caller, and news for owners and routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read a block from a tier. The slot is the tier's until it reports.
    Read {
        /// The tier.
        tier: TierId,
        /// The block and its slot.
        read: TierRead,
    },
    /// Nobody wants a read any more: the tier drops it if it has not begun. The slot is still the tier's
    /// until it reports.
    Cancel {
        /// The tier.
        tier: TierId,
        /// The block.
        name: BlockName,
        /// Its slot.
        slot: SlotId,
    },
    /// Write a block to a tier. The slot stays unchanged until the tier reports.
    Write {
        /// The tier.
        tier: TierId,
        /// The block and its slot.
        write: TierWrite,
    },
    /// More leading blocks of a request are there. The ready prefix never shrinks.
    Ready {
        /// Owner of the request.
        owner: OwnerId,
        /// The request.
        request: RequestId,
        /// Slots that follow those already reported, pinned until the request ends.
        slots: Vec<SlotId>,
        /// Blocks still on their way. After zero no more will come.
        pending: usize,
    },
    /// A medium holds a block now, or no more; or all tiers are to forget theirs.
    Event(TierEvent),
    /// A tier is to forget these blocks, which the store takes to be gone already.
    Forget {
        /// The tier.
        tier: TierId,
        /// The blocks, also such as the tier does not hold.
        names: Box<[BlockName]>,
    },
    /// A tier is to forget all blocks, which the store takes to be gone already.
    Clear {
        /// The tier.
        tier: TierId,
    },
}
