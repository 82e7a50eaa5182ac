use super::own::TierOrder;
use super::*;
use crate::config::{KvDiskSettings, KvTierSettings};
use crate::kv::lending::KvLending;
use crate::kv::peers::{KvHolder, KvPeers};
use stator_engine::cpu::{self, CpuEngine};
use stator_engine::model_files::ModelFiles;
use stator_engine::{AnswerRules, Engine, EngineOptions, Request, RequestKey, Step};
use stator_kv::metrics::KvMetrics;
use stator_kv::transfer::FleetKey;
use stator_protos::hash::name_hash;
use stator_protos::load::PeerCost;
use stator_protos::worker::Sampling;
use stator_runtime::metrics::Metrics;
use std::path::Path;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Longest wait of a test for news.
const DEADLINE: Duration = Duration::from_secs(20);

/// An engine for the model in this repository, with a driver's side that steps it.
pub(super) struct TieredWorker {
    engine: CpuEngine,
    tiers: Option<WorkerTiers>,
}

fn options() -> EngineOptions {
    EngineOptions { total_blocks: 12, ..EngineOptions::default() }
}

fn engine() -> CpuEngine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tiny-model");
    let model = cpu::Model::load(&ModelFiles::open(&folder).unwrap()).unwrap();
    cpu::engine(Arc::new(model), options()).unwrap()
}

fn settings(disk: Option<&Path>) -> KvTierSettings {
    let disk = disk.map(|dir| KvDiskSettings {
        dir: dir.into(),
        bytes: 64 << 20,
        write_bytes_per_s: None,
    });
    KvTierSettings {
        host_bytes: 8 << 20,
        disk,
        object: None,
        nixl: None,
        key: None,
        tenant_share_percent: None,
        has_dynamo_names: false,
        socket_dir: None,
    }
}

/// Workers that share tiers.
fn workers(count: usize, settings: KvTierSettings) -> Vec<TieredWorker> {
    counted_workers(count, settings, KvMetrics::default())
}

/// As [`workers`], whose tiers count in `metrics`.
fn counted_workers(
    count: usize,
    settings: KvTierSettings,
    metrics: KvMetrics,
) -> Vec<TieredWorker> {
    let desk = TierDesk::default();
    let order = TierOrder { settings, metrics, object_key: None, peers: None, desk };
    let engines = (0..count).map(|_| engine()).collect();
    let (engines, tiers) = order.connect(engines, &options()).unwrap();
    let pairs = engines.into_iter().zip(tiers);
    pairs.map(|(engine, tiers)| TieredWorker { engine, tiers: Some(tiers) }).collect()
}

/// A worker that exchanges KV with those of the same secret, and where it lends its own.
async fn exchanging_worker(secret: &[u8]) -> (TieredWorker, String) {
    exchanging_worker_with(engine(), secret).await
}

/// As [`exchanging_worker`], with this engine.
pub(super) async fn exchanging_worker_with(
    engine: CpuEngine,
    secret: &[u8],
) -> (TieredWorker, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let lending = KvLending::new(listener, None).unwrap();
    let peers = KvPeers::new(FleetKey::of_secret(secret), Some(lending), None);
    let order = TierOrder {
        settings: settings(None),
        metrics: KvMetrics::default(),
        object_key: None,
        peers: Some(peers),
        desk: TierDesk::default(),
    };
    let (mut engines, mut tiers) = order.connect(vec![engine], &options()).unwrap();
    (TieredWorker { engine: engines.remove(0), tiers: tiers.pop() }, address)
}

impl TieredWorker {
    /// The greedy answer to a prompt, and how many of its tokens were cached.
    pub(super) async fn answer(&mut self, tokens: &[u32]) -> (Vec<u32>, u32) {
        self.answer_near(tokens, &[]).await
    }

    /// Answers a prompt that other agents are said to hold.
    async fn answer_near(&mut self, tokens: &[u32], holders: &[KvHolder]) -> (Vec<u32>, u32) {
        let sampling = Sampling { max_tokens: 6, ignore_eos: true, ..Sampling::neutral() };
        let mut request = Request {
            key: RequestKey(1),
            tokens: tokens.to_vec(),
            resumed: 0,
            first_choice: 0,
            choices: 1,
            sampling: Arc::new(sampling),
            cache_salt: None,
            named: None,
            rules: AnswerRules::default(),
        };
        if let (Some(tiers), false) = (&self.tiers, holders.is_empty()) {
            self.engine.kv().reusable(&mut request);
            tiers.hint_blocks(request.named.as_ref().unwrap(), holders);
        }
        self.engine.submit(request).unwrap();
        let (mut step, mut answer) = (Step::default(), Vec::new());
        loop {
            step.clear();
            self.engine.step(&mut step);
            for output in &step.outputs {
                answer.extend(&output.tokens);
                if let Some(finish) = output.finish {
                    return (answer, finish.cached_tokens);
                }
            }
            match &mut self.tiers {
                Some(tiers) => {
                    tiers.close(&mut step.events);
                    if !step.ran {
                        timeout(DEADLINE, tiers.news()).await.expect("news in time");
                    }
                }
                None => assert!(step.ran, "a lone engine never waits"),
            }
        }
    }

    /// Waits until so many blocks are published as on a medium.
    async fn publishes(&mut self, medium: Medium, count: usize) {
        let tiers = self.tiers.as_mut().unwrap();
        let published = async {
            loop {
                tiers.close(&mut Vec::new());
                let on = tiers.blocks().into_iter().filter(|(_, on)| *on == medium);
                if on.count() >= count {
                    return;
                }
                tiers.news().await;
            }
        };
        timeout(DEADLINE, published).await.expect("published in time");
    }
}

fn prompt(start: u32) -> Vec<u32> {
    (start..start + 100).map(|i| 10 + i * 7 % 200).collect()
}

async fn lone(tokens: &[u32]) -> Vec<u32> {
    TieredWorker { engine: engine(), tiers: None }.answer(tokens).await.0
}

#[tokio::test]
async fn workers_of_an_agent_share_what_each_has_computed() {
    let mut workers = workers(2, settings(None));
    let (first, second) = (prompt(0), prompt(3));
    assert_eq!(workers[0].answer(&first).await, (lone(&first).await, 0));
    workers[0].publishes(Medium::Device, 6).await;
    // The cache tells all drivers.
    workers[1].publishes(Medium::Host, 6).await;
    assert_eq!(workers[1].answer(&first).await, (lone(&first).await, 96));
    // Twelve blocks have no room for both.
    assert_eq!(workers[1].answer(&second).await, (lone(&second).await, 0));
    assert_eq!(workers[1].answer(&first).await, (lone(&first).await, 96));
}

#[tokio::test]
async fn blocks_on_a_disk_outlive_the_process_and_are_published_again() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = prompt(0);
    {
        let (metrics, page) = (KvMetrics::default(), Metrics::default());
        page.register(|registry| metrics.register(registry));
        let mut workers = counted_workers(1, settings(Some(folder.path())), metrics);
        workers[0].answer(&tokens).await;
        // Only what is on the disk when the process ends can be there afterwards.
        let written = async {
            while !page.render().contains(r#"tier="disk",way="write",outcome="done"} 6"#) {
                workers[0].tiers.as_ref().unwrap().news().await;
            }
        };
        timeout(DEADLINE, written).await.expect("written in time");
    }
    let mut workers = workers(1, settings(Some(folder.path())));
    workers[0].publishes(Medium::Disk, 6).await;
    assert_eq!(workers[0].answer(&tokens).await, (lone(&tokens).await, 96));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reads_what_another_agent_holds_and_publishes_it_when_it_has_it() {
    let (mut holder, address) = exchanging_worker(b"secret").await;
    let (mut reader, _) = exchanging_worker(b"secret").await;
    let tokens = prompt(0);
    let expected = lone(&tokens).await;
    assert_eq!(holder.answer(&tokens).await, (expected.clone(), 0));
    let at = |address: &str, blocks| KvHolder { address: address.into(), blocks };
    // Two of its blocks are read; a third is said to be somewhere else, and is not.
    let holders = [at(&address, 2), at("127.0.0.1:1", 3)];
    let (answer, cached) = reader.answer_near(&tokens, &holders).await;
    assert_eq!((answer, cached), (expected.clone(), 32));
    reader.publishes(Medium::Device, 6).await;
    let tiers = reader.tiers.as_ref().unwrap();
    let blocks = tiers.blocks();
    assert!(blocks.iter().all(|(_, medium)| *medium != Medium::Remote), "{blocks:?}");
    // Routers hear what reading from this holder costs, under the name by which they know it.
    let at_holder = |peer: &PeerCost| peer.holder == name_hash(&address) && peer.cost.block_ns > 0;
    let measured = async {
        while !tiers.costs().peers.iter().any(at_holder) {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, measured).await.expect("measured in time");

    let (mut stranger, _) = exchanging_worker(b"another").await;
    let holders = [at(&address, 6)];
    assert_eq!(stranger.answer_near(&tokens, &holders).await, (expected, 0));
}

#[tokio::test]
async fn a_cleared_cache_is_published_and_finds_nothing() {
    let mut workers = workers(1, settings(None));
    let tokens = prompt(0);
    workers[0].answer(&tokens).await;
    workers[0].engine.reset_cache();
    workers[0].tiers.as_ref().unwrap().clear();
    assert_eq!(workers[0].answer(&tokens).await, (lone(&tokens).await, 0));
}

#[test]
fn tiers_without_room_for_a_block_are_refused_in_words() {
    let settings = KvTierSettings { host_bytes: 100, ..settings(None) };
    let (metrics, desk) = (KvMetrics::default(), TierDesk::default());
    let order = TierOrder { settings, metrics, object_key: None, peers: None, desk };
    let error = order.connect(vec![engine()], &options()).err().unwrap().to_string();
    assert!(error.starts_with("kv-host-gb: 100 bytes have no room for a block of "), "{error}");
}
