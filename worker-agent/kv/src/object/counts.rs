//! Counters of the tier, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the tier since it opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Blocks that were read and proved right.
    pub blocks_read: u64,
    /// Requests for blocks, of one or several each.
    pub reads: u64,
    /// Requests that were sent a second time, because the answer was late.
    pub reads_hedged: u64,
    /// Blocks that were not what they should be: damaged, or put there by others.
    pub blocks_corrupt: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Extents written.
    pub extents_written: u64,
    /// Bytes of those extents.
    pub bytes_written: u64,
    /// Requests that the bucket did not answer in time or refused.
    pub outages: u64,
    /// Extents deleted to keep a directory within its capacity.
    pub extents_deleted: u64,
}

/// The counters while they grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) blocks_read: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) reads_hedged: AtomicU64,
    pub(crate) blocks_corrupt: AtomicU64,
    pub(crate) blocks_written: AtomicU64,
    pub(crate) extents_written: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) outages: AtomicU64,
    pub(crate) extents_deleted: AtomicU64,
}

impl Counters {
    /// Counts.
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Relaxed);
    }

    /// The counts now.
    pub(crate) fn counts(&self) -> ObjectCounts {
        ObjectCounts {
            blocks_read: self.blocks_read.load(Relaxed),
            reads: self.reads.load(Relaxed),
            reads_hedged: self.reads_hedged.load(Relaxed),
            blocks_corrupt: self.blocks_corrupt.load(Relaxed),
            blocks_written: self.blocks_written.load(Relaxed),
            extents_written: self.extents_written.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            outages: self.outages.load(Relaxed),
            extents_deleted: self.extents_deleted.load(Relaxed),
        }
    }
}
