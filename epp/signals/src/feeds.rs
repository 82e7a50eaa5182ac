//! Counts of engines' event feeds, by engine and by reason, for the picker's metrics.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_epp_metrics::{FeedSnapshot, FeedsSnapshot, SkippedEvents};
use stator_protos::WorkerRank;
use stator_signals::events::{Counts, FeedCounts, Tally};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The feeds of a pool.
#[derive(Debug, Default)]
pub(crate) struct FeedCounters(Mutex<FeedState>);

#[derive(Debug, Default)]
struct FeedState {
    /// Whether events are followed at all.
    followed: bool,
    /// Messages of one engine that may wait.
    capacity: usize,
    /// By name, with the counts of each of its ranks.
    engines: FxHashMap<WorkerRank, (Arc<str>, Vec<Arc<FeedCounts>>)>,
}

impl FeedCounters {
    /// These engines are followed from now on, each by its name; the counts of others are
    /// forgotten. Up to `capacity` messages of each may wait.
    pub(crate) fn follow(
        &self,
        names: impl Iterator<Item = (WorkerRank, Arc<str>)>,
        capacity: usize,
    ) {
        let mut state = self.0.lock();
        (state.followed, state.capacity) = (true, capacity);
        let mut before = std::mem::take(&mut state.engines);
        state.engines = names
            .map(|(worker, name)| {
                let known = before.remove(&worker).filter(|(known, _)| *known == name);
                (worker, known.unwrap_or_else(|| (name, Vec::new())))
            })
            .collect();
    }

    /// Counters for the feed of an engine's `at`th rank; counters that nobody reads if the engine
    /// is not followed.
    pub(crate) fn of(&self, worker: WorkerRank, at: usize) -> Arc<FeedCounts> {
        let mut state = self.0.lock();
        let Some((_, ranks)) = state.engines.get_mut(&worker) else { return Arc::default() };
        if ranks.len() <= at {
            ranks.resize_with(at + 1, Arc::default);
        }
        ranks[at].clone()
    }

    /// The counts, with `tally` for all events; `None` where events are not followed.
    pub(crate) fn snapshot(&self, tally: &Tally) -> Option<FeedsSnapshot> {
        let state = self.0.lock();
        if !state.followed {
            return None;
        }
        let Tally { stores, removals, suppressed, forwarded } = tally;
        let mut engines: Vec<_> =
            state.engines.values().map(|(name, ranks)| snapshot(ranks, name)).collect();
        let feeds: usize = state.engines.values().map(|(_, ranks)| ranks.len()).sum();
        // The map has no order, and a page should not change by chance.
        engines.sort_unstable_by(|one, other| one.pod.cmp(&other.pod));
        let skipped = |counts: &Counts| {
            let counts = counts.iter();
            let skipped = counts.map(|((cache_kind, reason), count)| SkippedEvents {
                cache_kind,
                reason: reason.name(),
                count: *count,
            });
            skipped.collect()
        };
        Some(FeedsSnapshot {
            capacity: state.capacity * feeds,
            engines,
            removals_suppressed: *suppressed,
            removals_forwarded: *forwarded,
            stores_skipped: skipped(stores),
            removals_skipped: skipped(removals),
        })
    }
}

/// Counts of an engine, all of its ranks together.
fn snapshot(ranks: &[Arc<FeedCounts>], name: &Arc<str>) -> FeedSnapshot {
    let sum = |counter: fn(&FeedCounts) -> &AtomicU64| {
        ranks.iter().map(|counts| counter(counts).load(Ordering::Relaxed)).sum()
    };
    FeedSnapshot {
        pod: name.clone(),
        messages: sum(|counts| &counts.messages),
        waiting: ranks.iter().map(|counts| counts.waiting.load(Ordering::Relaxed)).sum(),
        reconnections: sum(|counts| &counts.reconnections),
        receive_errors: sum(|counts| &counts.receive_errors),
        replay_errors: sum(|counts| &counts.replay_errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    fn messages(feeds: &FeedCounters) -> Vec<(String, u64)> {
        let engines = feeds.snapshot(&Tally::default()).expect("events are followed").engines;
        engines.iter().map(|feed| (feed.pod.to_string(), feed.messages)).collect()
    }

    #[test]
    fn only_engines_that_stay_keep_their_counts() {
        let feeds = FeedCounters::default();
        assert!(feeds.snapshot(&Tally::default()).is_none());
        let follow = |names: &[(u64, &str)]| {
            let named = names.iter().map(|(id, name)| {
                (WorkerRank { worker: WorkerId(*id), rank: 0 }, Arc::from(*name))
            });
            feeds.follow(named, 10);
        };
        follow(&[(1, "a"), (2, "b")]);
        for id in [1, 2, 3] {
            for rank in [0, 1] {
                let counts = feeds.of(WorkerRank { worker: WorkerId(id), rank: 0 }, rank);
                counts.messages.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert_eq!(messages(&feeds), [("a".to_owned(), 2), ("b".to_owned(), 2)]);
        follow(&[(2, "b"), (1, "c")]);
        assert_eq!(messages(&feeds), [("b".to_owned(), 2), ("c".to_owned(), 0)]);
        assert_eq!(feeds.snapshot(&Tally::default()).map(|feeds| feeds.capacity), Some(20));
    }
}
