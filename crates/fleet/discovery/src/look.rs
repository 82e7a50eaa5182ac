//! Looks at files: their pace, and how a changed file is told from an unchanged one.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// Looks at a regular pace, and later where one took long.
pub(crate) fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Tells whether a file is the one that was read before.
pub(crate) type FileStamp = (u64, u64, i64, i64);

/// The stamp of a file.
pub(crate) fn stamp(metadata: &std::fs::Metadata) -> FileStamp {
    (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec())
}
