//! The KV index: which worker holds which block, as the workers themselves report it.
//!
//! It may know less than is true (a block it never heard of, one that it dropped for room), and
//! then a prefix is computed again; it never knows more, so that no request is sent after blocks
//! that are gone. [`Index::predict`] is the exception, for workers that report nothing.

use crate::Time;
use crate::overlap::Overlaps;
use crate::predictions::Predictions;
use crate::slots::Slots;
use crate::table::{Added, BlockTable};
use rustc_hash::FxHashSet;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::{Generation, WorkerRank};
use std::collections::VecDeque;

/// What became of an event or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The index follows it.
    Yes,
    /// It is from an earlier life of the worker, and has no effect.
    Stale,
    /// No such worker is registered, and it has no effect.
    UnknownWorker,
    /// The worker's state is unknown, and events have no effect until it is replaced.
    UnknownState,
    /// The event's blocks have another size than ours, so that its hashes mean nothing here.
    BlockSize,
}

/// What a worker reported that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The life that reported it.
    pub generation: Generation,
    /// Each block as often as the worker has copies of it, in no order.
    pub blocks: Vec<(SequenceHash, Medium)>,
}

/// Reported blocks of one worker.
struct WorkerBlocks {
    generation: Generation,
    /// False from a gap in the worker's events until its state is replaced.
    known: bool,
    /// Blocks that it holds on at least one medium.
    held: FxHashSet<SequenceHash>,
}

/// Blocks of all registered workers.
///
/// At most `max_blocks` entries: a block counts once for each worker and medium that holds it.
/// Beyond them the blocks that became known first are forgotten, whoever holds them, and counted
/// ([`Index::dropped`]); their holders then look as if they lacked them.
pub struct Index {
    table: BlockTable,
    predictions: Predictions,
    workers: Slots<WorkerBlocks>,
    /// Blocks in the order in which they became known; some are gone since.
    ages: VecDeque<(u64, SequenceHash)>,
    max_blocks: usize,
    held: usize,
    dropped: u64,
}

impl Index {
    /// An empty index that holds at most `max_blocks` reported and as many predicted entries.
    pub fn new(max_blocks: usize) -> Self {
        Self {
            table: BlockTable::default(),
            predictions: Predictions::new(max_blocks),
            workers: Slots::default(),
            ages: VecDeque::new(),
            max_blocks,
            held: 0,
            dropped: 0,
        }
    }

    /// Registers a worker, or a later life of one, with no blocks. False, and without effect, if
    /// a later life is registered already; the same life keeps its blocks.
    pub fn insert(&mut self, worker: WorkerRank, generation: Generation) -> bool {
        let new = || WorkerBlocks { generation, known: true, held: FxHashSet::default() };
        let slot = self.workers.slot_or_insert(worker, new);
        self.enter(slot, generation) != Applied::Stale
    }

    /// Forgets a worker with all its blocks; its events have no effect from here on.
    pub fn remove(&mut self, worker: WorkerRank) {
        if let Some(slot) = self.workers.slot(worker) {
            self.clear(slot);
            self.workers.remove(worker);
        }
    }

    /// Follows one event of a worker.
    ///
    /// An event of a later life than the registered one starts that life, with no blocks. A block
    /// that is stored twice is there until it is removed twice.
    pub fn apply(
        &mut self,
        worker: WorkerRank,
        generation: Generation,
        event: &KvEvent,
    ) -> Applied {
        let Some(slot) = self.workers.slot(worker) else { return Applied::UnknownWorker };
        let entered = self.enter(slot, generation);
        if entered != Applied::Yes {
            return entered;
        }
        match event {
            KvEvent::Stored(stored) => {
                for &hash in &stored.hashes {
                    self.store(slot, SequenceHash(hash), stored.medium);
                }
            }
            KvEvent::Removed(removed) => {
                for &hash in &removed.hashes {
                    self.discard(slot, SequenceHash(hash), removed.medium);
                }
            }
            KvEvent::Cleared => self.clear(slot),
        }
        Applied::Yes
    }

    /// Replaces all that is known of a worker's blocks: a block that is listed twice is there
    /// twice. The worker's state is known from here on.
    pub fn replace(
        &mut self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
    ) -> Applied {
        let Some(slot) = self.workers.slot(worker) else { return Applied::UnknownWorker };
        if self.enter(slot, generation) == Applied::Stale {
            return Applied::Stale;
        }
        self.clear(slot);
        if let Some(state) = self.workers.at_mut(slot) {
            state.known = true;
        }
        for (hash, medium) in blocks {
            self.store(slot, hash, medium);
        }
        Applied::Yes
    }

    /// Events of a worker were lost: it counts as holding nothing until its state is replaced or
    /// a new life begins.
    pub fn unknown(&mut self, worker: WorkerRank) {
        if let Some(slot) = self.workers.slot(worker) {
            self.clear(slot);
            if let Some(state) = self.workers.at_mut(slot) {
                state.known = false;
            }
        }
    }

    /// Takes it that the worker holds `sequence` until `until`, without a report. No effect if
    /// the worker is not registered or its state is unknown.
    pub fn predict(&mut self, worker: WorkerRank, sequence: &[SequenceHash], until: Time) {
        let Some(slot) = self.workers.slot(worker) else { return };
        if self.workers.at(slot).is_some_and(|state| state.known) {
            self.predictions.add(slot, sequence, until);
        }
    }

    /// Forgets predictions that ended at `now` or before.
    pub fn expire(&mut self, now: Time) {
        self.predictions.expire(now);
    }

    /// Finds how many leading blocks of `sequence` each worker holds, reported or predicted.
    pub fn overlap(&self, sequence: &[SequenceHash], out: &mut Overlaps) {
        out.find(sequence, &[&self.table, self.predictions.table()], &self.workers);
    }

    /// The life of a worker that its blocks belong to; `None` if it is not registered.
    pub fn generation(&self, worker: WorkerRank) -> Option<Generation> {
        let slot = self.workers.slot(worker)?;
        self.workers.at(slot).map(|state| state.generation)
    }

    /// Whether a worker's reported blocks are known; false too if it is not registered.
    pub fn is_known(&self, worker: WorkerRank) -> bool {
        let slot = self.workers.slot(worker);
        slot.and_then(|slot| self.workers.at(slot)).is_some_and(|state| state.known)
    }

    /// What a worker reported that it holds: what [`Index::replace`] takes. `None` if it is not
    /// registered or its state is unknown.
    pub fn held_by(&self, worker: WorkerRank) -> Option<Held> {
        let slot = self.workers.slot(worker)?;
        let state = self.workers.at(slot).filter(|state| state.known)?;
        let copies = |&hash: &SequenceHash| {
            let holders = self.table.holders(hash).iter().filter(|holder| holder.slot == slot);
            holders.flat_map(move |h| (0..h.copies).map(move |_| (hash, h.medium)))
        };
        let blocks = state.held.iter().flat_map(copies).collect();
        Some(Held { generation: state.generation, blocks })
    }

    /// A part of the predictions: at most `most` from position `from` on, in no order that lasts;
    /// `None` at the end. Where predictions change between two calls, some may be missed or come
    /// twice.
    pub fn predictions(&self, from: usize, most: usize) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let part = self.predictions.part(from, most)?;
        let worker = |(hash, slot)| Some((self.workers.worker(slot)?, hash));
        Some(part.filter_map(worker).collect())
    }

    /// Reported entries: a block counts once for each worker and medium that holds it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Predicted entries.
    pub fn predicted(&self) -> usize {
        self.predictions.len()
    }

    /// Reported entries that were forgotten for lack of room since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Brings a worker to a life; a later one than before begins with no blocks.
    fn enter(&mut self, slot: u32, generation: Generation) -> Applied {
        let Some(state) = self.workers.at_mut(slot) else { return Applied::UnknownWorker };
        if generation < state.generation {
            return Applied::Stale;
        }
        if generation > state.generation {
            (state.generation, state.known) = (generation, true);
            self.clear(slot);
        } else if !state.known {
            return Applied::UnknownState;
        }
        Applied::Yes
    }

    fn store(&mut self, slot: u32, hash: SequenceHash, medium: Medium) {
        match self.table.add(hash, slot, medium) {
            Added::Copy => return,
            Added::Holder => {}
            Added::Block(birth) => self.ages.push_back((birth, hash)),
        }
        self.held += 1;
        if let Some(state) = self.workers.at_mut(slot) {
            state.held.insert(hash);
        }
        self.make_room();
    }

    fn discard(&mut self, slot: u32, hash: SequenceHash, medium: Medium) {
        if !self.table.remove(hash, slot, medium) {
            return;
        }
        self.held -= 1;
        if self.table.holders(hash).iter().any(|holder| holder.slot == slot) {
            return;
        }
        if let Some(state) = self.workers.at_mut(slot) {
            state.held.remove(&hash);
        }
    }

    /// Forgets all blocks of a worker, reported and predicted.
    fn clear(&mut self, slot: u32) {
        self.predictions.remove_worker(slot);
        let Some(state) = self.workers.at_mut(slot) else { return };
        for hash in std::mem::take(&mut state.held) {
            self.held -= self.table.remove_worker(hash, slot);
        }
        self.forget_ages();
    }

    /// Drops the oldest blocks while there are too many.
    fn make_room(&mut self) {
        while self.held > self.max_blocks {
            let Some((birth, hash)) = self.ages.pop_front() else { return };
            if self.table.birth(hash) != Some(birth) {
                continue;
            }
            let Self { table, workers, held, dropped, .. } = self;
            table.remove_block(hash, |holder| {
                *held -= 1;
                *dropped += 1;
                if let Some(state) = workers.at_mut(holder.slot) {
                    state.held.remove(&hash);
                }
            });
        }
        self.forget_ages();
    }

    /// Keeps `ages` within a factor of the blocks that are really there.
    fn forget_ages(&mut self) {
        let Self { table, ages, .. } = self;
        if ages.len() > 2 * table.len() + 1024 {
            ages.retain(|&(birth, hash)| table.birth(hash) == Some(birth));
        }
    }
}

#[cfg(test)]
mod tests;
