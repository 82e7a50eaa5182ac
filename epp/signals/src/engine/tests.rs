//! Engine feeds against a scripted engine, over real sockets on free ports.

use super::*;
use crate::scrape::tests::endpoint;
use crate::testkit::DEADLINE;
use bytes::Bytes;
use stator_fleet::KvSink;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::{Generation, WorkerRank};
use std::collections::BTreeMap;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// The index of one worker, as a pool would keep it.
#[derive(Debug, Default)]
struct Index(Mutex<State>);

#[derive(Clone, Debug, Default)]
struct State {
    lives: Vec<Generation>,
    known: bool,
    blocks: BTreeMap<(SequenceHash, Medium), u32>,
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
struct Log {
    batches: Vec<(u64, Bytes)>,
    asked: Vec<u64>,
    /// Answers carry no topic, as vLLM's up to 0.25.
    without_topic: bool,
}

struct Bed {
    publisher: PubSocket,
    log: Arc<Mutex<Log>>,
    index: Arc<Index>,
    metrics: SignalMetrics,
    next: u64,
    _feeds: EngineFeeds,
}

/// The port of a ZMQ endpoint.
fn port(endpoint: &zeromq::Endpoint) -> u16 {
    let text = endpoint.to_string();
    text.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

impl Bed {
    async fn start(log: Log, with_replay: bool) -> Self {
        let mut publisher = PubSocket::new();
        let at = publisher.bind("tcp://127.0.0.1:0").await.expect("a port");
        let mut replayer = RouterSocket::new();
        let replay_at = replayer.bind("tcp://127.0.0.1:0").await.expect("a port");
        let log = Arc::new(Mutex::new(log));
        tokio::spawn(serve_replays(replayer, log.clone()));
        let (index, metrics) = (Arc::new(Index::default()), SignalMetrics::default());
        let settings = EngineSettings {
            port: port(&at),
            replay_port: with_replay.then(|| port(&replay_at)),
            topic: "kv@".into(),
            ..EngineSettings::new(NonZeroU32::new(4).expect("not 0"))
        };
        let feeds = EngineFeeds::new(settings, index.clone(), metrics.clone());
        feeds.follow(&[Arc::new(endpoint("127.0.0.1:1", &[]))]);
        let next = log.lock().batches.last().map_or(0, |(number, _)| number + 1);
        Self { publisher, log, index, metrics, next, _feeds: feeds }
    }

    async fn send(&mut self, number: u64, payload: Bytes) {
        let mut message = ZmqMessage::from("kv@pod@model");
        message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
        message.push_back(payload);
        self.publisher.send(message).await.expect("published");
    }

    /// Publishes a batch; the engine remembers it.
    async fn publish(&mut self, payload: Bytes) {
        self.log.lock().batches.push((self.next, payload.clone()));
        self.next += 1;
        self.send(self.next - 1, payload).await;
    }

    /// A batch that is published when nobody hears.
    fn lose(&mut self, payload: Option<Bytes>) {
        self.log.lock().batches.extend(payload.map(|payload| (self.next, payload)));
        self.next += 1;
    }

    /// Publishes batches without events until `done`: what is lost before a silence shows with the
    /// next batch alone.
    async fn until(&mut self, what: &str, done: impl Fn(&State) -> bool) {
        let begin = std::time::Instant::now();
        while !done(&self.state()) {
            assert!(begin.elapsed() < DEADLINE, "waited in vain: {what}: {:?}", self.state());
            self.publish(batch(&[])).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn until_holds(&mut self, what: &str, blocks: &[SequenceHash]) {
        self.until(what, |state| state.known && state.holds(blocks)).await;
    }

    fn state(&self) -> State {
        self.index.0.lock().clone()
    }
}

impl State {
    /// Whether these are the blocks that are there.
    fn holds(&self, blocks: &[SequenceHash]) -> bool {
        let mut wanted: Vec<_> = blocks.to_vec();
        wanted.sort_unstable();
        self.blocks.keys().map(|(hash, _)| *hash).eq(wanted)
    }
}

async fn serve_replays(mut socket: RouterSocket, log: Arc<Mutex<Log>>) {
    loop {
        let request = socket.recv().await.expect("a request").into_vec();
        assert_eq!(request.len(), 3, "a stock engine takes nothing else");
        let start = u64::from_be_bytes(request[2].as_ref().try_into().expect("8 bytes"));
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
            let mut message = ZmqMessage::from(request[0].clone());
            message.push_back(Bytes::new());
            if !without_topic {
                message.push_back(topic);
            }
            message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
            message.push_back(payload);
            socket.send(message).await.expect("answered");
        }
    }
}

fn tokens(block: u32) -> Vec<u32> {
    (block * 4..block * 4 + 4).collect()
}

/// Our names for the first blocks of the one prompt that there is.
fn chain(blocks: u32) -> Vec<SequenceHash> {
    let tokens: Vec<u32> = (0..blocks).flat_map(tokens).collect();
    let mut out = Vec::new();
    let size = NonZeroU32::new(4).expect("not 0");
    sequence_hashes(&tokens, size, HashSeed::default(), &mut out);
    out
}

/// The engine's name of a block.
fn name(block: u32) -> Vec<u8> {
    [&[0xee; 28][..], &(block + 1).to_be_bytes()].concat()
}

/// Events as an engine encodes them: blocks of the prompt that are stored, as arrays with hashes
/// of 32 bytes, or removed, as maps.
enum Event {
    Stored(u32),
    Removed(u32),
}

fn batch(events: &[Event]) -> Bytes {
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
        }
    }
    out.into()
}

fn stored(block: u32) -> Bytes {
    batch(&[Event::Stored(block)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_remembers_is_known_at_once() {
    for without_topic in [false, true] {
        let batches = vec![(0, stored(0)), (1, stored(1)), (2, batch(&[Event::Removed(1)]))];
        let log = Log { batches, without_topic, ..Log::default() };
        let mut bed = Bed::start(log, true).await;
        bed.until_holds("the replay is in", &chain(1)).await;
        bed.publish(stored(1)).await;
        bed.until_holds("live events follow", &chain(2)).await;
        assert_eq!(bed.state().lives.len(), 1);
        assert_eq!(bed.metrics.blocks_skipped.get(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_that_does_not_reach_back_is_followed_from_its_start() {
    // What block 0 was is not known any more, so that block 1 cannot be named either.
    let batches = vec![(5, stored(1)), (6, stored(0)), (7, stored(1))];
    let mut bed = Bed::start(Log { batches, ..Log::default() }, true).await;
    bed.until_holds("the replay is in", &chain(2)).await;
    assert_eq!(bed.metrics.blocks_skipped.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_before_a_hole_in_a_replay_is_believed() {
    let batches = vec![(0, stored(0)), (1, stored(1)), (3, stored(0))];
    let mut bed = Bed::start(Log { batches, ..Log::default() }, true).await;
    bed.until_holds("the end of the replay is in", &chain(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_is_filled_by_replay() {
    let mut bed = Bed::start(Log::default(), true).await;
    bed.publish(stored(0)).await;
    bed.until_holds("the feed stands", &chain(1)).await;
    bed.lose(Some(stored(1)));
    bed.publish(stored(2)).await;
    bed.until_holds("the gap is filled", &chain(3)).await;
    assert!(bed.log.lock().asked.iter().any(|start| *start > 0));
    assert_eq!(bed.state().lives.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_gap_that_nobody_fills_everything_is_forgotten() {
    for with_replay in [true, false] {
        let mut bed = Bed::start(Log::default(), with_replay).await;
        bed.until("the feed stands", |state| state.known).await;
        bed.publish(stored(0)).await;
        bed.until_holds("the first block", &chain(1)).await;
        // The removal of block 0 may have been in it.
        bed.lose(None);
        bed.log.lock().batches.clear();
        bed.until_holds("nothing is believed", &[]).await;
        bed.publish(stored(0)).await;
        bed.publish(stored(1)).await;
        bed.until_holds("the feed goes on", &chain(2)).await;
        assert_eq!(bed.state().lives.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_start_again_are_another_life() {
    for with_replay in [true, false] {
        let mut bed = Bed::start(Log::default(), with_replay).await;
        bed.until("the feed stands", |state| state.known).await;
        bed.publish(stored(0)).await;
        bed.publish(stored(1)).await;
        bed.until_holds("two blocks", &chain(2)).await;
        bed.log.lock().batches.clear();
        bed.next = 0;
        bed.publish(stored(0)).await;
        bed.until_holds("the new life alone", &chain(1)).await;
        assert_eq!(bed.state().lives.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_read_is_as_good_as_lost() {
    let mut bed = Bed::start(Log::default(), true).await;
    bed.publish(stored(0)).await;
    bed.until_holds("the feed stands", &chain(1)).await;
    let number = bed.next;
    bed.lose(Some(stored(1)));
    bed.send(number, stored(1).slice(..20)).await;
    bed.until_holds("the replay brought it", &chain(2)).await;
    assert!(bed.metrics.messages_malformed.get() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_back_is_another_life() {
    let mut bed = Bed::start(Log::default(), true).await;
    bed.publish(stored(0)).await;
    bed.until_holds("the feed stands", &chain(1)).await;
    // Its numbers go on further than before, as if nothing had happened.
    let at = bed.publisher.binds().keys().next().expect("it is bound").clone();
    bed.publisher.unbind(at.clone()).await.expect("unbound");
    bed.publisher = PubSocket::new();
    bed.publisher.bind(&at.to_string()).await.expect("the same port");
    bed.log.lock().batches.clear();
    bed.publish(stored(0)).await;
    bed.publish(stored(1)).await;
    bed.until("another life", |state| state.lives.len() >= 2).await;
    bed.until("it is known", |state| state.known).await;
    assert!(bed.log.lock().asked.iter().filter(|start| **start == 0).count() >= 2);
}

#[test]
fn each_rank_has_ports_of_its_own() {
    let block_size = NonZeroU32::new(4).expect("not 0");
    let settings = EngineSettings { replay_port: Some(6557), ..EngineSettings::new(block_size) };
    let feeds = EngineFeeds::new(settings, Arc::new(Index::default()), SignalMetrics::default());
    let mut third = endpoint("[fd00::7]:8000", &[]);
    third.worker.rank = 2;
    let plan = feeds.plan(&third);
    assert_eq!(plan.subscription.endpoint, "tcp://[fd00::7]:5559");
    assert_eq!(plan.replay_endpoint.as_deref(), Some("tcp://[fd00::7]:6559"));
}
