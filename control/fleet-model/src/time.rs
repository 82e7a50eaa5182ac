//! Virtual time: whole picoseconds, so that sums do not depend on their order.

use std::time::Duration;

/// A moment since the start, or a span. The largest is about 213 days.
pub type Ps = u64;

/// One millisecond.
pub const MS: Ps = 1_000_000_000;
/// One second.
pub const SECOND: Ps = 1_000 * MS;

/// The nearest span to a number of seconds, which is not negative.
pub fn from_seconds(seconds: f64) -> Ps {
    (seconds * SECOND as f64).round() as Ps
}

/// A span in milliseconds.
pub fn ms(span: Ps) -> f64 {
    span as f64 / MS as f64
}

/// A span in seconds.
pub fn seconds(span: Ps) -> f64 {
    span as f64 / SECOND as f64
}

/// A moment as placement counts it.
pub(crate) fn duration(span: Ps) -> Duration {
    Duration::from_nanos(span / 1_000)
}
