//! Counts for metrics.

use crate::bounds::QueueUsage;
use crate::outcome::{Eviction, QueueRefusal};
use crate::rate::Drain;
use std::time::Duration;

/// Outcomes of requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Taken in to wait.
    pub queued: u64,
    /// Placed after waiting.
    pub dispatched: u64,
    /// Given up by the caller while they waited, or because they can never be placed.
    pub cancelled: u64,
    refused: [u64; QueueRefusal::ALL.len()],
    evicted: [u64; Eviction::ALL.len()],
}

impl OutcomeCounts {
    /// Refused for this reason.
    pub fn refused(&self, reason: QueueRefusal) -> u64 {
        self.refused[reason as usize]
    }

    /// Sent away for this reason.
    pub fn evicted(&self, reason: Eviction) -> u64 {
        self.evicted[reason as usize]
    }

    pub(crate) fn refuse(&mut self, reason: QueueRefusal) {
        self.refused[reason as usize] += 1;
    }

    pub(crate) fn evict(&mut self, reason: Eviction) {
        self.evicted[reason as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.queued += other.queued;
        self.dispatched += other.dispatched;
        self.cancelled += other.cancelled;
        let refused = self.refused.iter_mut().zip(other.refused);
        let evicted = self.evicted.iter_mut().zip(other.evicted);
        refused.chain(evicted).for_each(|(sum, count)| *sum += count);
    }
}

/// One band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandStats {
    /// Its priority.
    pub priority: i32,
    /// Usage of the band.
    pub waiting: QueueUsage,
    /// Wait of the oldest request.
    pub oldest_wait: Duration,
    /// Flows that have something waiting.
    pub flows_waiting: usize,
    /// Flows that are known, with those.
    pub flows: usize,
    /// Outcomes of its requests.
    pub counts: OutcomeCounts,
}

/// The whole queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueStats {
    /// Bands, the highest first.
    pub bands: Vec<BandStats>,
    /// Counts of bands that were forgotten.
    pub forgotten: OutcomeCounts,
    /// Usage of all bands.
    pub waiting: QueueUsage,
    /// Drain rate; `None` until enough has drained.
    pub drain: Option<Drain>,
}
