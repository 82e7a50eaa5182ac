//! The state of a store, as operators and metrics see it.

use super::stats::{StoreStats, TierStats};
use crate::policy::PolicyName;
use stator_protos::kv_event::Medium;
use std::time::Duration;

/// State of a [`super::BlockStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// Host memory.
    pub host: HostStatus,
    /// The tiers below, nearest first.
    pub tiers: Vec<TierStatus>,
    /// Counters of decisions.
    pub stats: StoreStats,
}

/// State of host memory, in slots: one holds one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostStatus {
    /// Slots of the arena.
    pub slots: usize,
    /// Slots that may be in use.
    pub limit: usize,
    /// Slots in use.
    pub used: usize,
    /// Slots that engines hold to fill, also those in quarantine.
    pub granted: usize,
    /// Slots that requests use, operators keep or clients have pinned.
    pub pinned: usize,
    /// Blocks that operators keep, also those that are not there yet.
    pub kept: usize,
    /// Blocks that clients have pinned, also those that are not there yet.
    pub client_pins: usize,
    /// The policy by which blocks are evicted at the moment.
    pub policy: PolicyName,
}

/// State of a tier below host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// The medium.
    pub medium: Medium,
    /// Blocks that the tier holds.
    pub held: usize,
    /// Reads in flight.
    pub reads_in_flight: usize,
    /// Writes in flight.
    pub writes_in_flight: usize,
    /// Blocks that wait to be written.
    pub backlog: usize,
    /// Whether an operator has switched the tier off.
    pub is_off: bool,
    /// Time for which the tier is still left alone because it kept failing; zero if it is not.
    pub left_alone: Duration,
    /// Time for which nothing is written because the tier had no room, or too much to do.
    pub writes_paused: Duration,
    /// Whether reads are in flight and none has ended for two seconds.
    pub is_stalled: bool,
    /// Measured time until the first of several reads has ended, less its own time; zero if no
    /// read was measured.
    pub read_latency: Duration,
    /// Measured time for each further block.
    pub read_block: Duration,
    /// Bytes that may be written in a second.
    pub write_bytes_per_s: Option<u64>,
    /// Counters of decisions.
    pub stats: TierStats,
}
