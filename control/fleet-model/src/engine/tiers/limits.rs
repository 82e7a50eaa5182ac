//! Capacities and times of the tiers below an engine's device.

use crate::time::Ps;
use stator_kv::policy::PolicyName;
use stator_kv::store::TierAdmission;

/// Capacities and times of the tiers below a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Blocks in host memory; 0 for no tiers at all.
    pub host_blocks: u32,
    /// Copying one block from host memory to the device.
    pub onboard_block: Ps,
    /// Eviction policy of host memory; `None` leaves the choice to the store.
    pub host_policy: Option<PolicyName>,
    /// Whether host memory takes a block at its second use only, as SGLang's selective write-through.
    pub is_selective: bool,
    /// The disk, if there is one.
    pub disk: Option<DiskLimits>,
    /// The object store, if there is one. All workers of a fleet share it.
    pub objects: Option<ObjectLimits>,
    /// Reading from other workers, if workers lend.
    pub peers: Option<PeerLimits>,
}

/// Capacity and times of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLimits {
    /// Blocks that it holds; at least 1.
    pub blocks: u32,
    /// Before the first byte of a read or write.
    pub latency: Ps,
    /// Reading one block; reads follow one another.
    pub read_block: Ps,
    /// Writing one block; writes follow one another, beside the reads.
    pub write_block: Ps,
    /// Blocks that are written.
    pub admission: TierAdmission,
}

/// Times of an object store of unlimited size, as one worker has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectLimits {
    /// Before the first byte of a read, and to the end of a write.
    pub latency: Ps,
    /// Reading one block; the reads of a worker follow one another.
    pub read_block: Ps,
    /// Writing one block; the writes of a worker follow one another, beside its reads.
    pub write_block: Ps,
    /// From the end of a write until all workers know of the block.
    pub known_after: Ps,
    /// Blocks that are written.
    pub admission: TierAdmission,
}

/// Times of reads from other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Before the first byte.
    pub latency: Ps,
    /// Reading one block; the reads of a worker follow one another.
    pub block: Ps,
}

impl TierLimits {
    /// No tiers.
    pub const NONE: Self = Self {
        host_blocks: 0,
        onboard_block: 0,
        host_policy: None,
        is_selective: false,
        disk: None,
        objects: None,
        peers: None,
    };
}
