//! Engine feeds against publishers on free ports.

use super::*;
use crate::scrape::tests::{endpoint, server, with_length};
use crate::scrape::{Mappings, ScrapeSettings};
use crate::testkit::DEADLINE;
use stator_events::KvSink;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::kv_event::{KvEvent, Medium, Stored, encode};
use stator_protos::{Generation, WorkerRank};
use stator_zmtp::Publisher;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

const BLOCK: NonZeroU32 = NonZeroU32::new(4).expect("not 0");

/// What one worker was said to hold.
#[derive(Default)]
struct Ear(Mutex<(Option<WorkerRank>, BTreeSet<u64>)>);

impl KvSink for Ear {
    fn apply(&self, _: WorkerRank, _: Generation, events: &[KvEvent]) {
        let blocks = &mut self.0.lock().1;
        for event in events {
            match event {
                KvEvent::Stored(stored) => blocks.extend(&stored.hashes),
                KvEvent::Removed(gone) => blocks.retain(|hash| !gone.hashes.contains(hash)),
                KvEvent::Cleared => blocks.clear(),
            }
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

/// A rank that publishes.
struct Rank {
    publisher: Publisher,
    /// Of its next message.
    number: u64,
}

impl Rank {
    fn new(publisher: Publisher) -> Self {
        Self { publisher, number: 0 }
    }

    /// At a port; 0 is any. `None` where it is taken.
    async fn bind(port: u16) -> Option<(Self, u16)> {
        let publisher = Publisher::bind(&format!("tcp://127.0.0.1:{port}")).await.ok()?;
        let port = publisher
            .endpoint()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        Some((Self::new(publisher), port))
    }

    /// Publishes that it holds the block of these tokens.
    fn store(&mut self, topic: &str, token: u32) {
        let stored = Stored {
            hashes: vec![token.into()],
            parent: None,
            tokens: tokens(token),
            block_size: 4,
            medium: Medium::Device,
            lora_name: None,
        };
        let mut payload = Vec::new();
        encode(0.0, &[KvEvent::Stored(stored)], None, &mut payload);
        let number = self.number.to_be_bytes().to_vec();
        self.publisher.publish(&[topic.to_owned().into(), number.into(), payload.into()]);
        self.number += 1;
    }
}

fn tokens(token: u32) -> Vec<u32> {
    vec![token; 4]
}

/// Our names of the blocks of these tokens.
fn blocks(of: &[u32]) -> BTreeSet<u64> {
    let block = |token: &u32| {
        let mut ours = Vec::new();
        sequence_hashes(&tokens(*token), BLOCK, HashSeed::default(), &mut ours);
        ours[0].0
    };
    of.iter().map(block).collect()
}

/// Ranks publish their blocks, of one token each, until the worker is said to hold all of these
/// and nothing else.
async fn publish_until_held(ear: &Ear, topic: &str, ranks: &mut [(&mut Rank, u32)]) {
    let expected = blocks(&ranks.iter().map(|(_, token)| *token).collect::<Vec<_>>());
    let begin = std::time::Instant::now();
    // A publisher that never pauses never sees who subscribed.
    let mut steps = tokio::time::interval(Duration::from_millis(1));
    while ear.0.lock().1 != expected {
        assert!(begin.elapsed() < DEADLINE, "waited in vain: {:?}", ear.0.lock());
        for (rank, token) in &mut *ranks {
            rank.store(topic, *token);
        }
        steps.tick().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_are_followed_and_counted_by_name() {
    let (rank, port) = Rank::bind(0).await.expect("a free port");
    let settings = EngineSettings { port: Some(port), ..settings() };
    check_followed(async { rank.publisher }, settings, "kv@pod").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_connect_are_followed_by_the_name_in_their_topics() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = format!("ipc://{}", directory.path().join("events").display());
    let connecting = at.clone();
    let connected = tokio::spawn(async move {
        let begin = std::time::Instant::now();
        // The picker listens in a moment.
        loop {
            if let Ok(publisher) = Publisher::connect(&connecting).await {
                return publisher;
            }
            assert!(begin.elapsed() < DEADLINE, "nobody listens");
            tokio::task::yield_now().await;
        }
    });
    let settings = EngineSettings { port: None, bind: Some(at), ..settings() };
    let publisher = async { connected.await.expect("it connects") };
    check_followed(publisher, settings, "kv@127.0.0.1:1").await;
}

/// What an engine publishes is known, and counted.
async fn check_followed(
    publisher: impl Future<Output = Publisher>,
    settings: EngineSettings,
    engine_topic: &str,
) {
    let (ear, metrics) = (Arc::new(Ear::default()), SignalMetrics::default());
    let feeds = EngineFeeds::new(settings, ear.clone(), metrics.clone());
    let engine = Arc::new(endpoint("127.0.0.1:1", &[]));
    feeds.follow(std::slice::from_ref(&engine));
    let mut rank = Rank::new(publisher.await);
    let topic = format!("{engine_topic}@model");
    publish_until_held(&ear, &topic, &mut [(&mut rank, 1)]).await;
    assert_eq!(ear.0.lock().0, Some(engine.worker));
    let counted = metrics.feeds().expect("events are followed");
    assert_eq!(&*counted.engines[0].pod, "default/pod-rank-0");
    assert!(counted.engines[0].messages > 0 && metrics.follow.batches.get() > 0);
}

const TWO_RANKS: &str = "vllm:num_requests_running{engine=\"0\"} 0\n\
                         vllm:num_requests_running{engine=\"1\"} 0\n";

/// Two ranks, on ports that follow each other; the first port.
async fn neighbours() -> ([Rank; 2], u16) {
    for _ in 0..64 {
        let (first, port) = Rank::bind(0).await.expect("a free port");
        if let Some((second, _)) = Rank::bind(port.saturating_add(1)).await {
            return ([first, second], port);
        }
    }
    panic!("no two free ports follow each other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_behind_one_port_are_one_endpoint_and_forget_each_for_itself() {
    let ([mut first, mut second], port) = neighbours().await;
    let engine = server(|_| Some(with_length(TWO_RANKS))).await;
    let pages = Some((ScrapeSettings::default(), Mappings::default()));
    let settings = EngineSettings { port: Some(port), pages, ..settings() };
    let (ear, metrics) = (Arc::new(Ear::default()), SignalMetrics::default());
    let feeds = EngineFeeds::new(settings, ear.clone(), metrics.clone());
    feeds.follow(std::slice::from_ref(&engine));
    let topic = "kv@pod@model";
    publish_until_held(&ear, topic, &mut [(&mut first, 1), (&mut second, 2)]).await;
    assert_eq!(ear.0.lock().0, Some(engine.worker));

    // Another life of the second alone, of which its number tells.
    second.number = 0;
    publish_until_held(&ear, topic, &mut [(&mut first, 1), (&mut second, 3)]).await;
    // A gap of the first alone, which nobody fills.
    first.number += 10;
    publish_until_held(&ear, topic, &mut [(&mut first, 4), (&mut second, 3)]).await;

    let counted = metrics.feeds().expect("events are followed");
    assert_eq!(counted.engines.len(), 1);
    assert_eq!(counted.capacity, 2 * NEWS_MAX);
}

#[test]
fn only_an_engine_with_one_port_is_asked_for_ranks() {
    let pages = Some((ScrapeSettings::default(), Mappings::default()));
    let check = |settings: EngineSettings, labels: &[(&str, &str)], has_one_port, expected| {
        let feeds = EngineFeeds::new(settings, Arc::new(Ear::default()), SignalMetrics::default());
        let plan = feeds.plan(&endpoint("10.0.0.1:8000", labels), has_one_port);
        assert_eq!(plan.page.is_some(), expected, "{labels:?} {has_one_port}");
    };
    let asking = EngineSettings { pages: pages.clone(), ..settings() };
    check(asking.clone(), &[], true, true);
    check(asking.clone(), &[("llm-d.ai/engine-type", "sglang")], true, true);
    check(asking.clone(), &[("llm-d.ai/engine-type", "triton")], true, false);
    check(asking.clone(), &[], false, false);
    check(settings(), &[], true, false);
    check(EngineSettings { port: None, ..asking }, &[], true, false);
}

#[test]
fn each_rank_has_ports_of_its_own() {
    let settings = EngineSettings { replay_port: Some(6557), ..settings() };
    let feeds = EngineFeeds::new(settings, Arc::new(Ear::default()), SignalMetrics::default());
    let mut third = endpoint("[fd00::7]:8000", &[]);
    third.worker.rank = 2;
    let plan = feeds.plan(&third, false);
    let subscription = plan.subscription.expect("engines are connected to");
    assert_eq!(subscription.endpoint, "tcp://[fd00::7]:5559");
    assert_eq!(plan.replay_endpoint.as_deref(), Some("tcp://[fd00::7]:6559"));
}
