//! Dynamo's indexes, as its router runs them: behind its own thread pool, with one lane.

use crate::corpus::{Chain, Change, Corpus};
use crate::subject::{Depth, Lane, Restore, Subject};
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::positional::{PositionalIndexer, SearchMode};
use dynamo_kv_router::indexer::{
    SyncIndexer, ThreadPoolIndexer, ThreadPoolObservationPlan, ThreadPoolObservationSession,
};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use futures::executor::block_on;
use std::time::Instant;

/// Positions below which the positional index searches one by one, as in Dynamo's measurements.
const WINDOW: usize = 64;

/// One of Dynamo's indexes.
pub trait Published: SyncIndexer {
    /// Name in records and tables.
    const NAME: &'static str;

    /// An empty one.
    fn empty() -> Self;
}

impl Published for ConcurrentRadixTreeCompressed {
    const NAME: &'static str = "crtc";

    fn empty() -> Self {
        Self::new()
    }
}

impl Published for PositionalIndexer {
    const NAME: &'static str = "positional";

    fn empty() -> Self {
        Self::new_with_mode(WINDOW, SearchMode::Binary)
    }
}

/// The compressed radix tree: what Dynamo's router uses.
pub type Crtc = Dynamo<ConcurrentRadixTreeCompressed>;
/// The flat table by position that came before it, with its binary search, which is the faster
/// of its two.
pub type Positional = Dynamo<PositionalIndexer>;

/// An index of Dynamo's with one event lane.
pub struct Dynamo<T: Published>(ThreadPoolIndexer<T>);

impl<T: Published> Subject for Dynamo<T> {
    const NAME: &'static str = T::NAME;
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;
    type Buffers = ();
    type Found = OverlapScores;
    type Lane<'a> = DynamoLane<'a, T>;

    fn new(corpus: &Corpus) -> Self {
        Self(ThreadPoolIndexer::new(T::empty(), 1, corpus.block_size))
    }

    fn event(change: &Change<'_>) -> RouterEvent {
        let data = match *change {
            Change::Stored { chain, start, .. } => KvCacheEventData::Stored(stored(chain, start)),
            Change::Removed { sequence, .. } => KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: sequence.iter().copied().map(ExternalSequenceBlockHash).collect(),
            }),
        };
        let event = KvCacheEvent { event_id: 0, data, dp_rank: 0 };
        RouterEvent::new(change.worker().into(), event)
    }

    fn query(chain: Chain<'_>) -> Vec<LocalBlockHash> {
        chain.local.iter().copied().map(LocalBlockHash).collect()
    }

    fn lookup(&self, query: &Vec<LocalBlockHash>, (): &mut ()) -> OverlapScores {
        self.0.backend().find_matches(query, false)
    }

    fn depths(found: &OverlapScores, (): &()) -> Vec<Depth> {
        let depths = found.scores.iter().map(|(worker, &blocks)| (worker.worker_id as u32, blocks));
        let mut depths: Vec<Depth> = depths.filter(|&(_, blocks)| blocks > 0).collect();
        depths.sort_unstable();
        depths
    }

    fn lane(&self, epoch: Instant, events: &[usize]) -> DynamoLane<'_, T> {
        let expected = events.iter().enumerate().map(|(worker, &n)| (worker as u64, n));
        let plan =
            ThreadPoolObservationPlan { epoch, expected_events_by_worker: expected.collect() };
        let session = block_on(self.0.begin_observation(plan)).expect("one session at a time");
        DynamoLane { session, sent: 0 }
    }
}

/// There is no bulk form: a snapshot is the events that would have led to it.
impl<T: Published> Restore for Dynamo<T> {
    type State = Vec<RouterEvent>;

    fn state(worker: u32, chains: &[Chain<'_>]) -> Vec<RouterEvent> {
        chains
            .iter()
            .map(|&chain| Self::event(&Change::Stored { worker, chain, start: 0 }))
            .collect()
    }

    fn restore(&self, _: u32, state: Vec<RouterEvent>) {
        for event in state {
            self.0.enqueue_event(event).expect("the lane runs");
        }
        block_on(self.0.flush_and_wait()).expect("the lane runs");
    }
}

fn stored(chain: Chain<'_>, start: usize) -> KvCacheStoreData {
    let blocks = chain.local[start..].iter().zip(&chain.sequence[start..]);
    KvCacheStoreData {
        parent_hash: start.checked_sub(1).map(|i| ExternalSequenceBlockHash(chain.sequence[i])),
        start_position: None,
        blocks: blocks
            .map(|(&local, &sequence)| KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(sequence),
                tokens_hash: LocalBlockHash(local),
                mm_extra_info: None,
            })
            .collect(),
    }
}

/// The pool's thread, which notes when it has applied each event.
pub struct DynamoLane<'a, T: Published> {
    session: ThreadPoolObservationSession<'a, T>,
    sent: u32,
}

impl<T: Published> Lane for DynamoLane<'_, T> {
    type Event = RouterEvent;

    fn send(&mut self, event: RouterEvent) {
        let accepted = self.session.enqueue_observed_owned(event, self.sent);
        accepted.expect("the lane runs and knows all workers");
        self.sent += 1;
    }

    fn finish(self) -> Vec<u64> {
        let sealed = block_on(self.session.close_observed_producers().seal());
        let snapshot = block_on(sealed.expect("the lane runs").harvest()).expect("the lane runs");
        let mut finished_ns = vec![0; self.sent as usize];
        for record in snapshot.buffers.iter().flat_map(|buffer| buffer.records()) {
            assert!(record.success, "event {} was refused", record.correlation_id);
            finished_ns[record.correlation_id as usize] = record.finished_ns;
        }
        assert!(finished_ns.iter().all(|&ns| ns > 0), "an event was lost");
        finished_ns
    }
}
