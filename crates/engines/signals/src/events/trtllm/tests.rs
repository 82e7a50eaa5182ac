//! TensorRT-LLM's events, written from its schema, and a scripted server that gives them.

use super::super::testkit::{BLOCK, DEADLINE, Index, State, WORKER, chain, tokens};
use super::super::{FollowSettings, Follower, Translator, WorkerSink};
use super::*;
use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};
use stator_http::Origin;
use stator_protos::WorkerRank;
use stator_protos::kv_event::{
    Detail, EngineEvent, KvEvent, MAX_BLOCK_SIZE, Medium, Removed, Stored,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// One of each event, as the schema has them.
const EVENTS: &str = include_str!("../../../fixtures/trtllm-kv-events.json");

fn events() -> Vec<Value> {
    serde_json::from_str(EVENTS).expect("a list")
}

#[track_caller]
fn check(event: &Value, expected: &[KvEvent], skipped: u32) {
    let batch = decode(event.to_string().as_bytes(), BLOCK).expect("an event");
    let found: Vec<_> = batch.events.into_iter().map(|found| found.event).collect();
    assert_eq!((found, batch.skipped), (expected.to_vec(), skipped), "{event}");
}

fn run(hashes: &[u64], parent: Option<u64>, tokens: &[u32], medium: Medium) -> KvEvent {
    let (hashes, tokens) = (hashes.to_vec(), tokens.to_vec());
    KvEvent::Stored(Stored { hashes, parent, tokens, block_size: 4, medium, lora_name: None })
}

fn gone(hashes: &[u64]) -> KvEvent {
    KvEvent::Removed(Removed { hashes: hashes.to_vec(), medium: Medium::Device })
}

#[test]
fn every_kind_of_event_is_read() {
    let [created, stored, partial, moved, promoted, removed, future] = &events()[..] else {
        panic!("a list of 7")
    };
    check(created, &[gone(&[])], 0);
    let large = 17_842_290_913_452_017_332;
    let two = [
        run(&[large, 12], None, &[1, 2, 3, 4, 5, 6, 7, 8], Medium::Device),
        run(&[13], Some(12), &[9, 10, 11, 12], Medium::Host),
    ];
    check(stored, &two, 0);
    // The second is not full, so that nothing follows on it that could be found.
    check(partial, &[run(&[14], Some(13), &[13, 14, 15, 16], Medium::Device)], 1);
    check(moved, &[run(&[12], None, &[], Medium::Host)], 0);
    check(promoted, &[], 0);
    check(removed, &[gone(&[large, u64::MAX])], 0);
    check(future, &[], 1);
    let group = |event: &Value| {
        let batch = decode(event.to_string().as_bytes(), BLOCK).expect("an event");
        batch.events[0].detail.group
    };
    assert_eq!((group(created), group(stored)), (Some(4096), Some(4096)));
}

/// A stored event of one block with these fields beside the usual ones.
fn block(fields: Value) -> Value {
    let tokens: Vec<_> = (1..5).map(|id| json!({"token_id": id, "token_extra_id": 0})).collect();
    let mut block = json!({"block_hash": 5, "tokens": tokens});
    let Value::Object(fields) = fields else { panic!("fields") };
    block.as_object_mut().expect("a block").extend(fields);
    json!({"event_id": 1, "data": {"type": "stored", "parent_hash": null, "blocks": [block]}})
}

#[test]
fn what_decides_to_whom_a_block_belongs_is_kept() {
    let one = |fields: Value| {
        let batch = decode(block(fields).to_string().as_bytes(), BLOCK).expect("an event");
        let EngineEvent { event, detail } = batch.events.into_iter().next()?;
        let KvEvent::Stored(stored) = event else { return None };
        Some((stored.lora_name, detail.cache_salt))
    };
    assert_eq!(one(json!({})), Some((None, None)));
    assert_eq!(one(json!({"mm_keys": [], "cache_salt": null})), Some((None, None)));
    assert_eq!(one(json!({"cache_salt": "a"})), Some((None, Some("a".into()))));
    assert_eq!(one(json!({"lora_id": 3})), Some((Some("3".into()), None)));
    assert_eq!(one(json!({"mm_keys": [{"type": "mm_key", "hash": "00"}]})), None);
    let image = json!([{"token_id": 1, "token_extra_id": 77}, {"token_id": 2}, {"token_id": 3},
        {"token_id": 4}]);
    assert_eq!(one(json!({"tokens": image})), None);
    assert_eq!(one(json!({"cache_level": 9})), None);
}

#[test]
fn hashes_are_any_64_bits() {
    let hash = |hash: Value| {
        let event = json!({"event_id": 1, "data": {"type": "removed", "block_hashes": [hash]}});
        let batch = decode(event.to_string().as_bytes(), BLOCK).ok()?;
        match &batch.events[0].event {
            KvEvent::Removed(removed) => removed.hashes.first().copied(),
            _ => None,
        }
    };
    assert_eq!(hash(json!(u64::MAX)), Some(u64::MAX));
    assert_eq!(hash(json!(-2)), Some(u64::MAX - 1));
    assert_eq!(hash(json!("0102030405060708ffffffffffffff0a")), Some(0xffff_ffff_ffff_ff0a));
    assert_eq!(hash(json!("0a")), Some(10));
    for bad in [json!("xyz"), json!(""), json!(1.5), json!(null), json!("ää23456789abcdefg")] {
        assert_eq!(hash(bad.clone()), None, "{bad}");
    }
}

#[test]
fn a_block_larger_than_the_engines_is_refused() {
    let ids: Vec<_> = (0..5).map(|id| json!({"token_id": id})).collect();
    let event = block(json!({"tokens": ids})).to_string();
    let error = decode(event.as_bytes(), BLOCK).expect_err("it is too large");
    assert_eq!(error.to_string(), "tokens: a block has 5, the engine's have 4");
    assert!(BLOCK.get() < MAX_BLOCK_SIZE);
}

/// An event of one window.
fn of_window(window: u32, event: KvEvent) -> EngineEvent {
    EngineEvent { event, detail: Detail { group: Some(window), ..Detail::default() } }
}

#[test]
fn only_the_widest_window_says_what_there_is() {
    let (mut places, mut translator) = (Places::new(100), Translator::new(BLOCK, 100));
    let mut follow = |events: &[EngineEvent]| {
        translator.translate(&places.settle(events), &mut Vec::new());
        translator.blocks().len()
    };
    let narrow = of_window(128, run(&[1], None, &tokens(0), Medium::Device));
    assert_eq!(follow(std::slice::from_ref(&narrow)), 1);
    assert_eq!(follow(&[of_window(4096, gone(&[]))]), 0, "nobody knew of the wider one");
    assert_eq!(follow(&[narrow]), 0);
    let wide = of_window(4096, run(&[2], None, &tokens(0), Medium::Device));
    assert_eq!(follow(&[wide, of_window(128, gone(&[2]))]), 1);
}

#[derive(Clone, Debug)]
enum Op {
    /// Blocks from the start of a sequence, on a medium.
    Store(u64, Medium),
    Move(u64, Medium),
    Remove(u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let medium = || select(vec![Medium::Device, Medium::Host]);
    prop_oneof![
        (1..7u64, medium()).prop_map(|(blocks, medium)| Op::Store(blocks, medium)),
        (0..7u64, medium()).prop_map(|(block, medium)| Op::Move(block, medium)),
        (0..7u64).prop_map(Op::Remove),
    ]
}

proptest! {
    /// However often blocks are stored, moved and removed, each is in the one place that the last
    /// event about it says.
    #[test]
    fn each_block_is_in_one_place(ops in vec(any_op(), 0..40)) {
        let (mut places, mut translator) = (Places::new(100), Translator::new(BLOCK, 100));
        let ours = chain(7);
        let mut model = BTreeMap::new();
        for op in ops {
            let event = match op {
                Op::Store(blocks, medium) => {
                    model.extend((0..blocks).map(|block| (block, medium)));
                    let tokens: Vec<u32> = (0..blocks as u32).flat_map(tokens).collect();
                    run(&(100..100 + blocks).collect::<Vec<_>>(), None, &tokens, medium)
                }
                Op::Move(block, medium) => {
                    model.entry(block).and_modify(|there| *there = medium);
                    run(&[100 + block], None, &[], medium)
                }
                Op::Remove(block) => {
                    model.remove(&block);
                    gone(&[100 + block])
                }
            };
            let event = EngineEvent { event, detail: Detail::default() };
            translator.translate(&places.settle(&[event]), &mut Vec::new());
            let mut found = translator.blocks();
            found.sort_unstable();
            let mut expected: Vec<_> =
                model.iter().map(|(block, medium)| (ours[*block as usize], *medium)).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn arbitrary_events_never_panic(
        at in 0..EVENTS.len(),
        noise in vec(any::<u8>(), 0..20),
        whole: bool,
    ) {
        let event = &events()[at % 7].to_string();
        let mut bytes = event.as_bytes().to_vec();
        let cut = at % bytes.len();
        let tail = bytes.split_off(cut);
        bytes.extend_from_slice(&noise);
        if whole {
            bytes.extend_from_slice(&tail);
        }
        if let Ok(batch) = decode(&bytes, BLOCK) {
            let mut translator = Translator::new(BLOCK, 100);
            translator.translate(&Places::new(100).settle(&batch.events), &mut Vec::new());
        }
    }
}

/// Lists that the server gives, one for each question; then empty ones.
type Lists = Arc<Mutex<VecDeque<String>>>;

async fn serve(lists: Lists) -> Origin {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            while stream.read_buf(&mut request).await.is_ok_and(|size| size > 0) {
                if !request.ends_with(b"\r\n\r\n") {
                    continue;
                }
                assert!(request.starts_with(b"POST /kv_cache_events HTTP/1.1\r\n"));
                request.clear();
                let list = lists.lock().pop_front();
                // An answer that never comes, and then the end of the connection.
                if list.as_deref() == Some("break") {
                    break;
                }
                let list = list.unwrap_or_else(|| "[]".to_owned());
                let length = list.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{list}");
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    });
    Origin { host: "127.0.0.1".into(), port, tls: None }
}

struct Bed {
    lists: Lists,
    indexes: Vec<Arc<Index>>,
    _running: JoinSet<()>,
}

impl Bed {
    async fn start(ranks: u16) -> Self {
        let lists = Lists::default();
        let origin = serve(lists.clone()).await;
        let settings = TrtLlmSettings {
            pause: Duration::from_millis(1),
            ..TrtLlmSettings::new(origin, BLOCK)
        };
        let (drain, sources) = TrtLlmDrain::new(settings, ranks);
        let (mut running, mut indexes) = (JoinSet::new(), Vec::new());
        running.spawn(drain.run());
        for (rank, source) in sources.into_iter().enumerate() {
            let worker = WorkerRank { rank: rank as u16, ..WORKER };
            let index = Arc::new(Index::default());
            let sink: Arc<dyn WorkerSink> = index.clone();
            let follower = Follower::new(worker, source, FollowSettings::new(BLOCK), sink);
            running.spawn(follower.run());
            indexes.push(index);
        }
        Self { lists, indexes, _running: running }
    }

    fn give(&self, events: &[Value]) {
        self.lists.lock().push_back(Value::from(events.to_vec()).to_string());
    }

    async fn until(&self, rank: usize, done: impl Fn(&State) -> bool) {
        let waiting = async {
            while !done(&self.indexes[rank].0.lock()) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, waiting).await;
        assert!(waited.is_ok(), "waited in vain: {:?}", self.indexes[rank].0.lock());
    }
}

/// An event of a rank: its first block, or the one after that.
fn stored(id: u64, rank: u16, block: u32) -> Value {
    let tokens: Vec<_> = tokens(block).iter().map(|id| json!({"token_id": id})).collect();
    let parent = block.checked_sub(1).map(|before| 100 + before);
    let blocks = json!([{"block_hash": 100 + block, "tokens": tokens, "cache_level": 0}]);
    let data = json!({"type": "stored", "parent_hash": parent, "blocks": blocks});
    json!({"event_id": id, "attention_dp_rank": rank, "window_size": 4096, "data": data})
}

fn removed(id: u64, rank: u16, block: u32) -> Value {
    let data = json!({"type": "removed", "block_hashes": [100 + block]});
    json!({"event_id": id, "attention_dp_rank": rank, "window_size": 4096, "data": data})
}

#[tokio::test]
async fn each_rank_hears_of_its_own_events() {
    let bed = Bed::start(2).await;
    bed.give(&[stored(0, 0, 0), stored(0, 1, 0), stored(1, 1, 1), stored(7, 5, 0)]);
    bed.give(&[stored(1, 0, 1), removed(2, 0, 1)]);
    bed.until(1, |state| state.known && state.holds(&chain(2))).await;
    bed.until(0, |state| state.known && state.holds(&chain(1))).await;
    assert!(bed.indexes.iter().all(|index| index.0.lock().lives.len() == 1));
}

#[tokio::test]
async fn after_a_lost_event_everything_is_forgotten() {
    let bed = Bed::start(1).await;
    bed.give(&[stored(0, 0, 0), stored(1, 0, 1)]);
    bed.until(0, |state| state.holds(&chain(2))).await;
    // The removal of block 0 may have been in it.
    bed.give(&[stored(3, 0, 2)]);
    bed.until(0, |state| state.holds(&[])).await;
    bed.give(&[stored(4, 0, 0)]);
    bed.until(0, |state| state.known && state.holds(&chain(1))).await;
    assert_eq!(bed.indexes[0].0.lock().lives.len(), 1);
}

#[tokio::test]
async fn numbers_that_start_again_and_lost_connections_are_other_lives() {
    let bed = Bed::start(1).await;
    bed.give(&[stored(0, 0, 0), stored(1, 0, 1)]);
    bed.until(0, |state| state.holds(&chain(2))).await;
    bed.give(&[stored(0, 0, 0)]);
    bed.until(0, |state| state.lives.len() == 2 && state.holds(&chain(1))).await;
    bed.lists.lock().extend(["break".to_owned(), "break".to_owned()]);
    bed.until(0, |state| state.lives.len() == 3 && state.holds(&[])).await;
    bed.give(&[stored(1, 0, 0)]);
    bed.until(0, |state| state.known && state.holds(&chain(1))).await;
}

#[tokio::test]
async fn lists_and_events_that_cannot_be_read_are_as_good_as_lost() {
    let bed = Bed::start(1).await;
    bed.give(&[stored(0, 0, 0)]);
    bed.until(0, |state| state.holds(&chain(1))).await;
    bed.lists.lock().extend(["null".to_owned(), "{".to_owned()]);
    bed.give(&[json!({"event_id": "x"}), json!({"event_id": 1, "data": {"type": "removed"}})]);
    bed.until(0, |state| state.holds(&[])).await;
    bed.give(&[stored(2, 0, 0), json!({"event_id": 3, "data": {"type": "new"}}), stored(4, 0, 1)]);
    bed.until(0, |state| state.known && state.holds(&chain(2))).await;
}
