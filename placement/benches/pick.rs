//! Time of a decision: 64 workers, prompts of 800 blocks that share prefixes of many lengths.

use stator_placement::{Placement, Request, Settings, Time, Worker};
use stator_protos::discovery::WorkerRecord;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Stored};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::collections::VecDeque;
use std::time::Instant;

const WORKERS: u64 = 64;
const BLOCKS: u64 = 800;
const PREFIXES: u64 = 500;
const PICKS: u64 = 20_000;
/// Requests in flight over all workers.
const IN_FLIGHT: usize = 256;

fn main() {
    let mut placement = Placement::new(Settings::default());
    let workers: Vec<WorkerRank> =
        (0..WORKERS).map(|number| WorkerRank { worker: WorkerId(number), rank: 0 }).collect();
    for &worker in &workers {
        let record = WorkerRecord { worker, generation: Generation(1), total_blocks: 50_000 };
        placement.worker_up(Worker::new(&record, true));
    }
    let started = Instant::now();
    for prefix in 0..PREFIXES {
        // A few prefixes are everywhere, most are in one place.
        let holders = if prefix % 10 == 0 { WORKERS } else { 1 };
        for offset in 0..holders {
            let worker = workers[((prefix + offset) % WORKERS) as usize];
            let held = if prefix % 10 == 0 { 40 } else { BLOCKS };
            placement.apply(worker, Generation(1), &stored(&prompt(prefix)[..held as usize]));
        }
    }
    let stored = placement.stats().index_blocks;
    let per_block = started.elapsed().as_nanos() as f64 / stored as f64;
    println!("store: {stored} blocks, {per_block:.0} ns each");

    let (mut times, mut running) = (Vec::new(), VecDeque::new());
    for count in 0..PICKS {
        let sequence = prompt(count * 7919 % (PREFIXES * 5 / 4));
        let prompt_tokens = BLOCKS as u32 * 16;
        let request = Request { sequence: &sequence, prompt_tokens, ..Request::default() };
        let started = Instant::now();
        let decision = placement.pick(&request, Time::from_millis(count), count);
        running.push_back(decision.expect("64 workers take requests").booking);
        if running.len() > IN_FLIGHT {
            let booking = running.pop_front().expect("there are more than none");
            placement.prefill_done(booking);
            placement.release(booking);
        }
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
    println!("pick and release: p50 {:?}, p90 {:?}, p99 {:?}", at(0.5), at(0.9), at(0.99));
}

/// The prompt number `prefix`: unlike numbers share nothing.
fn prompt(prefix: u64) -> Vec<SequenceHash> {
    let mix = |position: u64| (prefix * BLOCKS + position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BLOCKS).map(|position| SequenceHash(mix(position))).collect()
}

fn stored(hashes: &[SequenceHash]) -> KvEvent {
    KvEvent::Stored(Stored {
        hashes: hashes.iter().map(|hash| hash.0).collect(),
        parent: None,
        tokens: Vec::new(),
        block_size: 16,
        medium: Medium::Device,
        lora_name: None,
    })
}
