//! Speed of stores, loads and conversions; all bytes of all of them are compared.

use crate::rig::{
    PAGE, SHAPE, Side, arena, attach, filled, median, rate, scattered, side, side_of,
};
use stator_cuda::cuda::CudaDriver;
use stator_cuda::driver::{Driver, DriverFence, DriverLane, MemorySource};
use stator_cuda::fold::{PagePair, plan};
use stator_cuda::layout::{KvLayout, PageOrder, PageShape};
use stator_cuda::memory::KvMemory;
use stator_cuda::route::CopyWay;
use stator_cuda::runs::CopyRun;
use stator_cuda::{KvRoute, RouteSettings};
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SLOTS: u32 = 512;
const BYTES: usize = SLOTS as usize * PAGE;
/// Pages of the engine: twice as many, so that those in use lie apart.
const PAGES: u32 = 1024;
const REPETITIONS: usize = 7;

struct Bench {
    driver: Arc<CudaDriver>,
    arena: Arc<Arena>,
    slots: Side,
    slot_memory: Arc<KvMemory<CudaDriver>>,
    engine_memory: Arc<KvMemory<CudaDriver>>,
}

pub(crate) fn measure() {
    let driver = CudaDriver::open(0).unwrap_or_else(|error| panic!("no device: {error}"));
    let bench = Bench::new(driver);
    println!("{:<44} {:>10} {:>10}", "1 GiB; GB/s, median of 7", "store", "load");
    bench.one_copy();
    for (what, order, way) in [
        ("2 MiB blocks (BLHNC), batched", PageOrder::Blhnc, CopyWay::Runs),
        ("32 KiB pieces (LBHNC), batched", PageOrder::Lbhnc, CopyWay::Runs),
        ("32 KiB pieces (LBHNC), kernel and staging", PageOrder::Lbhnc, CopyWay::Kernel),
        ("256 B pieces (LBNHC), kernel and staging", PageOrder::Lbnhc, CopyWay::Kernel),
    ] {
        bench.route(what, order, way);
    }
    for kib in [64, 16, 8, 4] {
        bench.pieces(kib);
    }
    for (what, order) in [
        ("2 MiB blocks (BLHNC), a call for each", PageOrder::Blhnc),
        ("32 KiB pieces (LBHNC), a call for each", PageOrder::Lbhnc),
    ] {
        bench.single_calls(what, order);
    }
    bench.pass();
    bench.small_batches();
}

impl Bench {
    fn new(driver: Arc<CudaDriver>) -> Self {
        let arena = arena(SLOTS);
        let started = Instant::now();
        let slot_memory = attach(&driver, MemorySource::Arena(arena.clone()));
        println!("registering an arena of 1 GiB: {:.3} s", started.elapsed().as_secs_f64());
        let device = MemorySource::Device { bytes: PAGES as usize * PAGE };
        let engine_memory = attach(&driver, device);
        let slots = side(&slot_memory, PageOrder::Blhnc);
        Self { driver, arena, slots, slot_memory, engine_memory }
    }

    fn fill(&self, seed: u32) {
        for slot in 0..SLOTS {
            self.arena.write(SlotId(slot), &filled(seed ^ slot << 8, 0, PAGE));
        }
    }

    /// Compares all bytes.
    fn verify(&self, seed: u32, what: &str) {
        let mut kv = vec![0; PAGE];
        for slot in 0..SLOTS {
            self.arena.read(SlotId(slot), &mut kv);
            assert!(kv == filled(seed ^ slot << 8, 0, PAGE), "{what}: wrong bytes in slot {slot}");
        }
    }

    fn clear(&self) {
        let zeros = vec![0; PAGE];
        (0..SLOTS).for_each(|slot| self.arena.write(SlotId(slot), &zeros));
    }

    /// Times loads and stores of the same pages, which must give back what the arena had.
    fn line(&self, what: &str, mut store: impl FnMut(), mut load: impl FnMut()) {
        self.fill(7);
        let mut times = [Vec::new(), Vec::new()];
        for repetition in 0..=REPETITIONS {
            let started = Instant::now();
            load();
            let loaded = started.elapsed();
            if repetition == REPETITIONS {
                self.clear();
            }
            let started = Instant::now();
            store();
            // The first of each is not counted: it pays for what is made at first use.
            if repetition > 0 {
                times[0].push(started.elapsed());
                times[1].push(loaded);
            }
        }
        self.verify(7, what);
        let [store, load] = times.map(|times| rate(BYTES, median(times)));
        println!("{what:<44} {store:>10.2} {load:>10.2}   all bytes equal");
    }

    fn one_copy(&self) {
        let lane = self.driver.lane().expect("a stream");
        let (host, device) = (self.slot_memory.attachment(), self.engine_memory.attachment());
        let run = CopyRun { from: 0, to: 0, bytes: BYTES };
        let copy = |from, to| {
            lane.copy(from, to, &[run]).expect("a copy");
            lane.fence().and_then(|fence| fence.wait()).expect("the copy ends");
        };
        self.line("one copy", || copy(device, host), || copy(host, device));
    }

    fn route(&self, what: &str, order: PageOrder, way: CopyWay) {
        let engine = side(&self.engine_memory, order);
        let there = scattered(SLOTS, PAGES, SLOTS);
        let back: Vec<_> = turned(&there);
        let route = |from: &Side, to: &Side| {
            KvRoute::new(from.clone(), to.clone(), by(way)).expect("a route")
        };
        let mut store = route(&engine, &self.slots);
        let mut load = route(&self.slots, &engine);
        assert_eq!((store.way(), load.way()), (way, way), "{what}");
        self.line(what, || run(&mut store, &there), || run(&mut load, &back));
    }

    /// Pages of as many bytes in pieces of another size.
    fn pieces(&self, kib: u32) {
        let shape = PageShape { layers: 2048 / kib, heads: 2, tokens: 4, content_bytes: kib << 7 };
        let engine = side_of(shape, &self.engine_memory, PageOrder::Lbhnc);
        let slots = side_of(shape, &self.slot_memory, PageOrder::Blhnc);
        let there = scattered(SLOTS, PAGES, SLOTS);
        let back: Vec<_> = turned(&there);
        let route = |from: &Side, to: &Side| {
            KvRoute::new(from.clone(), to.clone(), by(CopyWay::Runs)).expect("a route")
        };
        let (mut store, mut load) = (route(&engine, &slots), route(&slots, &engine));
        let what = format!("{kib} KiB pieces (LBHNC), batched");
        self.line(&what, || run(&mut store, &there), || run(&mut load, &back));
    }

    fn single_calls(&self, what: &str, order: PageOrder) {
        let lane = self.driver.lane().expect("a stream");
        let (host, device) = (self.slot_memory.attachment(), self.engine_memory.attachment());
        let layout = |order, pages| KvLayout::packed(order, SHAPE, pages).expect("a layout");
        let (engine, slots) = (layout(order, PAGES), layout(PageOrder::Blhnc, SLOTS));
        let there = scattered(SLOTS, PAGES, SLOTS);
        let stores = plan(&engine, &slots, &there).expect("pages are there");
        let loads = plan(&slots, &engine, &turned(&there)).expect("pages are there");
        let copy = |from, to, runs: &[CopyRun]| {
            for run in runs {
                lane.copy(from, to, std::slice::from_ref(run)).expect("a copy");
            }
            lane.fence().and_then(|fence| fence.wait()).expect("the copies end");
        };
        self.line(what, || copy(device, host, &stores), || copy(host, device, &loads));
    }

    /// Pages of one engine to another on the same device.
    fn pass(&self) {
        let other = MemorySource::Device { bytes: PAGES as usize * PAGE };
        let other = attach(&self.driver, other);
        let there = scattered(SLOTS, PAGES, PAGES);
        use PageOrder::{Blhnc, Lbhnc};
        for (source, order, way) in [
            (Lbhnc, Blhnc, CopyWay::Kernel),
            (Lbhnc, Blhnc, CopyWay::Runs),
            (Lbhnc, Lbhnc, CopyWay::Kernel),
            (Blhnc, Blhnc, CopyWay::Runs),
            (Blhnc, Blhnc, CopyWay::Kernel),
        ] {
            let (from, to) = (side(&self.engine_memory, source), side(&other, order));
            let mut route = KvRoute::new(from, to, by(way)).expect("a route");
            run(&mut route, &there);
            let mut times = Vec::new();
            for _ in 0..REPETITIONS {
                let started = Instant::now();
                run(&mut route, &there);
                times.push(started.elapsed());
            }
            let rate = rate(BYTES, median(times));
            println!(
                "device to device, {source:?} to {order:?}, {way:?}: {rate:.1} GB/s (bytes: tests)"
            );
        }
    }

    /// Latency of few blocks, for which a request waits.
    fn small_batches(&self) {
        for blocks in [1, 8, 64] {
            for (order, way) in [
                (PageOrder::Blhnc, CopyWay::Runs),
                (PageOrder::Lbhnc, CopyWay::Kernel),
                (PageOrder::Lbhnc, CopyWay::Runs),
            ] {
                let engine = side(&self.engine_memory, order);
                let pairs = scattered(blocks, SLOTS, PAGES);
                let mut load = KvRoute::new(self.slots.clone(), engine, by(way)).expect("a route");
                run(&mut load, &pairs);
                let (mut posted, mut ended) = (Vec::new(), Vec::new());
                for _ in 0..50 {
                    let started = Instant::now();
                    let transit = load.start(&pairs, &[]).expect("pages are there");
                    posted.push(started.elapsed());
                    transit.wait().expect("the copies end");
                    ended.push(started.elapsed());
                }
                let [posted, ended] = [posted, ended].map(median).map(|of| of.as_secs_f64() * 1e6);
                println!(
                    "load of {blocks:>2} blocks, {order:?}, {way:?}: posted in {posted:.0} us, there after {ended:.0} us"
                );
            }
        }
    }
}

fn turned(pairs: &[PagePair]) -> Vec<PagePair> {
    pairs.iter().map(|pair| PagePair { from: pair.to, to: pair.from }).collect()
}

fn run(route: &mut KvRoute<CudaDriver>, pairs: &[PagePair]) {
    route.start(pairs, &[]).expect("pages are there").wait().expect("the copies end");
}

fn by(way: CopyWay) -> RouteSettings {
    RouteSettings { way: Some(way), ..RouteSettings::default() }
}

/// Copies at full rate for some seconds, while somebody else computes. `what` is a way, and `-store`
/// behind it if nothing is loaded at the same time.
pub(crate) fn churn(seconds: &str, what: &str) {
    let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let (kind, has_loads) = what.strip_suffix("-store").map_or((what, true), |kind| (kind, false));
    let (order, way, staging_mib) = match kind {
        "blocks" => (PageOrder::Blhnc, CopyWay::Runs, 1),
        "pieces" => (PageOrder::Lbhnc, CopyWay::Runs, 1),
        "kernel32" => (PageOrder::Lbhnc, CopyWay::Kernel, 32),
        "kernel128" => (PageOrder::Lbhnc, CopyWay::Kernel, 128),
        _ => (PageOrder::Lbhnc, CopyWay::Kernel, 512),
    };
    let settings = RouteSettings { way: Some(way), staging_bytes: staging_mib << 20 };
    let driver = CudaDriver::open(0).unwrap_or_else(|error| panic!("no device: {error}"));
    let arena = arena(SLOTS);
    let slots = side(&attach(&driver, MemorySource::Arena(arena)), PageOrder::Blhnc);
    let memory = attach(&driver, MemorySource::Device { bytes: PAGES as usize * PAGE });
    let engine = side(&memory, order);
    // Half of the slots are stored to while the other half is loaded from.
    let stores: Vec<_> = (0..SLOTS / 2).map(|at| PagePair { from: at * 2, to: at }).collect();
    let loads: Vec<_> =
        (SLOTS / 2..SLOTS).map(|at| PagePair { from: at, to: at * 2 - 1 }).collect();
    let mut store = KvRoute::new(engine.clone(), slots.clone(), settings).expect("a route");
    let mut load = KvRoute::new(slots, engine, settings).expect("a route");
    println!("churning");
    let (started, mut bytes) = (Instant::now(), 0);
    while started.elapsed() < time {
        let stored = store.start(&stores, &[]).expect("pages are there");
        bytes += BYTES / 2;
        if has_loads {
            run(&mut load, &loads);
            bytes += BYTES / 2;
        }
        stored.wait().expect("the copies end");
    }
    println!("copied {:.1} GB/s", rate(bytes, started.elapsed()));
}
