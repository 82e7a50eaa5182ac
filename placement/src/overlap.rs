//! How much of a request each worker holds already.

use crate::slots::Slots;
use crate::table::BlockTable;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;

/// Leading blocks of a request that a worker holds, by the nearest medium that has each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    by_medium: [u32; Medium::ALL.len()],
}

impl Overlap {
    /// Blocks whose nearest copy is on `medium`.
    pub fn on(&self, medium: Medium) -> u32 {
        self.by_medium[medium as usize]
    }

    /// Blocks on any medium: as many of the request as stand without a gap from its start.
    pub fn blocks(&self) -> u32 {
        self.by_medium.iter().sum()
    }

    /// Counts one more block.
    pub(crate) fn count(&mut self, medium: Medium) {
        self.by_medium[medium as usize] += 1;
    }
}

#[derive(Clone, Copy, Default)]
struct Depth {
    blocks: usize,
    overlap: Overlap,
}

/// Overlaps of one request with every worker that holds its first block. Keep one and pass it
/// again: its memory is reused.
#[derive(Default)]
pub struct Overlaps {
    found: Vec<(WorkerRank, Overlap)>,
    slots: Vec<Depth>,
    touched: Vec<u32>,
}

impl Overlaps {
    /// The workers that hold at least one block, in no order, each once.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerRank, Overlap)> {
        self.found.iter().copied()
    }

    /// The overlap of one worker, all zero if it holds nothing. Takes a look at each in turn.
    pub fn of(&self, worker: WorkerRank) -> Overlap {
        self.iter().find(|(found, _)| *found == worker).map_or_else(Overlap::default, |(_, o)| o)
    }

    /// Finds who holds how many leading blocks of `sequence` in any of `tables`.
    ///
    /// Goes block by block and stops where nobody is left: a worker stays as long as it holds
    /// each block so far.
    pub(crate) fn find<T>(
        &mut self,
        sequence: &[SequenceHash],
        tables: &[&BlockTable],
        workers: &Slots<T>,
    ) {
        self.found.clear();
        self.slots.resize(workers.len(), Depth::default());
        for (position, &hash) in sequence.iter().enumerate() {
            if !self.step(position, hash, tables) {
                break;
            }
        }
        for slot in self.touched.drain(..) {
            let depth = std::mem::take(&mut self.slots[slot as usize]);
            if let Some(worker) = workers.worker(slot) {
                self.found.push((worker, depth.overlap));
            }
        }
    }

    /// Counts one block; false if nobody who held all before it holds it.
    fn step(&mut self, position: usize, hash: SequenceHash, tables: &[&BlockTable]) -> bool {
        let mut held = false;
        for table in tables {
            for holder in table.holders(hash) {
                let depth = &mut self.slots[holder.slot as usize];
                // A worker that missed a block is behind; one with a nearer copy is ahead.
                if depth.blocks != position {
                    continue;
                }
                depth.blocks += 1;
                depth.overlap.count(holder.medium);
                held = true;
                if position == 0 {
                    self.touched.push(holder.slot);
                }
            }
        }
        held
    }
}
