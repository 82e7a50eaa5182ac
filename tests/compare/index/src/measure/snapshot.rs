//! A new replica: ten million blocks from snapshots of workers.

use super::Values;
use crate::corpus::{Chain, Corpus, chain_of};
use crate::random::mix;
use crate::subject::Restore;
use std::time::Instant;

/// Blocks of all snapshots together.
const BLOCKS: usize = 10_000_000;
/// Blocks of one prompt.
const CHAIN_BLOCKS: usize = 1_000;

/// Restores 64 workers of 156,000 blocks one after the other, and one worker of ten million.
pub fn restore<S: Restore>(values: &mut Values) {
    let seconds = |workers| restore_all::<S>(workers, BLOCKS / CHAIN_BLOCKS / workers as usize);
    values.insert("10 M blocks of 64 workers, s".into(), seconds(64));
    values.insert("10 M blocks of 1 worker, s".into(), seconds(1));
}

/// Time for `workers` snapshots of `chains` prompts each.
fn restore_all<S: Restore>(workers: u32, chains: usize) -> f64 {
    let subject = S::new(&Corpus {
        block_size: 16,
        workers,
        requests: Vec::new(),
        local: Vec::new(),
        sequence: Vec::new(),
        removed: Vec::new(),
    });
    let states: Vec<_> = (0..workers).map(|worker| (worker, state::<S>(worker, chains))).collect();
    subject.expect(0..workers);
    let start = Instant::now();
    for (worker, state) in states {
        subject.restore(worker, state);
    }
    start.elapsed().as_secs_f64()
}

fn state<S: Restore>(worker: u32, chains: usize) -> S::State {
    let first = worker as usize * chains;
    let locals: Vec<Vec<u64>> = (first..first + chains)
        .map(|chain| (0..CHAIN_BLOCKS).map(|i| mix((chain * CHAIN_BLOCKS + i) as u64)).collect())
        .collect();
    let sequences: Vec<Vec<u64>> = locals.iter().map(|local| chain_of(local).collect()).collect();
    let chains: Vec<Chain<'_>> =
        locals.iter().zip(&sequences).map(|(local, sequence)| Chain { local, sequence }).collect();
    S::state(worker, &chains)
}
