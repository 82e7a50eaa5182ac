//! Agent feeds against a real agent with a simulated engine, over real sockets on free ports.

use super::*;
use crate::scrape::tests::endpoint;
use crate::testkit::{Agent, until};
use stator_epp_scheduler::EngineLoad;
use stator_protos::worker::{Sampling, Submit};
use std::collections::BTreeSet;

/// What a pool would know of its endpoints.
#[derive(Debug, Default)]
struct Ear(Mutex<FxHashMap<WorkerRank, Known>>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    lives: Vec<Generation>,
    accepting: Option<bool>,
    loads: u32,
    unknown_loads: u32,
    followed: bool,
    blocks: BTreeSet<u64>,
}

impl Ear {
    fn with(&self, worker: WorkerRank, change: impl FnOnce(&mut Known)) {
        change(self.0.lock().entry(worker).or_default());
    }

    fn known(&self, worker: WorkerRank) -> Known {
        self.0.lock().get(&worker).cloned().unwrap_or_default()
    }
}

impl LoadSink for Ear {
    fn load(&self, _: WorkerRank, _: &EngineLoad) {
        panic!("agents have no metrics page");
    }
    fn load_unknown(&self, worker: WorkerRank) {
        self.with(worker, |known| known.unknown_loads += 1);
    }
    fn agent_load(&self, worker: WorkerRank, generation: Generation, _: Load) {
        self.with(worker, |known| {
            assert_eq!(known.lives.last(), Some(&generation));
            known.loads += 1;
        });
    }
    fn accepting(&self, worker: WorkerRank, accepting: bool) {
        self.with(worker, |known| known.accepting = Some(accepting));
    }
}

impl KvSink for Ear {
    fn apply(&self, worker: WorkerRank, _: Generation, events: &[KvEvent]) {
        self.with(worker, |known| {
            assert!(known.followed, "nothing is applied to what is not known");
            for event in events {
                if let KvEvent::Stored(stored) = event {
                    known.blocks.extend(&stored.hashes);
                }
            }
        });
    }
    fn replace(&self, worker: WorkerRank, _: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        self.with(worker, |known| {
            known.followed = true;
            known.blocks = blocks.into_iter().map(|(hash, _)| hash.0).collect();
        });
    }
    fn unknown(&self, worker: WorkerRank) {
        self.with(worker, |known| {
            known.followed = false;
            known.blocks.clear();
        });
    }
}

impl WorkerSink for Ear {
    fn life(&self, worker: WorkerRank, generation: Generation) {
        self.with(worker, |known| known.lives.push(generation));
    }
}

fn feeds(block_size: u32) -> (AgentFeeds, Arc<Ear>, SignalMetrics) {
    let ear = Arc::new(Ear::default());
    let block_size = NonZeroU32::new(block_size).expect("not 0");
    let settings =
        AgentSettings { poll: Duration::from_millis(10), ..AgentSettings::new(block_size) };
    let metrics = SignalMetrics::default();
    let both = (metrics.clone(), FleetMetrics::default());
    (AgentFeeds::new(settings, ear.clone(), ear.clone(), both), ear, metrics)
}

/// The endpoint at the pod's port `rank`.
fn pod(agent: SocketAddr, rank: u16) -> Arc<Endpoint> {
    let port = agent.port().to_string();
    let mut endpoint = endpoint("127.0.0.1:1", &[(AGENT_PORT_LABEL, &port)]);
    endpoint.worker.rank = rank;
    Arc::new(endpoint)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_worker_is_followed_as_its_endpoint() {
    let agent = Agent::start().await;
    let (feeds, ear, _) = feeds(16);
    let endpoints = [pod(agent.address, 0), pod(agent.address, 1)];
    let [first, second] = [endpoints[0].worker, endpoints[1].worker];
    feeds.follow(&endpoints);
    let ready = |known: Known| known.followed && known.accepting == Some(true) && known.loads > 0;
    until("both are followed", || ready(ear.known(first)) && ready(ear.known(second))).await;

    // The agent's second worker computes a prompt.
    let client =
        AgentClient::connect(&format!("http://{}", agent.address), &ClientSettings::default())
            .expect("an address");
    let record = client.describe().await.expect("a record");
    let _ = client.links_up().wait_for(|up| *up > 0).await;
    let worker = record.workers[1].worker;
    let submit = Submit {
        worker_id: worker.worker.0,
        rank: worker.rank.into(),
        token_ids: (1..65).collect(),
        sampling: Some(Sampling { max_tokens: 2, ..Sampling::default() }),
        ..Submit::default()
    };
    let _stream = client.submit(submit);
    until("its blocks are there", || ear.known(second).blocks.len() >= 4).await;
    assert_eq!(ear.known(first).blocks.len(), 0);
    assert_eq!(ear.known(second).lives.last(), Some(&record.workers[1].generation));

    agent.stop().await;
    until("it takes nothing more", || ear.known(first).accepting == Some(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_leaves_is_followed_no_more() {
    let agent = Agent::start().await;
    let (feeds, ear, _) = feeds(16);
    let endpoint = pod(agent.address, 0);
    feeds.follow(std::slice::from_ref(&endpoint));
    until("it is followed", || ear.known(endpoint.worker).followed).await;
    feeds.follow(&[]);
    until("it is forgotten", || {
        let known = ear.known(endpoint.worker);
        known.unknown_loads == 1 && !known.followed && known.accepting == Some(false)
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_other_blocks_or_too_few_workers_is_not_followed() {
    let agent = Agent::start().await;
    for (block_size, rank) in [(32, 0), (16, 7)] {
        let (feeds, ear, metrics) = feeds(block_size);
        let endpoint = pod(agent.address, rank);
        feeds.follow(std::slice::from_ref(&endpoint));
        until("it was asked", || metrics.agents_failed.get() > 0).await;
        assert_eq!(ear.known(endpoint.worker), Known::default());
    }
    agent.stop().await;
}

#[test]
fn a_label_or_the_settings_name_the_agents_port() {
    let mut settings = AgentSettings::new(NonZeroU32::new(16).expect("not 0"));
    let labelled = |port: &str| endpoint("10.0.0.1:8000", &[(AGENT_PORT_LABEL, port)]);
    let at = |text: &str| Some(text.parse().expect("an address"));
    assert_eq!(settings.agent(&endpoint("10.0.0.1:8000", &[])), None);
    assert_eq!(settings.agent(&labelled("7000")), at("10.0.0.1:7000"));
    settings.port = Some(7001);
    assert_eq!(settings.agent(&endpoint("10.0.0.1:8000", &[])), at("10.0.0.1:7001"));
    assert_eq!(settings.agent(&labelled("none")), None);
    assert_eq!(settings.agent(&labelled("0")), None);
}

#[test]
fn an_agents_sockets_are_reached_where_the_agent_is() {
    let agent = "10.0.0.1:7000".parse().expect("an address");
    for (known_as, expected) in [
        ("tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557"),
        ("tcp://[::]:5557", "tcp://10.0.0.1:5557"),
        ("tcp://some-node:5557", "tcp://10.0.0.1:5557"),
        ("ipc:///tmp/events", "ipc:///tmp/events"),
    ] {
        let mut endpoint = known_as.to_owned();
        reached_at(&mut endpoint, agent);
        assert_eq!(endpoint, expected);
    }
}
