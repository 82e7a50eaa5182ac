//! Counters of a store, for metrics. They only grow, except for those called gauges.

use crate::tier::TierError;

/// Counters of a [`super::BlockStore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Blocks that requests asked for.
    pub asked: u64,
    /// Blocks that were ready in host memory when they were asked for.
    pub hits: u64,
    /// Blocks that became ready while a request waited for them.
    pub late_hits: u64,
    /// Waits that ended before all blocks were there, whether a read failed or took too long.
    pub waits_cut: u64,
    /// Blocks that owners filled and that are visible now.
    pub filled: u64,
    /// Blocks that owners filled and that were there already.
    pub duplicates: u64,
    /// Slots that owners wanted and did not get.
    pub not_granted: u64,
    /// Blocks evicted from host memory.
    pub evictions: u64,
    /// Evicted blocks that no tier held.
    pub evictions_for_good: u64,
    /// Reports of work that the tier was not given.
    pub odd_reports: u64,
    /// Gauge: slots without content.
    pub free_slots: usize,
    /// Gauge: slots that owners hold to fill, also those in quarantine.
    pub granted_slots: usize,
    /// Counters of each tier, nearest first.
    pub tiers: Vec<TierStats>,
}

/// Counters of a tier below host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Reads begun because a request asked for the block.
    pub demanded: u64,
    /// Reads begun before a request asked for the block.
    pub prefetched: u64,
    /// Blocks that the tier holds and that were not read because computing them is faster.
    pub refused_by_cost: u64,
    /// Blocks that the tier holds and that were not read because it fails or has too many reads.
    pub refused_by_load: u64,
    /// Reads that gave a block.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Reads that gave none, by their error.
    pub read_errors: ErrorCounts,
    /// Blocks written.
    pub writes: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Writes that failed, by their error.
    pub write_errors: ErrorCounts,
    /// Blocks that waited to be written and were given up for newer ones.
    pub not_written: u64,
    /// Blocks that the tier evicted or lost.
    pub gone: u64,
    /// Times that the tier was left alone because it kept failing.
    pub breaks: u64,
    /// Gauge: blocks that the tier holds.
    pub held: usize,
    /// Gauge: reads in flight.
    pub reads_in_flight: usize,
    /// Gauge: writes in flight.
    pub writes_in_flight: usize,
}

/// A count for each [`TierError`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// [`TierError::Missing`].
    pub missing: u64,
    /// [`TierError::Corrupt`].
    pub corrupt: u64,
    /// [`TierError::Busy`].
    pub busy: u64,
    /// [`TierError::Full`].
    pub full: u64,
    /// [`TierError::Failed`].
    pub failed: u64,
}

impl ErrorCounts {
    pub(super) fn count(&mut self, error: TierError) {
        *match error {
            TierError::Missing => &mut self.missing,
            TierError::Corrupt => &mut self.corrupt,
            TierError::Busy => &mut self.busy,
            TierError::Full => &mut self.full,
            TierError::Failed => &mut self.failed,
        } += 1;
    }
}
