//! Prefixes sent to each worker, for policies that do not listen to engines.

use super::WorkerNumber;
use crate::recency::RecencyList;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;

/// Blocks that each worker is assumed to hold: the blocks sent to it, the least recently sent
/// forgotten first.
#[derive(Debug, Default)]
pub(super) struct Approximate {
    holders: FxHashMap<SequenceHash, Vec<WorkerNumber>>,
    workers: Vec<Sent>,
    /// The result of the last match.
    matched: Vec<u32>,
}

#[derive(Debug, Default)]
struct Sent {
    slots: FxHashMap<SequenceHash, u32>,
    hashes: Vec<SequenceHash>,
    free: Vec<u32>,
    order: RecencyList,
}

impl Approximate {
    /// For each worker, how many leading blocks it was sent before.
    pub(super) fn matched(&mut self, sequence: &[SequenceHash], workers: usize) -> &[u32] {
        self.matched.clear();
        self.matched.resize(workers, 0);
        for (depth, hash) in (0..).zip(sequence) {
            let Some(holders) = self.holders.get(hash) else { break };
            let mut any = false;
            for worker in holders {
                let matched = &mut self.matched[*worker as usize];
                any |= *matched == depth;
                *matched += u32::from(*matched == depth);
            }
            if !any {
                break;
            }
        }
        &self.matched
    }

    /// Blocks that a worker is taken to hold.
    pub(super) fn held(&self, worker: WorkerNumber) -> u32 {
        self.workers.get(worker as usize).map_or(0, |sent| sent.order.len())
    }

    /// A worker was sent a prompt; of what it was sent it holds at most `capacity` blocks.
    pub(super) fn sent(&mut self, worker: WorkerNumber, sequence: &[SequenceHash], capacity: u32) {
        if self.workers.len() <= worker as usize {
            self.workers.resize_with(worker as usize + 1, Sent::default);
        }
        let sent = &mut self.workers[worker as usize];
        // The end of a prefix is forgotten before its start.
        for &hash in sequence.iter().rev() {
            if let Some(&slot) = sent.slots.get(&hash) {
                sent.order.remove(slot);
                sent.order.push(slot);
                continue;
            }
            let slot = sent.free.pop().unwrap_or(sent.hashes.len() as u32);
            if slot as usize == sent.hashes.len() {
                sent.hashes.push(hash);
            }
            sent.hashes[slot as usize] = hash;
            sent.slots.insert(hash, slot);
            sent.order.push(slot);
            self.holders.entry(hash).or_default().push(worker);
        }
        while sent.order.len() > capacity {
            let Some(slot) = sent.order.pop() else { break };
            let hash = sent.hashes[slot as usize];
            sent.slots.remove(&hash);
            sent.free.push(slot);
            forget(&mut self.holders, hash, worker);
        }
    }

    /// A worker lost all it held.
    pub(super) fn clear(&mut self, worker: WorkerNumber) {
        let Some(sent) = self.workers.get_mut(worker as usize) else { return };
        for hash in std::mem::take(sent).slots.into_keys() {
            forget(&mut self.holders, hash, worker);
        }
    }
}

fn forget(
    holders: &mut FxHashMap<SequenceHash, Vec<WorkerNumber>>,
    hash: SequenceHash,
    worker: WorkerNumber,
) {
    let Some(of_block) = holders.get_mut(&hash) else { return };
    of_block.retain(|holder| *holder != worker);
    if of_block.is_empty() {
        holders.remove(&hash);
    }
}
