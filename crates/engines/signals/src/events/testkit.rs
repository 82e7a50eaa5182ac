//! A scripted engine over real sockets on free ports, and an index that checks what it is told.

use super::*;
use bytes::Bytes;
use parking_lot::Mutex;
use stator_events::KvSink;
use stator_events::subscribe::Subscription;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::{Generation, WorkerId, WorkerRank};
use stator_zmtp::{Publisher, Router};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Longest wait for anything that must happen.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);
/// Tokens per block.
pub(super) const BLOCK: NonZeroU32 = NonZeroU32::new(4).expect("not 0");
pub(super) const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };

/// The index of one worker, as a pool would keep it.
#[derive(Debug, Default)]
pub(super) struct Index(pub(super) Mutex<State>);

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) lives: Vec<Generation>,
    pub(super) known: bool,
    pub(super) blocks: BTreeMap<(SequenceHash, Medium), u32>,
}

impl State {
    fn add(&mut self, hash: SequenceHash, medium: Medium) {
        *self.blocks.entry((hash, medium)).or_default() += 1;
    }

    fn check(&self, generation: Generation) {
        assert_eq!(self.lives.last(), Some(&generation), "nothing is told of an earlier life");
    }
}

impl KvSink for Index {
    fn apply(&self, _: WorkerRank, generation: Generation, events: &[KvEvent]) {
        let mut state = self.0.lock();
        state.check(generation);
        assert!(state.known, "nothing is applied to what is not known");
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    stored.hashes.iter().for_each(|h| state.add(SequenceHash(*h), stored.medium));
                }
                KvEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        let key = (SequenceHash(*hash), removed.medium);
                        let copies = state.blocks.get_mut(&key).expect("it is there");
                        *copies -= 1;
                        if *copies == 0 {
                            state.blocks.remove(&key);
                        }
                    }
                }
                KvEvent::Cleared => state.blocks.clear(),
            }
        }
    }

    fn replace(&self, _: WorkerRank, generation: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        let mut state = self.0.lock();
        state.check(generation);
        state.known = true;
        state.blocks.clear();
        blocks.into_iter().for_each(|(hash, medium)| state.add(hash, medium));
    }

    fn unknown(&self, _: WorkerRank) {
        let mut state = self.0.lock();
        state.known = false;
        state.blocks.clear();
    }
}

impl WorkerSink for Index {
    fn life(&self, _: WorkerRank, generation: Generation) {
        let mut state = self.0.lock();
        assert!(state.lives.last() < Some(&generation), "lives have growing numbers");
        state.lives.push(generation);
        state.known = false;
        state.blocks.clear();
    }
}

/// What the engine remembers, and how it answers.
#[derive(Default)]
pub(super) struct Log {
    pub(super) batches: Vec<(u64, Bytes)>,
    pub(super) asked: Vec<u64>,
    /// Answers carry no topic, as vLLM's up to 0.25.
    pub(super) without_topic: bool,
}

pub(super) struct Bed {
    pub(super) publisher: Publisher,
    pub(super) log: Arc<Mutex<Log>>,
    pub(super) index: Arc<Index>,
    pub(super) metrics: FollowMetrics,
    pub(super) control: Control,
    pub(super) next: u64,
    pub(super) follower: JoinSet<()>,
}

impl Bed {
    pub(super) async fn start(log: Log, with_replay: bool) -> Self {
        Self::open(log, with_replay, |follower| follower).await
    }

    /// An engine that has replays, beside which there are other blocks.
    pub(super) async fn start_beside(outer: Arc<dyn OuterBlocks>) -> Self {
        Self::open(Log::default(), true, |follower| follower.beside(outer)).await
    }

    async fn open(log: Log, with_replay: bool, with: impl FnOnce(Follower) -> Follower) -> Self {
        let publisher = Publisher::bind("tcp://127.0.0.1:0").await.expect("a port");
        let router = Router::bind("tcp://127.0.0.1:0").await.expect("a port");
        let (endpoint, replay_at) = (publisher.endpoint().to_owned(), router.endpoint().to_owned());
        let log = Arc::new(Mutex::new(log));
        tokio::spawn(serve_replays(router, log.clone()));
        let (index, metrics) = (Arc::new(Index::default()), FollowMetrics::default());
        let prefixes = vec!["kv@".to_owned()];
        let source = Source::Zmq {
            subscription: Subscription { endpoint, prefixes, silence: None },
            replay_endpoint: with_replay.then_some(replay_at),
        };
        let follower = Follower::new(WORKER, source, FollowSettings::new(BLOCK), index.clone())
            .counted(metrics.clone(), Arc::default());
        let follower = with(follower);
        let (control, mut running) = (follower.control(), JoinSet::new());
        running.spawn(follower.run());
        let next = log.lock().batches.last().map_or(0, |(number, _)| number + 1);
        Self { publisher, log, index, metrics, control, next, follower: running }
    }

    pub(super) fn send(&self, number: u64, payload: Bytes) {
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        self.publisher.publish(&[Bytes::from_static(b"kv@pod@model"), number, payload]);
    }

    /// Publishes a batch; the engine remembers it.
    pub(super) fn publish(&mut self, payload: Bytes) {
        self.log.lock().batches.push((self.next, payload.clone()));
        self.next += 1;
        self.send(self.next - 1, payload);
    }

    /// A batch that is published when nobody hears.
    pub(super) fn lose(&mut self, payload: Option<Bytes>) {
        self.log.lock().batches.extend(payload.map(|payload| (self.next, payload)));
        self.next += 1;
    }

    /// Publishes batches without events until `done`: what is lost before a silence shows with the
    /// next batch alone.
    pub(super) async fn until(&mut self, what: &str, done: impl Fn(&State) -> bool) {
        let begin = std::time::Instant::now();
        // A publisher that never pauses never sees who subscribed.
        let mut steps = tokio::time::interval(Duration::from_millis(1));
        while !done(&self.state()) {
            assert!(begin.elapsed() < DEADLINE, "waited in vain: {what}: {:?}", self.state());
            self.publish(batch(&[]));
            steps.tick().await;
        }
    }

    /// Waits until `done` while the engine says nothing.
    pub(super) async fn silent_until(&self, what: &str, done: impl Fn(&State) -> bool) {
        let steps = async {
            while !done(&self.state()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, steps).await.expect(what);
    }

    pub(super) async fn until_holds(&mut self, what: &str, blocks: &[SequenceHash]) {
        self.until(what, |state| state.known && state.holds(blocks)).await;
    }

    pub(super) fn state(&self) -> State {
        self.index.0.lock().clone()
    }

    /// Listens anew at the same place: who was connected is not any more.
    pub(super) async fn listen_again(&mut self) {
        let at = self.listen_elsewhere().await;
        self.publisher = Publisher::bind(&at).await.expect("the same port");
    }

    /// Listens anew where nobody connects; returns where it was.
    pub(super) async fn listen_elsewhere(&mut self) -> String {
        let elsewhere = Publisher::bind("tcp://127.0.0.1:0").await.expect("a port");
        let before = std::mem::replace(&mut self.publisher, elsewhere);
        let at = before.endpoint().to_owned();
        before.close().await;
        at
    }
}

impl State {
    /// Whether these are the blocks that are there.
    pub(super) fn holds(&self, blocks: &[SequenceHash]) -> bool {
        let mut wanted: Vec<_> = blocks.to_vec();
        wanted.sort_unstable();
        self.blocks.keys().map(|(hash, _)| *hash).eq(wanted)
    }
}

async fn serve_replays(mut router: Router, log: Arc<Mutex<Log>>) {
    loop {
        let request = router.recv().await;
        assert_eq!(request.frames.len(), 2, "a stock engine takes nothing else");
        let start = u64::from_be_bytes(request.frames[1].as_ref().try_into().expect("8 bytes"));
        let (batches, without_topic) = {
            let mut log = log.lock();
            log.asked.push(start);
            (log.batches.clone(), log.without_topic)
        };
        let end = (Bytes::new(), u64::MAX, Bytes::new());
        let batches = batches.into_iter().filter(|(number, _)| *number >= start);
        let topic = Bytes::from_static(b"kv@pod@model");
        let answers = batches.map(|(number, payload)| (topic.clone(), number, payload));
        for (topic, number, payload) in answers.chain([end]) {
            let mut answer = vec![Bytes::new()];
            if !without_topic {
                answer.push(topic);
            }
            answer.extend([Bytes::copy_from_slice(&number.to_be_bytes()), payload]);
            request.reply.send(&answer).await.expect("answered");
        }
    }
}

pub(super) fn tokens(block: u32) -> Vec<u32> {
    (block * 4..block * 4 + 4).collect()
}

/// Our names for the first blocks of the one prompt that there is.
pub(super) fn chain(blocks: u32) -> Vec<SequenceHash> {
    let tokens: Vec<u32> = (0..blocks).flat_map(tokens).collect();
    let mut out = Vec::new();
    sequence_hashes(&tokens, BLOCK, HashSeed::default(), &mut out);
    out
}

/// The engine's name of a block.
pub(super) fn name(block: u32) -> Vec<u8> {
    [&[0xee; 28][..], &(block + 1).to_be_bytes()].concat()
}

/// Events as an engine encodes them: blocks of the prompt that are stored, as arrays with hashes
/// of 32 bytes, or removed, as maps.
pub(super) enum Event {
    Stored(u32),
    Removed(u32),
    Cleared,
}

pub(super) fn batch(events: &[Event]) -> Bytes {
    use rmp::encode as mp;
    const TO_MEMORY: &str = "a vector takes everything";
    let mut out = vec![0x92];
    mp::write_f64(&mut out, 1.0).expect(TO_MEMORY);
    mp::write_array_len(&mut out, events.len() as u32).expect(TO_MEMORY);
    for event in events {
        match event {
            Event::Stored(block) => {
                mp::write_array_len(&mut out, 7).expect(TO_MEMORY);
                mp::write_str(&mut out, "BlockStored").expect(TO_MEMORY);
                mp::write_array_len(&mut out, 1).expect(TO_MEMORY);
                mp::write_bin(&mut out, &name(*block)).expect(TO_MEMORY);
                match block.checked_sub(1) {
                    Some(parent) => mp::write_bin(&mut out, &name(parent)).expect(TO_MEMORY),
                    None => mp::write_nil(&mut out).expect(TO_MEMORY),
                }
                mp::write_array_len(&mut out, 4).expect(TO_MEMORY);
                for token in tokens(*block) {
                    mp::write_uint(&mut out, token.into()).expect(TO_MEMORY);
                }
                mp::write_uint(&mut out, 4).expect(TO_MEMORY);
                mp::write_nil(&mut out).expect(TO_MEMORY);
                mp::write_str(&mut out, "GPU").expect(TO_MEMORY);
            }
            Event::Removed(block) => {
                mp::write_map_len(&mut out, 2).expect(TO_MEMORY);
                mp::write_str(&mut out, "type").expect(TO_MEMORY);
                mp::write_str(&mut out, "BlockRemoved").expect(TO_MEMORY);
                mp::write_str(&mut out, "block_hashes").expect(TO_MEMORY);
                mp::write_array_len(&mut out, 1).expect(TO_MEMORY);
                // The last 8 bytes are the same name.
                mp::write_uint(&mut out, 0xeeee_eeee_0000_0001 + u64::from(*block))
                    .expect(TO_MEMORY);
            }
            Event::Cleared => {
                mp::write_array_len(&mut out, 1).expect(TO_MEMORY);
                mp::write_str(&mut out, "AllBlocksCleared").expect(TO_MEMORY);
            }
        }
    }
    out.into()
}

pub(super) fn stored(block: u32) -> Bytes {
    batch(&[Event::Stored(block)])
}
