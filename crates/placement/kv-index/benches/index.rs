//! Cost of the index: writing, reading while it is written, memory, snapshots, predictions.
//!
//! What takes long is timed by what the thread itself ran, since machines are shared; lookups and
//! predictions by the clock. Parts are chosen by name: `-- lookup predict`. With `--small`, all is
//! small enough to count instructions: `valgrind --tool=callgrind --dump-after=index::apply` or
//! `--toggle-collect=index::look_up`, and so on, with the program and `--bench --small ingest`.

use stator_kv_index::{Index, IndexSettings, Overlaps, Time};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const WORKERS: u64 = 64;
const LIFE: Generation = Generation(1);
/// Blocks of one event.
const EVENT: u64 = 64;
/// Blocks of a prompt, of which about 770 are held.
const PROMPT: u64 = 900;

/// Sizes of a measurement.
struct Sizes {
    /// Lanes and blocks of each ingestion.
    ingests: &'static [(usize, u64)],
    prompts: u64,
    lookups: u64,
    snapshot: u64,
    predictions: u64,
}

const LARGE: Sizes = Sizes {
    ingests: &[(1, 1 << 20), (1, 1 << 22), (4, 1 << 22)],
    prompts: 8_000,
    lookups: 200_000,
    snapshot: 10_000_000,
    predictions: 600,
};
const SMALL: Sizes = Sizes {
    ingests: &[(1, 1 << 18), (4, 1 << 18)],
    prompts: 200,
    lookups: 2_000,
    snapshot: 500_000,
    predictions: 30,
};

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let sizes = if std::env::args().any(|arg| arg == "--small") { SMALL } else { LARGE };
    for name in ["ingest", "lookup", "snapshot", "predict"] {
        if !wanted.is_empty() && wanted.iter().all(|wanted| wanted != name) {
            continue;
        }
        match name {
            "ingest" => ingest(&sizes),
            "lookup" => lookup(&sizes),
            "snapshot" => snapshot(&sizes),
            _ => predict(&sizes),
        }
    }
}

fn worker(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), rank: 0 }
}

fn index(lanes: usize) -> Index {
    let lanes = NonZeroUsize::new(lanes).expect("there is a lane");
    let index = Index::new(IndexSettings { lanes, max_bytes: 4 << 30, ..IndexSettings::default() });
    (0..WORKERS).for_each(|number| _ = index.insert(worker(number), LIFE));
    index
}

/// A hash for each number, as a good hash would give it.
fn hash(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn stored(hashes: Vec<u64>) -> KvEvent {
    let (parent, tokens, lora_name) = Default::default();
    let medium = Medium::Device;
    KvEvent::Stored(Stored { hashes, parent, tokens, block_size: 16, medium, lora_name })
}

fn removed(hashes: Vec<u64>) -> KvEvent {
    KvEvent::Removed(Removed { hashes, medium: Medium::Device })
}

/// Events of blocks `from..to`, for a worker each.
fn events(from: u64, to: u64, event: impl Fn(Vec<u64>) -> KvEvent) -> Vec<(u64, KvEvent)> {
    let starts = (from..to).step_by(EVENT as usize);
    starts.map(|at| (at / EVENT % WORKERS, event((at..at + EVENT).map(hash).collect()))).collect()
}

#[inline(never)]
fn apply(index: &Index, events: &[(u64, KvEvent)]) -> Duration {
    let started = busy();
    for (number, event) in events {
        index.apply(worker(*number), LIFE, event);
    }
    busy() - started
}

/// Time that this thread ran, where the system tells it; else the time that passed.
fn busy() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = told.and_then(|told| told.split(' ').next()?.parse().ok());
    ns.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

fn maintain(index: &Index) {
    while index.maintain(1 << 16) {}
    while index.join_page() {}
}

fn millions_per_s(blocks: u64, took: Duration) -> f64 {
    blocks as f64 / took.as_secs_f64() / 1e6
}

/// Events of 64 blocks into one lane, and into four by one thread.
fn ingest(sizes: &Sizes) {
    for &(lanes, blocks) in sizes.ingests {
        let (store, remove) = (events(0, blocks, stored), events(0, blocks, removed));
        let index = index(lanes);
        let growing = millions_per_s(blocks, apply(&index, &store));
        let stats = index.stats();
        let bytes = stats.bytes as f64 / stats.blocks as f64;
        // As whoever has an index does in the background.
        maintain(&index);
        let removing = millions_per_s(blocks, apply(&index, &remove));
        let sized = millions_per_s(blocks, apply(&index, &store));
        let again = millions_per_s(blocks, apply(&index, &store));
        // In a full index: each new event follows the removal of an old one.
        let fresh = events(blocks, 2 * blocks, stored);
        let churn: Vec<_> = remove.into_iter().zip(fresh).flat_map(|(r, s)| [r, s]).collect();
        let churn = millions_per_s(2 * blocks, apply(&index, &churn));
        println!(
            "ingest, {lanes} lanes, {blocks} blocks, M blocks/s: growing {growing:.1}, sized \
             {sized:.1}, repeated {again:.1}, removed {removing:.1}, churn {churn:.1}; \
             {bytes:.1} bytes per block"
        );
    }
}

/// Blocks of the prompt of conversation `number`: a system prompt that all share, and its own.
fn prompt(number: u64) -> Vec<SequenceHash> {
    let block = |place: u64| if place < 24 { place } else { (number + 1) << 20 | place };
    (0..PROMPT).map(|place| SequenceHash(hash(block(place)))).collect()
}

/// Conversations of four turns, each on the worker of the turn before or, one in four, another.
fn fill(index: &Index, prompts: u64) {
    for number in 0..prompts {
        let (prompt, mut on) = (prompt(number), hash(number) % WORKERS);
        for turn in 1..=4 {
            let draw = hash(number << 3 | turn);
            if draw.is_multiple_of(4) {
                on = (draw >> 32) % WORKERS;
            }
            let depth = turn * 185 + number % 64;
            let held = prompt[..depth as usize].iter().map(|hash| hash.0).collect();
            index.apply(worker(on), LIFE, &stored(held));
        }
    }
}

fn lookup(sizes: &Sizes) {
    let index = index(4);
    fill(&index, sizes.prompts);
    maintain(&index);
    println!("lookup, {WORKERS} workers, {:?}", index.stats());
    let prompts: Vec<_> = (0..sizes.prompts).map(prompt).collect();
    measure_lookups("quiet", &index, &prompts, sizes.lookups);
    for rate in [6_000_000, 1_000_000_000] {
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| churn(&index, rate, &done));
            measure_lookups("written", &index, &prompts, sizes.lookups);
            done.store(true, Relaxed);
            let rate = writer.join().expect("the writer ends");
            println!("  while {rate:.1} M blocks/s were written");
        });
    }
}

/// Stores and removes up to `rate` blocks per second.
fn churn(index: &Index, rate: u64, done: &AtomicBool) -> f64 {
    let blocks = 1 << 20;
    let pair = |at: u64| {
        [stored, removed].map(|event| events((1 << 60) | at, (1 << 60) | (at + EVENT), event))
    };
    let batches: Vec<_> = (0..blocks).step_by(EVENT as usize).flat_map(pair).flatten().collect();
    let (started, mut written) = (Instant::now(), 0);
    for batch in batches.chunks(16).cycle() {
        apply(index, batch);
        written += batch.len() as u64 * EVENT;
        while started.elapsed().as_secs_f64() * (rate as f64) < written as f64 {
            std::hint::spin_loop();
        }
        if done.load(Relaxed) {
            break;
        }
    }
    millions_per_s(written, started.elapsed())
}

fn measure_lookups(name: &str, index: &Index, prompts: &[Vec<SequenceHash>], lookups: u64) {
    let (mut out, mut times, mut depth) = (Overlaps::default(), Vec::new(), 0u64);
    let mut prompt = Vec::new();
    for count in 0..lookups {
        // Whoever looks a prompt up has just hashed it.
        prompt.clone_from(&prompts[(hash(count) % prompts.len() as u64) as usize]);
        times.push(look_up(index, &prompt, &mut out));
        depth += u64::from(out.iter().map(|(_, overlap)| overlap.blocks()).max().unwrap_or(0));
    }
    times.sort_unstable();
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
    let depth = depth / lookups;
    println!(
        "lookup, {name}: depth {depth}, p50 {:?}, p99 {:?}, p99.9 {:?}",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

#[inline(never)]
fn look_up(index: &Index, prompt: &[SequenceHash], out: &mut Overlaps) -> Duration {
    let started = Instant::now();
    index.overlap(prompt, out);
    started.elapsed()
}

/// Many blocks of one worker, from a snapshot.
fn snapshot(sizes: &Sizes) {
    let index = index(4);
    let blocks = sizes.snapshot;
    let held: Vec<_> = (0..blocks).map(|n| (SequenceHash(hash(n)), Medium::Device)).collect();
    for life in ["new", "again"] {
        let took = replace(&index, &held);
        println!("snapshot, {life}: {blocks} blocks in {took:?}");
        if life == "new" {
            maintain(&index);
        }
    }
    let started = busy();
    let listed = index.held_by(&[worker(0)]).pop().flatten().map_or(0, |held| held.blocks.len());
    println!("snapshot, listed: {listed} blocks in {:?}", busy() - started);
    let started = busy();
    maintain(&index);
    let stats = index.stats();
    let bytes = stats.bytes as f64 / stats.blocks as f64;
    println!("snapshot, swept in {:?}; {bytes:.1} bytes per block", busy() - started);
    give(sizes.snapshot * 2 / 5);
}

/// Time in which a replica gives another replica all that it knows of a thousand workers.
fn give(blocks: u64) {
    const GIVEN: u64 = 1000;
    let index = index(4);
    (WORKERS..GIVEN).for_each(|number| _ = index.insert(worker(number), LIFE));
    for number in 0..GIVEN {
        let own = number * blocks / GIVEN..(number + 1) * blocks / GIVEN;
        let own = own.map(|n| (SequenceHash(hash(n)), Medium::Device));
        index.replace(worker(number), LIFE, own.collect::<Vec<_>>());
    }
    let ranks: Vec<_> = (0..GIVEN).map(worker).collect();
    let (started, mut listed) = (busy(), 0);
    for part in ranks.chunks(128) {
        listed += index.held_by(part).iter().flatten().map(|held| held.blocks.len()).sum::<usize>();
    }
    let took = busy() - started;
    println!("snapshot, given: {listed} blocks of {GIVEN} workers, 128 at a time, in {took:?}");
}

#[inline(never)]
fn replace(index: &Index, held: &[(SequenceHash, Medium)]) -> Duration {
    let started = busy();
    index.replace(worker(0), LIFE, held.iter().copied());
    busy() - started
}

#[inline(never)]
fn predict_one(index: &Index, number: u64, prompt: &[SequenceHash], until: Time) -> Duration {
    let started = Instant::now();
    index.predict(worker(number % 2), prompt, until);
    started.elapsed()
}

/// Prompts of 3,400 blocks that share 1,000 with others.
fn predict(sizes: &Sizes) {
    let index = index(4);
    let prompt = |number: u64| -> Vec<SequenceHash> {
        let block = |place| {
            if place < 1000 { ((number % 8) << 20) | place } else { (number << 20) | place }
        };
        (0..3400).map(|place| SequenceHash(hash(block(place)))).collect()
    };
    let mut times = Vec::new();
    for number in 0..sizes.predictions {
        let prompt = prompt(number);
        times.push(predict_one(&index, number, &prompt, Time::from_millis(number)));
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let fresh = median(&mut times);
    times.clear();
    for number in 0..sizes.predictions {
        let prompt = prompt(number);
        times.push(predict_one(&index, number, &prompt, Time::from_millis(1000 + number)));
    }
    println!(
        "predict, 3,400 blocks of which 2,400 are new: {fresh:?}; again {:?}",
        median(&mut times)
    );
}
