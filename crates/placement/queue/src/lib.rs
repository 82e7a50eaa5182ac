//! Flow control of one pool as a pure data structure: it holds requests, chooses the next, and
//! refuses.
//!
//! [`Queues`] holds requests that no worker can take yet. Priority bands are served strictly, the
//! highest first; inside a band a [`Fairness`] policy chooses among the flows, which are tenants or
//! other sharers; inside a flow an [`Ordering`] policy chooses the request. Requests, bytes and
//! tokens that wait are bounded per band and in total, and every request has a deadline. A refusal
//! says when to come back, from the rate at which the queue really drains.
//!
//! Nothing here reads a clock, waits or locks: `now` is the time since any start that the caller
//! keeps to, and never goes backwards. Start reading at [`Queues::push`] and [`Queues::pop`].

mod band;
mod bounds;
mod entry;
mod fairness;
mod flows;
mod heap;
mod invalid;
mod ordering;
mod outcome;
mod queues;
mod rate;
mod settings;
mod slots;
mod stats;
mod usage_limit;

pub use bounds::{Bounds, QueueUsage};
pub use entry::{BandPlace, FlowId, QueueEntry, QueueHead, QueueTicket, Verdict};
pub use fairness::{Fairness, LAS_OUTPUT_WEIGHT};
pub use invalid::{InvalidSetting, InvalidSettings};
pub use ordering::Ordering;
pub use outcome::{DispatchedRequest, EvictedRequest, Eviction, QueueRefusal, RejectedRequest};
pub use queues::Queues;
pub use rate::Drain;
pub use settings::{BandPolicy, BandSettings, CheckedSettings, HeadOfLine, QueueSettings};
pub use stats::{BandStats, OutcomeCounts, QueueStats};
pub use usage_limit::{Ceilings, UsageLimit};

use std::time::Duration;

/// Times inside, in nanoseconds: what a heap compares often should be small.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
