//! Counters of followed engines.

use super::Tally;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of all engines that one process follows. Cheap to clone; clones share their counts.
#[derive(Clone, Debug, Default)]
pub struct FollowMetrics {
    /// Event batches of engines applied.
    pub batches: Counter,
    /// Messages of engines that could not be read.
    pub messages_malformed: Counter,
    /// Events of an unknown kind or medium, or of a cache group that is not indexed.
    pub events_skipped: Counter,
    /// Fields of events that no known engine version has.
    pub fields_skipped: Counter,
    /// Blocks of engines that could not be translated.
    pub blocks_skipped: Counter,
    /// Events whose block size does not fit ours.
    pub block_size_mismatches: Counter,
    /// Lives that began: first connections, restarts, lost connections.
    pub lives: Counter,
    /// Replays asked of engines.
    pub replays: Counter,
    /// Replays that engines did not answer.
    pub replays_failed: Counter,
    tally: Arc<Mutex<Tally>>,
}

impl FollowMetrics {
    /// Outcomes of engines' events, one by one and by reason.
    pub fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }

    /// Registers the counters; the registry sets their prefix.
    pub fn register(&self, registry: &mut Registry) {
        let counters = [
            ("engine_batches", "KV event batches of engines applied", &self.batches),
            ("messages_malformed", "Engine messages not read", &self.messages_malformed),
            ("events_skipped", "KV events that mean nothing to the index", &self.events_skipped),
            ("fields_skipped", "Fields of KV events that are not known", &self.fields_skipped),
            ("blocks_skipped", "Engine blocks not translated", &self.blocks_skipped),
            ("block_size_mismatches", "KV events of unfit blocks", &self.block_size_mismatches),
            ("engine_lives", "Lives of engines begun", &self.lives),
            ("replays", "Replays asked of engines", &self.replays),
            ("replays_failed", "Replays that engines did not give", &self.replays_failed),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    /// Adds the outcomes of translated events.
    pub(super) fn add(&self, tally: &Tally) {
        if *tally != Tally::default() {
            self.tally.lock().add(tally);
        }
    }
}

/// Counts of one engine's feed.
#[derive(Debug, Default)]
pub struct FeedCounts {
    /// Messages received.
    pub messages: AtomicU64,
    /// Messages that wait for the follower.
    pub waiting: AtomicUsize,
    /// Connections after the first.
    pub reconnections: AtomicU64,
    /// Messages that could not be read.
    pub receive_errors: AtomicU64,
    /// Replays that the engine did not answer.
    pub replay_errors: AtomicU64,
}

impl FeedCounts {
    /// Adds one.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
