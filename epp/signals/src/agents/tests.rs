//! Agent feeds against a real agent with a simulated engine, over real sockets on free ports.

use super::*;
use crate::scrape::tests::endpoint;
use crate::testkit::{Agent, POISON, until};
use rcgen::{CertificateParams, KeyPair};
use stator_epp_scheduler::EngineLoad;
use stator_placement::profile::ANSWERS;
use stator_placement::{Adapter, Label};
use stator_protos::WorkerId;
use stator_protos::discovery::WorkerRecord;
use stator_protos::worker::{Sampling, Submit};
use stator_runtime::dial::{Dial, DialArgs};
use std::collections::BTreeSet;
use tokio::net::TcpListener;

/// What a pool would know of its endpoints.
#[derive(Debug, Default)]
struct Ear(Mutex<FxHashMap<WorkerRank, Known>>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    /// Lives of the worker, each once, in the order in which they were announced.
    lives: Vec<Generation>,
    accepting: Option<bool>,
    loads: u32,
    unknown_loads: u32,
    followed: bool,
    blocks: BTreeSet<u64>,
    equipment: Equipment,
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
    fn agent_equipment(&self, worker: WorkerRank, equipment: Equipment) {
        self.with(worker, |known| known.equipment = equipment);
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
        // The same life is announced again when a connection or the record changes.
        self.with(worker, |known| {
            if known.lives.last() != Some(&generation) {
                known.lives.push(generation);
            }
        });
    }
}

fn feeds(block_size: u32) -> (AgentFeeds, Arc<Ear>, SignalMetrics) {
    feeds_over(block_size, Dial::default())
}

/// Feeds that reach agents in this way.
fn feeds_over(block_size: u32, dial: Dial) -> (AgentFeeds, Arc<Ear>, SignalMetrics) {
    let ear = Arc::new(Ear::default());
    let block_size = NonZeroU32::new(block_size).expect("not 0");
    let client = ClientSettings { dial, ..ClientSettings::default() };
    let retry = Duration::from_millis(10);
    let settings = AgentSettings { retry, client, ..AgentSettings::new(block_size) };
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

    let cache = Some(CacheConfig { block_size: 16, blocks: 4096 });
    let equipment = ear.known(first).equipment;
    assert_eq!((equipment.lora, equipment.cache), (None, cache));
    assert!(equipment.worker.is_some());

    // The agent's second worker computes a prompt.
    let (client, record) = connect(&agent).await;
    let _stream = client.submit(submit(&record, 1, (1..65).collect()));
    until("its blocks are there", || ear.known(second).blocks.len() >= 4).await;
    assert_eq!(ear.known(first).blocks.len(), 0);
    assert_eq!(ear.known(second).lives.last(), Some(&record.workers[1].generation));

    agent.stop().await;
    until("it takes nothing more", || ear.known(first).accepting == Some(false)).await;
}

/// A client of the agent, and what the agent says of itself.
async fn connect(agent: &Agent) -> (AgentClient, AgentRecord) {
    let at = format!("http://{}", agent.address);
    let client = AgentClient::connect(&at, &ClientSettings::default()).expect("an address");
    let record = client.describe().await.expect("a record");
    let _ = client.links_up().wait_for(|up| *up > 0).await;
    (client, record)
}

/// A prompt for the agent's n-th worker.
fn submit(record: &AgentRecord, place: usize, token_ids: Vec<u32>) -> Submit {
    let worker = record.workers[place].worker;
    Submit {
        worker_id: worker.worker.0,
        rank: worker.rank.into(),
        token_ids,
        sampling: Some(Sampling { max_tokens: 2, ..Sampling::default() }),
        ..Submit::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_dies_takes_nothing_and_its_neighbour_goes_on() {
    let agent = Agent::start().await;
    let (feeds, ear, metrics) = feeds(16);
    let endpoints = [pod(agent.address, 0), pod(agent.address, 1)];
    let [first, second] = [endpoints[0].worker, endpoints[1].worker];
    feeds.follow(&endpoints);
    let accepts = |worker| ear.known(worker).accepting == Some(true);
    until("both accept", || accepts(first) && accepts(second)).await;

    let (client, record) = connect(&agent).await;
    let _stream = client.submit(submit(&record, 0, POISON.to_vec()));
    until("the first is known to be down", || ear.known(first).accepting == Some(false)).await;
    let _stream = client.submit(submit(&record, 1, (1..65).collect()));
    until("the second computes", || ear.known(second).blocks.len() >= 4).await;
    assert!(accepts(second));
    assert_eq!(ear.known(second).lives, [record.workers[1].generation]);

    let _stream = client.submit(submit(&record, 1, POISON.to_vec()));
    until("the second is known to be down", || ear.known(second).accepting == Some(false)).await;
    // Who comes later hears the same.
    let (late, heard, _) = self::feeds(16);
    late.follow(&endpoints[..1]);
    until("it is told of", || heard.known(first).accepting == Some(false)).await;
    for metrics in [metrics.agents_failed.get(), metrics.agents_unfollowed.get() as u64] {
        assert_eq!(metrics, 0, "an agent whose engine is down is followed");
    }
    agent.stop().await;
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
async fn an_agent_with_other_blocks_or_too_few_workers_is_not_followed_and_told_of() {
    let agent = Agent::start().await;
    for (block_size, rank) in [(32, 0), (16, 7)] {
        let (feeds, ear, metrics) = feeds(block_size);
        let endpoint = pod(agent.address, rank);
        feeds.follow(std::slice::from_ref(&endpoint));
        until("it is told of", || feeds.unfollowed().borrow().contains(&endpoint.worker)).await;
        assert!(metrics.agents_failed.get() > 0);
        assert_eq!(metrics.agents_unfollowed.get(), 1);
        assert_eq!(ear.known(endpoint.worker), Known::default());
        until("it is forgotten", || {
            feeds.follow(&[]);
            feeds.unfollowed().borrow().is_empty() && metrics.agents_unfollowed.get() == 0
        })
        .await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_silent_is_told_of_until_it_answers() {
    let agent = Agent::start().await;
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let nobody = free.local_addr().expect("it is bound");
    drop(free);
    let (feeds, ear, _) = feeds(16);
    feeds.follow(&[pod(nobody, 0)]);
    let worker = pod(nobody, 0).worker;
    until("it is told of", || feeds.unfollowed().borrow().contains(&worker)).await;
    // The same pod, whose agent is elsewhere.
    feeds.follow(&[pod(agent.address, 0)]);
    until("it is followed", || ear.known(worker).followed).await;
    assert!(feeds.unfollowed().borrow().is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_over_tls_is_followed_by_who_trusts_its_authority() {
    stator_runtime::tls::install_provider();
    let (folder, key) = (tempfile::tempdir().expect("a folder"), KeyPair::generate());
    let key = key.expect("a key");
    let named = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address");
    let certificate = named.self_signed(&key).expect("a certificate");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("tls.crt"), certificate.pem()).expect("it is written");
    std::fs::write(path("tls.key"), key.serialize_pem()).expect("it is written");
    let flag = format!("--request-tls-cert-dir={}", folder.path().display());
    let agent = Agent::start_with(&[flag]).await;

    let trusts = DialArgs { request_tls_ca_file: Some(path("tls.crt")), ..DialArgs::default() };
    let dial = trusts.dial().expect("the file is there");
    let (feeds, ear, metrics) = feeds_over(16, dial.clone());
    let endpoint = pod(agent.address, 0);
    feeds.follow(std::slice::from_ref(&endpoint));
    until("it is followed", || ear.known(endpoint.worker).followed).await;
    assert_eq!(metrics.agents_unfollowed.get(), 0);

    let (plain, _, _) = self::feeds(16);
    plain.follow(std::slice::from_ref(&endpoint));
    until("it is told of", || plain.unfollowed().borrow().contains(&endpoint.worker)).await;
    agent.stop().await;
}

#[test]
fn what_an_agent_has_is_what_its_record_says() {
    let adapters = vec!["sql".to_owned(), "poems".to_owned()];
    let profile = |adapters: &[String], max_adapters| ProfileRecord {
        adapters: adapters.to_vec(),
        max_adapters,
        ..ProfileRecord::default()
    };
    let lora = |running: &[String], max| {
        Some(Lora { max, running: running.to_vec(), waiting: Vec::new() })
    };
    let cache = Some(CacheConfig { block_size: 16, blocks: 100 });
    let of = |record: &ProfileRecord, total_blocks| {
        let worker = WorkerRank { worker: WorkerId(7), rank: 0 };
        let worker = WorkerRecord { worker, generation: Generation(1), total_blocks };
        equipment(record, &Worker::new(&worker, true), 16)
    };
    let check = |record: &ProfileRecord, blocks, lora, cache| {
        let equipment = of(record, blocks);
        assert_eq!((equipment.lora, equipment.cache), (lora, cache));
    };
    check(&profile(&adapters, 4), 100, lora(&adapters, 4), cache);
    check(&profile(&adapters, 0), 0, lora(&adapters, 0), None);
    check(&profile(&[], 4), 100, lora(&[], 4), cache);
    check(&profile(&[], 0), 100, None, cache);
    let record = ProfileRecord { labels: vec!["pool=batch".into()], ..profile(&adapters, 4) };
    let equipment = of(&record, 100);
    assert_eq!(equipment.worker, Some(WorkerRank { worker: WorkerId(7), rank: 0 }));
    assert_eq!(equipment.profile.labels, ["pool=batch", ANSWERS].map(Label::new));
    assert_eq!(equipment.profile.adapters, ["sql", "poems"].map(Adapter::new));
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
