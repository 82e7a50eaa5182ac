//! Pending news for each peer that listens. Pure.
//!
//! Gauges wait as the number of the last change that the peer has seen, so that they coalesce;
//! prompts wait in a queue that drops its oldest if a peer is too slow.

use crate::PoolId;
use crate::gauges::{GaugeKey, OwnGauges};
use crate::outbox::Letters;
use crate::recent::Recent;
use stator_placement::PeerLoad;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Gauges in one frame: well below 1 MiB.
pub(crate) const FRAME_GAUGES_MAX: usize = 16_384;

/// Blocks in one frame, after which no further prompt is put in: 512 KiB and one prompt.
pub(crate) const FRAME_HASHES_MAX: usize = 1 << 16;

/// A prompt that waits for those who listen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SentPrompt {
    pub(crate) key: GaugeKey,
    pub(crate) hashes: Vec<SequenceHash>,
}

/// Next news for one peer.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(crate) gauges: Vec<(GaugeKey, PeerLoad)>,
    pub(crate) sent: Vec<Arc<SentPrompt>>,
    /// Names of pools that it was not told of, which the others may speak of.
    pub(crate) pools: Vec<String>,
}

impl Frame {
    pub(crate) fn is_empty(&self) -> bool {
        self.gauges.is_empty() && self.sent.is_empty() && self.pools.is_empty()
    }
}

/// Identity of a listening peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListenerId(u64);

#[derive(Default)]
struct Listener {
    /// The last change of a gauge that it knows.
    seen: u64,
    queue: VecDeque<Arc<SentPrompt>>,
    queued_hashes: usize,
}

/// All who listen, and what they are to be told.
pub(crate) struct PeerFeeds {
    own: OwnGauges,
    recent: Recent,
    listeners: BTreeMap<ListenerId, Listener>,
    last_id: u64,
    queue_hashes_max: usize,
}

impl PeerFeeds {
    /// Nobody listens. Each of those who will may have `queue_hashes_max` blocks waiting.
    pub(crate) fn new(queue_hashes_max: usize) -> Self {
        let (own, recent, listeners) = Default::default();
        Self { own, recent, listeners, last_id: 0, queue_hashes_max }
    }

    /// One more listens; it is told of every gauge first.
    pub(crate) fn subscribe(&mut self) -> ListenerId {
        self.last_id += 1;
        let id = ListenerId(self.last_id);
        self.listeners.insert(id, Listener::default());
        self.recent.clear();
        id
    }

    pub(crate) fn unsubscribe(&mut self, id: ListenerId) {
        self.listeners.remove(&id);
    }

    /// Number of listening peers.
    pub(crate) fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// A pool's own gauges are these.
    pub(crate) fn set_pool(&mut self, pool: PoolId, now: &[(WorkerRank, PeerLoad)]) {
        let seen = self.listeners.values().map(|listener| listener.seen).min();
        self.own.set_pool(pool, now, seen.unwrap_or(u64::MAX));
    }

    /// Puts prompts in everybody's queue. Returns how many were put in and how many lost.
    pub(crate) fn publish(&mut self, letters: &Letters) -> (u64, u64) {
        let (mut queued, mut lost) = (0, 0);
        for (pool, worker, sequence) in letters.iter() {
            let key = (pool, worker);
            let untold = self.recent.untold(key, sequence);
            if untold.is_empty() {
                continue;
            }
            let sent = Arc::new(SentPrompt { key, hashes: untold.to_vec() });
            for listener in self.listeners.values_mut() {
                queued += 1;
                lost += listener.push(sent.clone(), self.queue_hashes_max);
            }
        }
        (queued, lost)
    }

    /// Half the window passed in which a beginning is not told again.
    pub(crate) fn turn(&mut self) {
        self.recent.turn();
    }

    /// Whether anybody has something to be told.
    pub(crate) fn waiting(&self) -> bool {
        let version = self.own.version();
        let waits = |listener: &Listener| listener.seen < version || !listener.queue.is_empty();
        self.listeners.values().any(waits)
    }

    /// Next news for a listener; empty if it knows everything.
    pub(crate) fn take(&mut self, id: ListenerId) -> Frame {
        let Some(listener) = self.listeners.get_mut(&id) else { return Frame::default() };
        let (gauges, seen) = self.own.changes_since(listener.seen, FRAME_GAUGES_MAX);
        listener.seen = seen;
        Frame { gauges, sent: listener.pop(), pools: Vec::new() }
    }
}

impl Listener {
    /// Returns how many it lost for that.
    fn push(&mut self, sent: Arc<SentPrompt>, hashes_max: usize) -> u64 {
        self.queued_hashes += sent.hashes.len();
        self.queue.push_back(sent);
        let mut lost = 0;
        while self.queued_hashes > hashes_max
            && let Some(oldest) = self.queue.pop_front()
        {
            self.queued_hashes -= oldest.hashes.len();
            lost += 1;
        }
        lost
    }

    fn pop(&mut self) -> Vec<Arc<SentPrompt>> {
        let (mut frame, mut hashes) = (Vec::new(), 0);
        while hashes < FRAME_HASHES_MAX
            && let Some(sent) = self.queue.pop_front()
        {
            hashes += sent.hashes.len();
            frame.push(sent);
        }
        self.queued_hashes -= hashes;
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outbox;
    use stator_protos::WorkerId;

    const POOL: PoolId = PoolId(0);

    fn worker(number: u64) -> WorkerRank {
        WorkerRank { worker: WorkerId(number), rank: 0 }
    }

    fn requests(requests: u64) -> PeerLoad {
        PeerLoad { blocks: requests, ..PeerLoad::default() }
    }

    /// Prompts of so many blocks each, all different.
    fn letters(prompts: u64, blocks: u64) -> Letters {
        let outbox = Outbox::default();
        outbox.set_listened(true);
        for prompt in 0..prompts {
            let from = prompt * blocks;
            let sequence: Vec<_> = (from..from + blocks).map(SequenceHash).collect();
            outbox.sent(POOL, worker(prompt), &sequence);
        }
        let mut letters = Letters::default();
        outbox.take(&mut letters);
        letters
    }

    fn told(frame: &Frame) -> Vec<WorkerRank> {
        frame.sent.iter().map(|sent| sent.key.1).collect()
    }

    #[test]
    fn everybody_is_told_everything_once() {
        let mut feeds = PeerFeeds::new(100);
        let (one, two) = (feeds.subscribe(), feeds.subscribe());
        feeds.set_pool(POOL, &[(worker(1), requests(3))]);
        assert_eq!(feeds.publish(&letters(2, 4)), (4, 0));
        for listener in [one, two] {
            let frame = feeds.take(listener);
            assert_eq!(frame.gauges, [((POOL, worker(1)), requests(3))]);
            assert_eq!(told(&frame), [worker(0), worker(1)]);
            assert!(feeds.take(listener).is_empty());
        }
        assert!(!feeds.waiting());
    }

    #[test]
    fn a_stalled_peer_loses_the_oldest_prompts_and_no_gauge() {
        let mut feeds = PeerFeeds::new(100);
        let stalled = feeds.subscribe();
        feeds.set_pool(POOL, &[(worker(1), requests(1))]);
        assert_eq!(feeds.publish(&letters(30, 10)), (30, 20));
        feeds.set_pool(POOL, &[(worker(1), requests(2))]);
        let frame = feeds.take(stalled);
        assert_eq!(told(&frame), (20..30).map(worker).collect::<Vec<_>>());
        assert_eq!(frame.gauges, [((POOL, worker(1)), requests(2))], "only the last value");
        assert_eq!(feeds.publish(&letters(1, 200)), (1, 1), "longer than the whole queue");
        assert!(feeds.take(stalled).is_empty());
    }

    #[test]
    fn who_comes_later_is_told_all_gauges_and_whole_prompts() {
        let mut feeds = PeerFeeds::new(100);
        let first = feeds.subscribe();
        feeds.set_pool(POOL, &[(worker(1), requests(3))]);
        feeds.publish(&letters(1, 4));
        feeds.take(first);
        let second = feeds.subscribe();
        assert!(feeds.waiting());
        feeds.publish(&letters(1, 4));
        let frame = feeds.take(second);
        assert_eq!(frame.gauges.len(), 1);
        assert_eq!(frame.sent[0].hashes.len(), 4);
        feeds.unsubscribe(first);
        assert_eq!(feeds.listeners(), 1);
        assert!(feeds.take(first).is_empty());
    }

    #[test]
    fn much_to_tell_takes_several_frames() {
        let blocks = 8000;
        let prompts = 2 * FRAME_HASHES_MAX / blocks;
        let mut feeds = PeerFeeds::new(usize::MAX);
        let listener = feeds.subscribe();
        feeds.publish(&letters(prompts as u64, blocks as u64));
        let first = told(&feeds.take(listener)).len();
        assert_eq!(first, FRAME_HASHES_MAX.div_ceil(blocks));
        assert_eq!(told(&feeds.take(listener)).len(), prompts - first);
        assert!(feeds.take(listener).is_empty());
    }
}
