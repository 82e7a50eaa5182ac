//! Reports of a disk tier and what it counts on the way.

use crate::tier::{TierError, TierReport};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Receiver of a tier's reports.
pub(super) type ReportSink = Arc<dyn Fn(TierReport) + Send + Sync>;

/// Events of a disk tier since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Blocks found at the start.
    pub found: u64,
    /// Descriptors that were torn at the start.
    pub torn: u64,
    /// Segments whose table could not be read at the start.
    pub unreadable_segments: u64,
    /// Blocks read into the arena with the right checksum.
    pub read: u64,
    /// Blocks written, descriptors included.
    pub written: u64,
    /// Blocks whose bytes were wrong when they were read.
    pub corrupt: u64,
    /// Blocks evicted for newer ones.
    pub evicted: u64,
    /// Reads and writes of blocks that failed on the device.
    pub failed: u64,
    /// Writes for which there was no room.
    pub full: u64,
    /// Requests refused because too many waited.
    pub busy: u64,
}

/// The counters behind [`DiskCounts`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) found: AtomicU64,
    pub(super) torn: AtomicU64,
    pub(super) unreadable_segments: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    corrupt: AtomicU64,
    pub(super) evicted: AtomicU64,
    failed: AtomicU64,
    full: AtomicU64,
    busy: AtomicU64,
}

impl Counters {
    pub(super) fn counts(&self) -> DiskCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCounts {
            found: of(&self.found),
            torn: of(&self.torn),
            unreadable_segments: of(&self.unreadable_segments),
            read: of(&self.read),
            written: of(&self.written),
            corrupt: of(&self.corrupt),
            evicted: of(&self.evicted),
            failed: of(&self.failed),
            full: of(&self.full),
            busy: of(&self.busy),
        }
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// The way out for reports, which counts them.
#[derive(Clone)]
pub(super) struct Outlet {
    pub(super) sink: ReportSink,
    pub(super) counters: Arc<Counters>,
}

impl Outlet {
    /// Counts a report and passes it on.
    pub(super) fn send(&self, report: TierReport) {
        let counters = &self.counters;
        let of_error = |error: &TierError| match error {
            TierError::Corrupt => Some(&counters.corrupt),
            TierError::Busy => Some(&counters.busy),
            TierError::Full => Some(&counters.full),
            TierError::Failed => Some(&counters.failed),
            TierError::Missing | TierError::Cancelled => None,
        };
        match &report {
            TierReport::Read { result: Ok(_), .. } => add(&counters.read, 1),
            TierReport::Written { result: Ok(()), .. } => add(&counters.written, 1),
            TierReport::Read { result: Err(error), .. }
            | TierReport::Written { result: Err(error), .. } => {
                of_error(error).into_iter().for_each(|counter| add(counter, 1));
            }
            TierReport::Found(blocks) => add(&counters.found, blocks.len() as u64),
            TierReport::Located { .. } | TierReport::Gone(_) => {}
        }
        (self.sink)(report);
    }
}
