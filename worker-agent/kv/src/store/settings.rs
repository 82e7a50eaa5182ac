//! Limits of a store and of the tiers below it.

use crate::policy::PolicyName;
use stator_pins::PinLimits;
use stator_protos::kv_event::Medium;
use std::time::Duration;

/// Settings of a [`super::BlockStore`].
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Slots of the host arena.
    pub slots: u32,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Tiers below host memory, nearest first; at most eight.
    pub tiers: Vec<TierSettings>,
    /// Policy by which blocks are evicted from host memory. Default: `None`, the one that has the most
    /// hits on a sample of the sequences.
    pub policy: Option<PolicyName>,
    /// Slots that one owner may hold to fill. Default: a quarter of all, at least one.
    pub granted_max: usize,
    /// Requests of one owner that may have pins at once; further ones find nothing. Default: 65,536.
    pub requests_max: usize,
    /// Longest time for which a request waits for blocks on their way. Default: 2 s.
    pub wait_max: Duration,
    /// Slots that the blocks of one tenant may have. Default: no quota.
    pub tenant_slots_max: Option<usize>,
    /// Limits of what clients may pin in host memory. Default: nothing.
    pub pins: PinLimits,
}

impl StoreSettings {
    /// Default settings for an arena of `slots` blocks and for these tiers.
    pub fn new(slots: u32, block_bytes: usize, tiers: Vec<TierSettings>) -> Self {
        Self {
            slots,
            block_bytes,
            tiers,
            policy: None,
            granted_max: (slots as usize / 4).max(1),
            requests_max: 65_536,
            wait_max: Duration::from_secs(2),
            tenant_slots_max: None,
            pins: PinLimits::NONE,
        }
    }
}

/// Settings of a tier below host memory.
#[derive(Clone, Debug)]
pub struct TierSettings {
    /// The medium, for events and metrics.
    pub medium: Medium,
    /// Whether events tell what the tier holds. Default: yes. What other agents hold is not this
    /// agent's to tell.
    pub is_announced: bool,
    /// Blocks that are written to the tier. Default: all.
    pub admission: TierAdmission,
    /// Reads in flight; further blocks are misses. Default: 1,024.
    pub reads_max: usize,
    /// Writes in flight; further blocks wait. A quarter of the slots at most. Default: 64.
    pub writes_max: usize,
    /// Bytes that may be written in a second, to spare the device. Default: no limit.
    pub write_bytes_per_s: Option<u64>,
    /// Blocks that wait to be written; the oldest is given up for a newer one. Default: 4,096.
    pub backlog_max: usize,
}

impl TierSettings {
    /// Default settings for a tier on this medium.
    pub fn new(medium: Medium) -> Self {
        Self {
            medium,
            is_announced: true,
            admission: TierAdmission::Through,
            reads_max: 1024,
            writes_max: 64,
            write_bytes_per_s: None,
            backlog_max: 4096,
        }
    }
}

/// Blocks that are worth a write to a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierAdmission {
    /// Every block, as soon as it is in host memory.
    Through,
    /// A block that is used again after it was computed, or that is computed again.
    SecondTouch,
    /// [`TierAdmission::Through`] or [`TierAdmission::SecondTouch`]: the latter where the writes that it
    /// spares would bring too few hits, on a sample of the sequences.
    Measured {
        /// Blocks that the tier has room for.
        blocks: usize,
    },
    /// Nothing: the tier is only read.
    Never,
}
