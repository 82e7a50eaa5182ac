//! Counters of the store's decisions. They only grow. What engines and tiers did is counted where it
//! is known whether it was good: by [`KvMetrics`](crate::metrics::KvMetrics).

/// Counters of a [`super::BlockStore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Waits that ended before all blocks were there, whether a read failed or took too long.
    pub waits_cut: u64,
    /// Slots that owners wanted and did not get.
    pub not_granted: u64,
    /// Blocks evicted from host memory.
    pub evictions: u64,
    /// Evicted blocks that no tier held.
    pub evictions_for_good: u64,
    /// Reports of work that the tier was not given.
    pub odd_reports: u64,
}

/// Counters of a tier below host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Reads begun because a request asked for the block.
    pub demanded: u64,
    /// Reads begun before a request asked for the block.
    pub prefetched: u64,
    /// Reads that were dropped before they began: nobody wanted the block any more.
    pub dropped: u64,
    /// Blocks that the tier holds and that were not read because computing them is faster.
    pub refused_by_cost: u64,
    /// Blocks that the tier holds and that were not read because it fails or has too many reads.
    pub refused_by_load: u64,
    /// Blocks that waited to be written and were given up for newer ones.
    pub not_written: u64,
    /// Blocks that the tier evicted or lost.
    pub gone: u64,
    /// Times that the tier was left alone because it kept failing.
    pub breaks: u64,
}
