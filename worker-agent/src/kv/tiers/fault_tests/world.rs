//! An engine with tiers, what outlives both, and the faults around them.

use super::damage::Vandal;
use super::faulty_tier::{TierFaults, faulty};
use super::relay::{Fate, Relay};
use crate::kv::peers::{KvHolder, KvPeers};
use crate::kv::tiers::own::block_form;
use crate::kv::tiers::tests::{TieredWorker, exchanging_worker_with};
use crate::kv::tiers::{TierNews, WorkerTiers};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use stator_engine::cpu::{self, CpuEngine};
use stator_engine::model_files::ModelFiles;
use stator_engine::{
    AnswerRules, Engine, EngineOptions, Output, Request, RequestKey, SharedKv, Step, TokenLogprobs,
};
use stator_kv::cache::{CacheSettings, CacheTier, TierOpener, TierPlace, TieredCache};
use stator_kv::cipher::KvKey;
use stator_kv::disk::{DiskSettings, DiskTier};
use stator_kv::metrics::KvMetrics;
use stator_kv::object::{ObjectSettings, ObjectTier};
use stator_kv::store::TierSettings;
use stator_kv::tier::Tier;
use stator_kv::transfer::FleetKey;
use stator_kv::{BlockForm, SlotId};
use stator_protos::kv_event::Medium;
use stator_protos::worker::Sampling;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// A small model of random weights, so that most of the time goes to KV.
const MODEL: &str = "engine/fixtures/qwen3";
/// Blocks of host memory: a few prompts' worth, so that most is read from below.
pub(super) const HOST_SLOTS: u32 = 20;
/// Blocks of the engine's own memory.
const DEVICE_BLOCKS: u32 = 28;
/// Blocks that the disk has room for, about.
const DISK_BLOCKS: u64 = 48;
/// Prompts that differ from their first token on.
const SESSIONS: u32 = 10;
/// Longest prompt, in tokens.
const PROMPT_MAX: u32 = 112;
/// Longest time of a request on a busy machine. The tiers promise two seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Batches of requests of which one meets tiers that stand still, and costs two seconds.
const SLOW_EVERY: usize = 300;
/// The first such batch.
const SLOW_FIRST: usize = 8;
/// Relays that are open at a time.
const RELAYS: usize = 6;
const SECRET: &[u8] = b"correct-horse-battery";

/// The leading tokens of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Prompt {
    pub(super) session: u32,
    pub(super) tokens: u32,
}

impl Prompt {
    fn tokens(self) -> Vec<u32> {
        (0..self.tokens).map(|at| (at * at + at / 3 + self.session * (at + 5)) % 50).collect()
    }
}

/// A greedy answer. Logprobs tell of every bit that was wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
}

/// One life of an agent with one engine.
pub(super) struct Life {
    engine: CpuEngine,
    tiers: WorkerTiers,
    cache: Arc<TieredCache>,
    news: Arc<TierNews>,
    peers: Arc<KvPeers>,
}

impl Life {
    /// Flips a bit of host memory.
    pub(super) fn flip(&self, slot: SlotId, bit: usize) {
        let mut kv = vec![0; self.cache.form().block_bytes];
        self.cache.arena().read(slot, &mut kv);
        kv[bit / 8] ^= 1 << (bit % 8);
        self.cache.arena().write(slot, &kv);
    }

    /// Has the engine look for everything in the tiers again.
    pub(super) fn forget_device(&mut self) {
        self.engine.reset_cache();
    }
}

/// All that outlives an agent.
pub(super) struct World {
    home: TempDir,
    key: Option<KvKey>,
    model: Arc<cpu::Model>,
    form: BlockForm,
    tier_faults: Arc<Mutex<TierFaults>>,
    metrics: KvMetrics,
    _holder: TieredWorker,
    holder_address: String,
    relays: VecDeque<Relay>,
    relay_faults: Arc<AtomicUsize>,
    expected: BTreeMap<Prompt, Answer>,
    vandal: Vandal,
    rng: SmallRng,
    counts: BTreeMap<&'static str, usize>,
    pub(super) requests: usize,
    pub(super) tokens: usize,
    pub(super) cached_tokens: usize,
}

impl World {
    pub(super) async fn new(seed: u64, key: Option<KvKey>) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODEL);
        let model = Arc::new(
            cpu::Model::load(&ModelFiles::open(&folder).expect("the files")).expect("a model"),
        );
        let (mut holder, holder_address) = exchanging_worker_with(engine(&model), SECRET).await;
        for session in 0..SESSIONS {
            holder.answer(&Prompt { session, tokens: PROMPT_MAX }.tokens()).await;
        }
        let form = block_form(SharedKv::form(&engine(&model)));
        Self {
            home: tempfile::tempdir().expect("a folder"),
            key,
            model,
            form,
            tier_faults: Arc::new(Mutex::new(TierFaults::new(!seed))),
            metrics: KvMetrics::default(),
            _holder: holder,
            holder_address,
            relays: VecDeque::new(),
            relay_faults: Arc::default(),
            expected: BTreeMap::new(),
            vandal: Vandal::new(seed ^ 1),
            rng: SmallRng::seed_from_u64(seed),
            counts: BTreeMap::new(),
            requests: 0,
            tokens: 0,
            cached_tokens: 0,
        }
    }

    /// Faults so far, by their places.
    pub(super) fn faults(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = self.counts.clone();
        let tiers = self.tier_faults.lock();
        counts.extend([
            ("refused operation", tiers.refused),
            ("full tier", tiers.full),
            ("slow tier", tiers.late),
            ("peer", self.relay_faults.load(Ordering::Relaxed)),
        ]);
        counts
    }

    /// Blocks that were found to be wrong or gone, by where.
    pub(super) fn met(&self) -> BTreeMap<&'static str, u64> {
        let below = ["disk", "object", "peer"].map(|tier| {
            let read = self.metrics.tier_totals(tier).read;
            (tier, read.corrupt + read.missing + read.failed)
        });
        below.into_iter().chain([("host", self.metrics.hit_totals().corrupt)]).collect()
    }

    /// The answer of an engine without tiers that has computed nothing else.
    pub(super) fn expected(&mut self, prompt: Prompt) -> Answer {
        let model = &self.model;
        self.expected.entry(prompt).or_insert_with(|| lone_answer(engine(model), prompt)).clone()
    }

    /// Begins another life over what the one before left, which may leave blocks unverified.
    pub(super) fn begin_with(&self, is_verified: bool) -> Life {
        let news = Arc::new(TierNews::default());
        let told = news.clone();
        let peers = KvPeers::new(FleetKey::of_secret(SECRET), None, None);
        let tiers = vec![
            faulty(self.disk_tier(), &self.tier_faults),
            peers.tier(&self.metrics),
            faulty(self.object_tier(), &self.tier_faults),
        ];
        let settings = CacheSettings {
            tiers: if is_verified { tiers } else { Vec::new() },
            verify_host: is_verified,
            metrics: self.metrics.clone(),
            events: Arc::new(move |event| told.take_event(&event)),
            ..CacheSettings::new(HOST_SLOTS)
        };
        let cache = TieredCache::open(self.form, settings).expect("a cache");
        let (engine, tiers) = self.connect(&cache, &news, &peers);
        Life { engine, tiers, cache, news, peers }
    }

    fn connect(
        &self,
        cache: &Arc<TieredCache>,
        news: &Arc<TierNews>,
        peers: &Arc<KvPeers>,
    ) -> (CpuEngine, WorkerTiers) {
        let (tiers, worker) = WorkerTiers::connect(cache, news.clone(), 16, 4096);
        let engine = engine(&self.model).with_tiers(Box::new(tiers));
        (engine, worker.with_peers(Some(peers.clone())))
    }

    fn disk_tier(&self) -> CacheTier {
        let bytes = DISK_BLOCKS * (self.form.block_bytes as u64 + 4096);
        let dir = self.home.path().join("disk");
        let settings = DiskSettings { key: self.key.clone(), ..DiskSettings::new(dir, bytes) };
        let open: TierOpener = Box::new(move |TierPlace { form, arena, report }| {
            Ok(Arc::new(DiskTier::open(settings, form, arena, report)?) as Arc<dyn Tier>)
        });
        CacheTier { name: "disk", settings: TierSettings::new(Medium::Disk), open }
    }

    fn object_tier(&self) -> CacheTier {
        let url = format!("file://{}", self.home.path().join("objects").display());
        let mut settings = ObjectSettings::new(url.parse().expect("an address"), Handle::current());
        settings.cipher_key = self.key.clone();
        settings.extent_bytes = 4 * self.form.block_bytes;
        settings.capacity_bytes = Some(120 * self.form.block_bytes as u64);
        settings.times.linger = Duration::from_millis(5);
        settings.times.index_write = Duration::from_millis(100);
        settings.times.index_read = Duration::from_millis(500);
        let open: TierOpener = Box::new(move |TierPlace { form, arena, report }| {
            Ok(Arc::new(ObjectTier::open(settings, form, arena, report)?) as Arc<dyn Tier>)
        });
        CacheTier { name: "object", settings: TierSettings::new(Medium::Remote), open }
    }

    pub(super) async fn run(&mut self, faults: usize) {
        let mut life = self.begin_with(true);
        for batch in 1.. {
            if self.faults().values().sum::<usize>() >= faults {
                return;
            }
            if batch % SLOW_EVERY == SLOW_FIRST {
                // So that something is to be read.
                life.forget_device();
                self.tier_faults.lock().slow_down();
            }
            self.serve(&mut life).await;
            let late = self.tier_faults.lock().speed_up();
            late.into_iter().for_each(|(tier, read)| tier.read(read));
            self.strike_memory(&life);
            if self.rng.random_bool(0.03) {
                self.count("death");
                drop(life);
                if self.vandal.swap_segment(&self.home.path().join("disk")) {
                    self.count("stale segment");
                }
                life = self.begin_with(true);
            }
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// One to three requests at a time, from their submission to their ends.
    async fn serve(&mut self, life: &mut Life) {
        let mut open = BTreeMap::new();
        for key in 0..self.rng.random_range(1..=3) {
            let session = self.rng.random_range(0..SESSIONS);
            let tokens = self.rng.random_range(3..=PROMPT_MAX / 8) * 8;
            open.insert(key, (Prompt { session, tokens }, Answer::default()));
        }
        for (key, (prompt, _)) in &open {
            let mut request = request(*key, *prompt);
            if self.rng.random_bool(0.15) {
                self.hint(life, &mut request).await;
            }
            life.engine.submit(request).expect("it is taken");
        }
        let dies_after = self.rng.random_bool(0.03).then(|| self.rng.random_range(0..6));
        for steps in 0.. {
            if dies_after == Some(steps) {
                self.engine_dies(life, &mut open);
            }
            let has_run = step(life, &mut open, |prompt, answer, cached| {
                assert!(answer == self.expected(prompt), "another answer to {prompt:?}");
                self.requests += 1;
                self.tokens += answer.tokens.len();
                self.cached_tokens += cached as usize;
            });
            if open.is_empty() {
                return;
            }
            self.strike_files();
            if !has_run {
                timeout(PATIENCE, life.tiers.news()).await.expect("every request ends");
            }
        }
    }

    /// The engine ends in the middle of whatever it does, and clients ask another one again.
    fn engine_dies(&mut self, life: &mut Life, open: &mut BTreeMap<u64, (Prompt, Answer)>) {
        self.count("death");
        (life.engine, life.tiers) = self.connect(&life.cache, &life.news, &life.peers);
        for (key, (prompt, answer)) in open {
            *answer = Answer::default();
            life.engine.submit(request(*key, *prompt)).expect("it is taken");
        }
    }

    /// One answer, without faults.
    pub(super) async fn answer(&mut self, life: &mut Life, prompt: Prompt) -> Answer {
        let mut open = BTreeMap::from([(0, (prompt, Answer::default()))]);
        let mut ended = None;
        life.engine.submit(request(0, prompt)).expect("it is taken");
        while ended.is_none() {
            if !step(life, &mut open, |_, answer, _| ended = Some(answer)) {
                timeout(PATIENCE, life.tiers.news()).await.expect("every request ends");
            }
        }
        ended.unwrap_or_default()
    }

    /// Says that a holder behind a bad network has the prompt.
    async fn hint(&mut self, life: &mut Life, request: &mut Request) {
        life.engine.kv().reusable(request);
        let Some(named) = &request.named else { return };
        let blocks = named.keys().len();
        let fate = match self.rng.random_range(0..40) {
            0 => Fate::Stall,
            1..20 => Fate::Cut,
            _ => Fate::Flip,
        };
        let place = self.rng.random_range(0..=blocks * self.form.block_bytes);
        let met = self.relay_faults.clone();
        let relay = Relay::new(&self.holder_address, fate, place, met).await;
        let holder = KvHolder { address: relay.address.to_string(), blocks };
        life.tiers.hint_blocks(named, &[holder]);
        self.relays.push_back(relay);
        if self.relays.len() > RELAYS {
            self.relays.pop_front();
        }
    }

    /// Bits of host memory flip. Nothing runs: a request's blocks are checked when it is given them.
    fn strike_memory(&mut self, life: &Life) {
        for _ in 0..4 {
            let slot = SlotId(self.rng.random_range(0..HOST_SLOTS));
            life.flip(slot, self.rng.random_range(0..self.form.block_bytes * 8));
            self.count("memory");
        }
    }

    fn strike_files(&mut self) {
        let (disk, objects) = (self.home.path().join("disk"), self.home.path().join("objects"));
        for _ in 0..2 {
            if self.rng.random_bool(0.6) && self.vandal.strike_segment(&disk) {
                self.count("disk");
            }
            if self.rng.random_bool(0.4) && self.vandal.strike_object(&objects) {
                self.count("object store");
            }
        }
    }
}

fn engine(model: &Arc<cpu::Model>) -> CpuEngine {
    let options = EngineOptions { total_blocks: DEVICE_BLOCKS, ..EngineOptions::default() };
    cpu::engine(model.clone(), options).expect("an engine")
}

fn request(key: u64, prompt: Prompt) -> Request {
    let sampling =
        Sampling { max_tokens: 6, ignore_eos: true, logprobs: Some(2), ..Sampling::neutral() };
    Request {
        key: RequestKey(key),
        tokens: prompt.tokens(),
        resumed: 0,
        first_choice: 0,
        choices: 1,
        sampling: Arc::new(sampling),
        cache_salt: None,
        named: None,
        rules: AnswerRules::default(),
    }
}

/// One step; tells of each answer that ends, with the number of its prompt's cached tokens. Whether
/// anything ran.
fn step(
    life: &mut Life,
    open: &mut BTreeMap<u64, (Prompt, Answer)>,
    mut ended: impl FnMut(Prompt, Answer, u32),
) -> bool {
    let mut step = Step::default();
    life.engine.step(&mut step);
    life.tiers.close(&mut step.events);
    for output in step.outputs {
        let (key, finish) = (output.key.0, output.finish);
        let (_, answer) = open.get_mut(&key).expect("nothing follows the last output");
        answer.take(output);
        if let Some(finish) = finish {
            let (prompt, answer) = open.remove(&key).expect("it was there");
            ended(prompt, answer, finish.cached_tokens);
        }
    }
    step.ran
}

fn lone_answer(mut engine: CpuEngine, prompt: Prompt) -> Answer {
    let (mut answer, mut step) = (Answer::default(), Step::default());
    engine.submit(request(0, prompt)).expect("it is taken");
    loop {
        step.clear();
        engine.step(&mut step);
        assert!(step.ran, "a lone engine never waits");
        for output in step.outputs.drain(..) {
            let has_ended = output.finish.is_some();
            answer.take(output);
            if has_ended {
                return answer;
            }
        }
    }
}

impl Answer {
    fn take(&mut self, output: Output) {
        self.tokens.extend(output.tokens);
        self.logprobs.extend(output.logprobs);
    }
}
