//! Engine feeds against a publisher on a free port.

use super::*;
use crate::scrape::tests::endpoint;
use crate::testkit::DEADLINE;
use stator_fleet::KvSink;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::kv_event::{KvEvent, Medium, Stored, encode};
use stator_protos::{Generation, WorkerRank};
use std::collections::BTreeSet;
use std::time::Duration;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

const BLOCK: NonZeroU32 = NonZeroU32::new(4).expect("not 0");

/// What one worker was said to hold.
#[derive(Default)]
struct Ear(Mutex<(Option<WorkerRank>, BTreeSet<u64>)>);

impl KvSink for Ear {
    fn apply(&self, _: WorkerRank, _: Generation, events: &[KvEvent]) {
        for event in events {
            let KvEvent::Stored(stored) = event else { continue };
            self.0.lock().1.extend(&stored.hashes);
        }
    }
    fn replace(&self, _: WorkerRank, _: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        self.0.lock().1 = blocks.into_iter().map(|(hash, _)| hash.0).collect();
    }
    fn unknown(&self, _: WorkerRank) {
        self.0.lock().1.clear();
    }
}

impl WorkerSink for Ear {
    fn life(&self, worker: WorkerRank, _: Generation) {
        self.0.lock().0 = Some(worker);
    }
}

fn settings() -> EngineSettings {
    EngineSettings { topic: "kv@".into(), ..EngineSettings::new(BLOCK) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_followed_and_counted_by_name() {
    let mut publisher = PubSocket::new();
    let at = publisher.bind("tcp://127.0.0.1:0").await.expect("a port").to_string();
    let port = at.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let settings = EngineSettings { port: Some(port), ..settings() };
    check_followed(async { publisher }, settings, "kv@pod").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_connect_are_followed_by_the_name_in_their_topics() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = format!("ipc://{}", directory.path().join("events").display());
    let mut publisher = PubSocket::new();
    let connecting = at.clone();
    let connected = tokio::spawn(async move {
        let begin = std::time::Instant::now();
        // The picker listens in a moment.
        while publisher.connect(&connecting).await.is_err() {
            assert!(begin.elapsed() < DEADLINE, "nobody listens");
            tokio::task::yield_now().await;
        }
        publisher
    });
    let settings = EngineSettings { port: None, bind: Some(at), ..settings() };
    let publisher = async { connected.await.expect("it connects") };
    check_followed(publisher, settings, "kv@127.0.0.1:1").await;
}

/// What an engine publishes is known, and counted.
async fn check_followed(
    publisher: impl Future<Output = PubSocket>,
    settings: EngineSettings,
    engine_topic: &str,
) {
    let (ear, metrics) = (Arc::new(Ear::default()), SignalMetrics::default());
    let feeds = EngineFeeds::new(settings, ear.clone(), metrics.clone());
    let engine = Arc::new(endpoint("127.0.0.1:1", &[]));
    feeds.follow(std::slice::from_ref(&engine));
    let mut publisher = publisher.await;
    let tokens: Vec<u32> = (0..4).collect();
    let mut ours = Vec::new();
    sequence_hashes(&tokens, BLOCK, HashSeed::default(), &mut ours);
    let (begin, mut number) = (std::time::Instant::now(), 0u64);
    // A publisher that never pauses never sees who subscribed.
    let mut steps = tokio::time::interval(Duration::from_millis(1));
    while ear.0.lock().1 != BTreeSet::from([ours[0].0]) {
        assert!(begin.elapsed() < DEADLINE, "waited in vain: {:?}", ear.0.lock());
        let stored = Stored {
            hashes: vec![7],
            parent: None,
            tokens: tokens.clone(),
            block_size: 4,
            medium: Medium::Device,
            lora_name: None,
        };
        let mut payload = Vec::new();
        encode(0.0, &[KvEvent::Stored(stored)], None, &mut payload);
        let mut message = ZmqMessage::from(format!("{engine_topic}@model"));
        message.push_back(number.to_be_bytes().to_vec().into());
        message.push_back(payload.into());
        publisher.send(message).await.expect("published");
        number += 1;
        steps.tick().await;
    }
    assert_eq!(ear.0.lock().0, Some(engine.worker));
    let counted = metrics.feeds().expect("events are followed");
    assert_eq!(&*counted.engines[0].pod, "default/pod-rank-0");
    assert!(counted.engines[0].messages > 0 && metrics.follow.batches.get() > 0);
}

#[test]
fn each_rank_has_ports_of_its_own() {
    let settings = EngineSettings { replay_port: Some(6557), ..settings() };
    let feeds = EngineFeeds::new(settings, Arc::new(Ear::default()), SignalMetrics::default());
    let mut third = endpoint("[fd00::7]:8000", &[]);
    third.worker.rank = 2;
    let plan = feeds.plan(&third);
    let subscription = plan.subscription.expect("engines are connected to");
    assert_eq!(subscription.endpoint, "tcp://[fd00::7]:5559");
    assert_eq!(plan.replay_endpoint.as_deref(), Some("tcp://[fd00::7]:6559"));
}
