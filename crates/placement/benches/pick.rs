//! Time of a decision: to pick and book, and to tell of the first token and release, by the size
//! of the fleet and of the prompt, with the cost in blocks and in time.
//!
//! A quarter of the prompts share a prefix that a tenth of the fleet holds; the others are known
//! to one worker, to half their length. Requests in flight are four times the workers. Fleets are
//! chosen by their size: `-- 64 1000`.
//!
//! With tiers, workers hold a third of their blocks on the device, a third in host memory and the rest on
//! disk, and report the costs of loads; with lenders they lend to each other besides. The last column is
//! the mean number of allocations of a pick.
#![allow(unsafe_code)] // An allocator is unsafe by its nature.

use stator_placement::{
    CostModel, Label, Placement, PlacementRequest, PlacementSettings, Profile, Time, Worker,
};
use stator_protos::discovery::WorkerRecord;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Stored};
use stator_protos::load::{Load, LoadCost, PeerCost, TierCosts};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const LIFE: Generation = Generation(1);
const PREFIXES: u64 = 64;
const BLOCK_SIZE: u32 = 16;

/// One fleet and one kind of prompt.
#[derive(Clone, Copy)]
struct Case {
    workers: u64,
    blocks: usize,
    cost: CostModel,
    /// Whether what was sent counts as held until the worker says so.
    predicting: bool,
    tiers: FleetTiers,
}

/// KV tiers of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FleetTiers {
    None,
    Own,
    Lent,
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts.
struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let wanted: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let is_wanted = |workers: &u64| wanted.is_empty() || wanted.contains(workers);
    println!(
        "workers  blocks  cost    predicting  tiers   pick p50      p99   rest p50      p99  allocations"
    );
    use FleetTiers::{Lent, None, Own};
    for (predicting, tiers) in [(false, None), (true, None), (false, Own), (false, Lent)] {
        for cost in [CostModel::Blocks, CostModel::Time] {
            for workers in [8, 64, 1000, 10_000].into_iter().filter(is_wanted) {
                for blocks in [16, 800, 3400] {
                    run(Case { workers, blocks, cost, predicting, tiers });
                }
            }
        }
    }
}

fn run(case: Case) {
    let mut placement = fleet(case);
    let (mut picks, mut rests) = (Vec::new(), Vec::new());
    let (mut waiting, mut answered) = (VecDeque::new(), VecDeque::new());
    let (warm, mut allocations) = (case.workers as usize * 4, 0);
    for count in 0..(warm as u64 + 2000) {
        let prompt = prompt(count * 7919 % (PREFIXES * 2), count, case.blocks);
        let tokens = prompt.len() as u32 * BLOCK_SIZE + 7;
        let request = PlacementRequest {
            sequence: &prompt,
            prompt_tokens: tokens,
            ..PlacementRequest::default()
        };
        let now = Time::from_millis(count);
        let (before, started) = (ALLOCATIONS.get(), Instant::now());
        let decision = placement.pick(&request, now, count).expect("workers take requests");
        let took = started.elapsed();
        allocations += if picks.len() < warm { 0 } else { ALLOCATIONS.get() - before };
        picks.push(took);
        waiting.push_back(decision.booking);
        let started = Instant::now();
        if waiting.len() > warm / 2 {
            let booking = waiting.pop_front().expect("there are more than none");
            placement.prefill_done(booking, now);
            answered.push_back(booking);
        }
        if answered.len() > warm / 2 {
            let booking = answered.pop_front().expect("there are more than none");
            placement.output_tokens(booking, 32, now);
            placement.release(booking);
        }
        rests.push(started.elapsed());
    }
    let (picks, rests) = (picks.split_off(warm), rests.split_off(warm));
    let mean = allocations as f64 / picks.len() as f64;
    let [pick, rest] = [picks, rests].map(quantiles);
    let Case { workers, blocks, cost, predicting, tiers } = case;
    let tiers = format!("{tiers:?}").to_lowercase();
    println!(
        "{workers:7}  {blocks:6}  {cost:6}  {predicting:10}  {tiers:5}  {:>9} {:>8}  {:>9} {:>8}  {mean:11.2}",
        pick.0, pick.1, rest.0, rest.1
    );
}

fn quantiles(mut times: Vec<Duration>) -> (String, String) {
    times.sort_unstable();
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
    let text = |time: Duration| format!("{:.2}us", time.as_secs_f64() * 1e6);
    (text(at(0.5)), text(at(0.99)))
}

fn fleet(case: Case) -> Placement {
    let early_prediction_ttl = case.predicting.then_some(Duration::from_secs(5));
    let settings = PlacementSettings {
        cost: case.cost,
        min_samples: 1,
        early_prediction_ttl,
        ..PlacementSettings::default()
    };
    let mut placement = Placement::new(settings);
    for number in 0..case.workers {
        let record = WorkerRecord { worker: rank(number), generation: LIFE, total_blocks: 50_000 };
        placement.worker_up(Worker::new(&record, true));
        equip(&mut placement, case.tiers, rank(number));
    }
    for prefix in 0..PREFIXES {
        let shared = prefix % 4 == 0;
        let holders = if shared { case.workers.div_ceil(10) } else { 1 };
        for offset in 0..holders {
            let worker = rank((prefix * 7 + offset * 3) % case.workers);
            let held = if shared { case.blocks / 20 + 1 } else { case.blocks / 2 };
            let prompt = prompt(prefix, 0, case.blocks);
            match case.tiers {
                FleetTiers::None => drop(placement.apply(worker, LIFE, &stored(&prompt[..held]))),
                FleetTiers::Own | FleetTiers::Lent => {
                    let parts = prompt[..held].chunks(held.div_ceil(3));
                    for (part, medium) in parts.zip([Medium::Device, Medium::Host, Medium::Disk]) {
                        placement.apply(worker, LIFE, &stored_on(medium, part));
                    }
                }
            }
        }
    }
    placement
}

/// Reports a worker's tiers, and has it lend.
fn equip(placement: &mut Placement, tiers: FleetTiers, worker: WorkerRank) {
    if tiers == FleetTiers::None {
        return;
    }
    let cost = |latency_us, block_ns| LoadCost { latency_us, block_ns };
    let costs = TierCosts {
        block_bytes: 2 << 20,
        compute_ns: 600_000,
        host: cost(0, 40_000),
        disk: cost(500, 350_000),
        peer: cost(1_000, 170_000),
        peers: std::array::from_fn(|at| PeerCost {
            holder: (worker.worker.0 + at as u64) % 64 + 1,
            cost: cost(1_000, 150_000),
        }),
        ..TierCosts::default()
    };
    placement.report_load(worker, LIFE, Load { costs, total_blocks: 50_000, ..Load::default() });
    if tiers == FleetTiers::Lent {
        let lends = Some(Label(worker.worker.0));
        placement.set_profile(worker, Profile { lends, ..Profile::default() });
    }
}

fn rank(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), rank: 0 }
}

/// A prompt that begins as all with this prefix do, and ends as no other does.
fn prompt(prefix: u64, count: u64, blocks: usize) -> Vec<SequenceHash> {
    let mix =
        |from: u64, at: usize| (from * 4099 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let shared = blocks * 3 / 4;
    let hash = |at: usize| SequenceHash(mix(if at < shared { prefix } else { 1000 + count }, at));
    (0..blocks).map(hash).collect()
}

fn stored(hashes: &[SequenceHash]) -> KvEvent {
    stored_on(Medium::Device, hashes)
}

fn stored_on(medium: Medium, hashes: &[SequenceHash]) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: hashes.iter().map(|hash| hash.0).collect(),
        parent: None,
        tokens: Vec::new(),
        block_size: BLOCK_SIZE,
        medium,
        lora_name: None,
    })
}
