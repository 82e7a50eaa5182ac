//! A cache with its threads over real tiers: files on a faulty disk, an object store that lies, peers
//! behind a network that fails, memory whose bits flip, engines and agents that die. Whatever
//! happens, no wrong byte is handed out and every request ends.
//!
//! The faults come from a seed; which of them meet is up to the threads.

use super::dispatch::DispatchThread;
use super::settings::{CacheSettings, CacheTier, Progress, TierPlace};
use super::{Client, TieredCache, assemble};
use crate::cipher::KvKey;
use crate::disk::faulty::{FaultPlan, FaultyDisk};
use crate::object::ObjectTier;
use crate::object::tests::faults::on_server;
use crate::object::tests::s3_server::{Fault as S3Fault, FaultyS3};
use crate::peer::tests::greeting_bytes;
use crate::peer::tests::testkit::{Fate, Relay, SECRET, Served, Shelf, form, kv};
use crate::peer::{PeerSettings, PeerTier};
use crate::store::{RequestId, TierAdmission, TierSettings};
use crate::tier::Tier;
use crate::transfer::FleetKey;
use crate::{Block, SlotId, TenantKey};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Two pages: the faulty disk moves whole pages.
const BLOCK: usize = 8192;
const SLOTS: u32 = 40;
const SESSIONS: u128 = 12;
const DEPTH: u128 = 14;
/// Blocks in all, with contents of their own.
const BLOCKS: u32 = (SESSIONS * 16) as u32;
/// Longest time that a request may take on a busy machine; the store promises two seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Factor by which everything takes longer without optimisation.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 6 } else { 1 };
/// Time in which nothing comes, after which more of it is skipped by the store's clock. What works is
/// faster than that, mostly.
const LULL: Duration = Duration::from_millis(3 * SLOWNESS);
/// Time that is skipped then.
const LULL_LASTS: Duration = Duration::from_millis(700);
/// Longest time of a read from the object store or a peer, which hold slots for as long.
const READ_MAX: Duration = Duration::from_millis(40 * SLOWNESS);
/// Relays that are open at a time.
const RELAYS: usize = 6;
/// Crossings, by the names under which faults are counted.
const KINDS: [&str; 9] = [
    "disk",
    "full disk",
    "slow disk",
    "stale segment",
    "object store",
    "peer",
    "memory",
    "engine",
    "agent",
];

/// Faults so far, by their kinds.
type Counts = BTreeMap<&'static str, usize>;

/// All that outlives an agent.
struct World {
    runtime: Runtime,
    home: TempDir,
    key: Option<KvKey>,
    disk: Arc<Mutex<FaultPlan>>,
    server: Arc<FaultyS3>,
    lies: Arc<AtomicUsize>,
    _shelf: Arc<Shelf>,
    holder: Served,
    relays: VecDeque<(Relay, Fate)>,
    rng: SmallRng,
    /// Time that is skipped, in milliseconds: tiers that were left alone get another chance.
    skipped: Arc<AtomicU64>,
    old_segments: BTreeMap<PathBuf, Vec<u8>>,
    counts: Counts,
    requests: u64,
    handed_out: usize,
}

/// One life of an agent, and an engine.
struct Life {
    cache: Arc<TieredCache>,
    peers: Arc<PeerTier>,
    engine: Engine,
}

/// An engine's connection to the cache.
struct Engine {
    client: Client,
    progress: Receiver<Progress>,
    granted: Vec<SlotId>,
}

fn block(name: BlockName) -> Block {
    let depth = name.0 as u32 % 16;
    Block { name, hash: None, parent: None, depth, tenant: TenantKey::default() }
}

fn connect(cache: &Arc<TieredCache>) -> Engine {
    let (told, progress) = channel();
    let told = Mutex::new(told);
    let client = cache.connect(Arc::new(move |progress| drop(told.lock().send(progress))));
    Engine { client, progress, granted: Vec::new() }
}

impl World {
    fn new(seed: u64, key: Option<KvKey>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        let server = runtime.block_on(FaultyS3::start());
        let shelf = Shelf::new(BLOCKS, BLOCK);
        let holder = runtime.block_on(shelf.serve(FleetKey::of_secret(SECRET)));
        let mut disk = FaultPlan::none(seed);
        disk.rate = 150;
        let lies = Arc::new(AtomicUsize::new(0));
        let (told, mut random) = (lies.clone(), SmallRng::seed_from_u64(!seed));
        server.set_faults(move || {
            let fault = *S3Fault::ALL.choose(&mut random)?;
            // Silence takes the whole time of a read: a few of them are enough.
            let is_silent = matches!(fault, S3Fault::Hang | S3Fault::Stall);
            let is_wrong = random.random_bool(if is_silent { 0.01 } else { 0.4 });
            told.fetch_add(usize::from(is_wrong), Ordering::Relaxed);
            is_wrong.then_some(fault)
        });
        Self {
            runtime,
            home: TempDir::new().unwrap(),
            key,
            disk: Arc::new(Mutex::new(disk)),
            server,
            lies,
            _shelf: shelf,
            holder,
            relays: VecDeque::new(),
            rng: SmallRng::seed_from_u64(seed),
            skipped: Arc::default(),
            old_segments: BTreeMap::new(),
            counts: Counts::new(),
            requests: 0,
            handed_out: 0,
        }
    }

    /// Begins another life of the agent over what the one before left.
    fn begin(&self) -> Life {
        let mut settings = CacheSettings::new(SLOTS);
        let peers = Arc::new(OnceLock::new());
        settings.tiers = vec![self.disk_tier(), self.object_tier(), self.peer_tier(&peers)];
        let (origin, skipped) = (Instant::now(), self.skipped.clone());
        let clock =
            move || origin.elapsed() + Duration::from_millis(skipped.load(Ordering::Relaxed));
        let dispatcher = assemble(form(BLOCK), settings, Arc::new(clock)).unwrap();
        let shared = dispatcher.shared.clone();
        let dispatch = Arc::new(DispatchThread::start(dispatcher).unwrap());
        let cache = Arc::new(TieredCache { form: form(BLOCK), shared, dispatch });
        let peers = peers.get().expect("the tier is open").clone();
        Life { engine: connect(&cache), peers, cache }
    }

    fn disk_tier(&self) -> CacheTier {
        let (dir, plan, key) = (self.home.path().to_owned(), self.disk.clone(), self.key.clone());
        let open = move |place: TierPlace| {
            let disk = FaultyDisk::open(&dir, key.as_ref(), &plan, place);
            Ok(Arc::new(disk) as Arc<dyn Tier>)
        };
        let settings = TierSettings::new(Medium::Disk);
        CacheTier { name: "disk", settings, open: Box::new(open) }
    }

    fn object_tier(&self) -> CacheTier {
        let _runtime = self.runtime.enter();
        let mut settings = on_server(&self.server.url);
        settings.extent_bytes = 4 * BLOCK;
        settings.cipher_key = self.key.clone();
        settings.times.read = READ_MAX;
        let open = move |TierPlace { form, arena, report }| {
            Ok(Arc::new(ObjectTier::open(settings, form, arena, report)?) as Arc<dyn Tier>)
        };
        let settings = TierSettings::new(Medium::Remote);
        CacheTier { name: "object", settings, open: Box::new(open) }
    }

    fn peer_tier(&self, opened: &Arc<OnceLock<Arc<PeerTier>>>) -> CacheTier {
        let (runtime, opened) = (self.runtime.handle().clone(), opened.clone());
        let open = move |TierPlace { form, arena, report }| {
            let settings = PeerSettings {
                frame_bytes: 4096,
                read_deadline: READ_MAX,
                ..PeerSettings::default()
            };
            let key = FleetKey::of_secret(SECRET);
            let tier = Arc::new(PeerTier::new(arena, form, key, settings, runtime, report));
            let _ = opened.set(tier.clone());
            Ok(tier as Arc<dyn Tier>)
        };
        let settings = TierSettings {
            admission: TierAdmission::Never,
            is_announced: false,
            ..TierSettings::new(Medium::Remote)
        };
        CacheTier { name: "peer", settings, open: Box::new(open) }
    }

    /// Lets time pass for the store at once.
    fn skip(&self, time: Duration) {
        self.skipped.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// Counts a fault, which ends nobody.
    fn fault(&mut self, kind: &'static str) -> bool {
        *self.counts.entry(kind).or_default() += 1;
        false
    }

    /// Faults of all kinds so far.
    fn faults(&self) -> Counts {
        let mut counts = self.counts.clone();
        *counts.entry("disk").or_default() += self.disk.lock().injected;
        *counts.entry("object store").or_default() += self.lies.load(Ordering::Relaxed);
        counts
    }

    fn prompt(&mut self) -> Vec<BlockName> {
        let first = self.rng.random_range(0..SESSIONS) * 16;
        (first..first + self.rng.random_range(1..=DEPTH)).map(BlockName).collect()
    }

    /// Says that a holder behind another network has the blocks.
    fn hint(&mut self, life: &Life, names: &[BlockName]) {
        let at = greeting_bytes(names.len()) + self.rng.random_range(0..names.len() * BLOCK);
        let fate = match self.rng.random_range(0..10) {
            0..4 => Fate::CutAfter(at),
            4..8 => Fate::FlipAt(at),
            8 => Fate::StallAfter(at),
            _ => Fate::Pass,
        };
        let relay = self.runtime.block_on(Relay::new(self.holder.address, &[fate]));
        life.peers.hint(relay.address, &names.iter().copied().map(block).collect::<Vec<_>>());
        self.relays.push_back((relay, fate));
        if self.relays.len() > RELAYS
            && let Some((relay, fate)) = self.relays.pop_front()
        {
            let met = |bytes: &usize| match fate {
                Fate::CutAfter(at) | Fate::StallAfter(at) => *bytes == at,
                Fate::FlipAt(at) => *bytes > at,
                Fate::Pass => false,
            };
            let met = relay.bytes.lock().iter().filter(|bytes| met(bytes)).count();
            *self.counts.entry("peer").or_default() += met;
        }
    }

    /// A request from its question to its end. Whether the agent dies.
    fn ask(&mut self, life: &mut Life) -> bool {
        let names = self.prompt();
        if self.rng.random_bool(0.1) {
            self.hint(life, &names);
        }
        self.requests += 1;
        let request = RequestId(self.requests);
        // Every load is worth its time.
        let found = life.engine.client.ask(request, &names, Duration::from_secs(1));
        let (mut slots, mut pending) = (found.ready, found.pending);
        self.check(life, &slots, &names);
        if pending > 0 && self.rng.random_bool(0.01) {
            return self.die(life);
        }
        let asked = Instant::now();
        while pending > 0 {
            let Ok(progress) = life.engine.progress.recv_timeout(LULL) else {
                assert!(asked.elapsed() < PATIENCE, "every request ends");
                // A request that waits for a hanging tier waits long by the store's clock, and not by ours.
                self.skip(LULL_LASTS);
                life.engine.client.touch(&[]);
                continue;
            };
            if progress.request != request {
                continue;
            }
            self.check(life, &progress.slots, &names[slots.len()..]);
            slots.extend(progress.slots);
            pending = progress.pending;
        }
        compute(life, &names[slots.len()..]);
        life.engine.client.end(request);
        false
    }

    fn check(&mut self, life: &Life, slots: &[SlotId], names: &[BlockName]) {
        let mut read = vec![0; BLOCK];
        for (slot, name) in slots.iter().zip(names) {
            life.cache.arena().read(*slot, &mut read);
            assert!(read == kv(name.0, BLOCK), "wrong bytes for {name:?} in {slot:?}");
        }
        self.handed_out += slots.len();
    }

    /// The engine or the agent ends in the middle of whatever is under way. Whether it is the agent.
    fn die(&mut self, life: &mut Life) -> bool {
        match self.rng.random_range(0..3) {
            0 => {
                self.fault("engine");
                life.engine = connect(&life.cache);
            }
            1 => {
                self.fault("engine");
                let lost = std::mem::replace(&mut life.engine, connect(&life.cache));
                let held = lost.client.lose();
                // A lost engine goes on with what it was doing, until it is buried.
                for slot in lost.granted {
                    life.cache.arena().write(slot, &[0xcc; BLOCK]);
                }
                held.bury();
            }
            _ => {
                self.fault("agent");
                return true;
            }
        }
        false
    }

    /// A segment's file is as it was some lives before, as a lost or late write leaves it.
    fn swap_segments(&mut self) {
        let folders = fs::read_dir(self.home.path()).unwrap().map(|entry| entry.unwrap().path());
        let folders = folders.filter(|path| path.is_dir());
        let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
        let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment"));
        let Some(path) = files.choose(&mut self.rng) else { return };
        let now = fs::read(path).unwrap();
        // Every other life begins with what the agent before left.
        if self.rng.random_bool(0.5)
            && let Some(old) = self.old_segments.insert(path.clone(), now)
        {
            fs::write(path, old).unwrap();
            self.fault("stale segment");
        }
    }

    /// Bits of host memory flip, also where a tier reads or writes.
    fn strike(&mut self, life: &Life) -> bool {
        let slot = SlotId(self.rng.random_range(0..SLOTS));
        let mut bytes = vec![0; BLOCK];
        life.cache.arena().read(slot, &mut bytes);
        bytes[self.rng.random_range(0..BLOCK)] ^= 1 << self.rng.random_range(0..8);
        life.cache.arena().write(slot, &bytes);
        self.fault("memory")
    }

    /// The disk does nothing while a request waits.
    fn slow(&mut self, life: &mut Life) -> bool {
        self.disk.lock().is_stuck = true;
        self.fault("slow disk");
        let dies = self.ask(life);
        self.disk.lock().release();
        dies
    }

    fn run(&mut self, faults: usize) {
        let mut life = self.begin();
        while self.faults().values().sum::<usize>() < faults {
            let dies = match self.rng.random_range(0..2000) {
                0..1500 => self.ask(&mut life),
                1500..1800 => self.strike(&life),
                1800..1980 => {
                    let milliseconds = [1, 300, 40_000].choose(&mut self.rng).copied().unwrap_or(1);
                    self.skip(Duration::from_millis(milliseconds));
                    false
                }
                1980..1990 => {
                    let mut plan = self.disk.lock();
                    plan.has_room = !plan.has_room;
                    drop(plan);
                    self.fault("full disk")
                }
                1990 => self.slow(&mut life),
                _ => self.die(&mut life),
            };
            if dies {
                drop(life);
                self.swap_segments();
                life = self.begin();
            }
        }
    }
}

/// Computes blocks and registers them, as far as there are slots.
fn compute(life: &mut Life, names: &[BlockName]) {
    let Engine { client, granted, .. } = &mut life.engine;
    let lacking = names.len().saturating_sub(granted.len());
    granted.extend(client.grant(lacking));
    let count = names.len().min(granted.len());
    let slots = granted.split_off(granted.len() - count);
    let filled: Vec<_> = slots.into_iter().zip(names.iter().copied().map(block)).collect();
    for (slot, block) in &filled {
        life.cache.arena().write(*slot, &kv(block.name.0, BLOCK));
    }
    granted.extend(client.filled(&filled));
}

/// Injects faults until there are so many, half of them into encrypted tiers.
fn inject(faults: usize, seed: u64) {
    for key in [None, Some(KvKey::of_secret(b"crossings"))] {
        let (is_encrypted, began) = (key.is_some(), Instant::now());
        let mut world = World::new(seed, key);
        world.run(faults / 2);
        let (counts, time) = (world.faults(), began.elapsed());
        println!(
            "encrypted: {is_encrypted}, {counts:?}: {} requests ended, {} blocks handed out, 0 wrong \
             bytes, {time:?}",
            world.requests, world.handed_out,
        );
        assert!(world.handed_out > world.requests as usize / 2, "hardly anything was found");
        for kind in KINDS.iter().filter(|_| faults >= 100_000) {
            assert!(counts.get(kind).is_some_and(|count| *count > 0), "no fault of the {kind}");
        }
    }
}

#[test]
fn no_wrong_byte_crosses_any_tier() {
    inject(400, 7);
}

/// `cargo test --release -p stator-kv crosses_any_tier_in -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn no_wrong_byte_crosses_any_tier_in_hundred_thousand_faults() {
    inject(100_000, 22);
}
