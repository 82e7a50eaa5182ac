//! Small numbers for workers, so that tables of blocks need not hold their names.

use rustc_hash::FxHashMap;
use stator_protos::WorkerRank;

/// What is known of each worker, under a number that is reused once the worker is gone.
pub(crate) struct Slots<T> {
    by_worker: FxHashMap<WorkerRank, u32>,
    entries: Vec<Option<(WorkerRank, T)>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { by_worker: FxHashMap::default(), entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn slot(&self, worker: WorkerRank) -> Option<u32> {
        self.by_worker.get(&worker).copied()
    }

    /// The slot of `worker`, with a new entry if it had none.
    pub(crate) fn slot_or_insert(&mut self, worker: WorkerRank, new: impl FnOnce() -> T) -> u32 {
        if let Some(slot) = self.slot(worker) {
            return slot;
        }
        let entry = Some((worker, new()));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 workers")
            }
        };
        self.by_worker.insert(worker, slot);
        slot
    }

    /// Forgets a worker. Nothing may refer to its slot any more.
    pub(crate) fn remove(&mut self, worker: WorkerRank) -> Option<T> {
        let slot = self.by_worker.remove(&worker)?;
        self.free.push(slot);
        self.entries[slot as usize].take().map(|(_, entry)| entry)
    }

    pub(crate) fn at(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.as_ref().map(|(_, entry)| entry)
    }

    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.as_mut().map(|(_, entry)| entry)
    }

    pub(crate) fn worker(&self, slot: u32) -> Option<WorkerRank> {
        self.entries.get(slot as usize)?.as_ref().map(|(worker, _)| *worker)
    }

    /// Slots are below this.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
