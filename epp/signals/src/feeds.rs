//! What is counted of engines' event feeds, one by one and by reason, for the picker's metrics.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_engine_signals::events::{Counts, FeedCounts, Tally};
use stator_epp_metrics::{FeedSnapshot, FeedsSnapshot, SkippedEvents};
use stator_protos::WorkerRank;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The feeds of a pool.
#[derive(Debug, Default)]
pub(crate) struct Feeds(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether events are followed at all.
    followed: bool,
    /// Messages of one engine that may wait.
    capacity: usize,
    engines: FxHashMap<WorkerRank, (Arc<str>, Arc<FeedCounts>)>,
}

impl Feeds {
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
                (worker, known.unwrap_or_else(|| (name, Arc::default())))
            })
            .collect();
    }

    /// Where an engine's feed is counted; nowhere that is read if it is not followed.
    pub(crate) fn of(&self, worker: WorkerRank) -> Arc<FeedCounts> {
        let state = self.0.lock();
        state.engines.get(&worker).map(|(_, counts)| counts.clone()).unwrap_or_default()
    }

    /// What was counted, of all events this; `None` where events are not followed.
    pub(crate) fn snapshot(&self, tally: &Tally) -> Option<FeedsSnapshot> {
        let state = self.0.lock();
        if !state.followed {
            return None;
        }
        let Tally { stores, removals, suppressed, forwarded } = tally;
        let mut engines: Vec<_> =
            state.engines.values().map(|(name, counts)| snapshot(counts, name)).collect();
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
            capacity: state.capacity * engines.len(),
            engines,
            removals_suppressed: *suppressed,
            removals_forwarded: *forwarded,
            stores_skipped: skipped(stores),
            removals_skipped: skipped(removals),
        })
    }
}

fn snapshot(counts: &FeedCounts, name: &Arc<str>) -> FeedSnapshot {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    FeedSnapshot {
        pod: name.clone(),
        messages: read(&counts.messages),
        waiting: counts.waiting.load(Ordering::Relaxed),
        reconnections: read(&counts.reconnections),
        receive_errors: read(&counts.receive_errors),
        replay_errors: read(&counts.replay_errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    fn messages(feeds: &Feeds) -> Vec<(String, u64)> {
        let engines = feeds.snapshot(&Tally::default()).expect("events are followed").engines;
        engines.iter().map(|feed| (feed.pod.to_string(), feed.messages)).collect()
    }

    #[test]
    fn only_engines_that_stay_keep_their_counts() {
        let feeds = Feeds::default();
        assert!(feeds.snapshot(&Tally::default()).is_none());
        let follow = |names: &[(u64, &str)]| {
            let named = names.iter().map(|(id, name)| {
                (WorkerRank { worker: WorkerId(*id), rank: 0 }, Arc::from(*name))
            });
            feeds.follow(named, 10);
        };
        follow(&[(1, "a"), (2, "b")]);
        for id in [1, 2, 3] {
            let counts = feeds.of(WorkerRank { worker: WorkerId(id), rank: 0 });
            counts.messages.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(messages(&feeds), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        follow(&[(2, "b"), (1, "c")]);
        assert_eq!(messages(&feeds), [("b".to_owned(), 1), ("c".to_owned(), 0)]);
        assert_eq!(feeds.snapshot(&Tally::default()).map(|feeds| feeds.capacity), Some(20));
    }
}
