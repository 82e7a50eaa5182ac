//! Slots of workers, and the workers' lives.
//!
//! A slot belongs to one state of one worker: a new life, a clear or a replacement takes a new
//! slot, so that all blocks held before are gone at once. The old slot is retired and used again
//! only when nothing refers to it.

use crate::elements::MAX_SLOTS;
use rustc_hash::FxHashMap;
use stator_protos::{Generation, WorkerRank};

/// Outcome of an event or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEffect {
    /// The index follows it.
    Yes,
    /// It comes from an earlier life of the worker, and has no effect.
    Stale,
    /// No such worker is registered, and it has no effect.
    UnknownWorker,
    /// The worker's state is unknown, and events have no effect until it is replaced.
    UnknownState,
    /// The worker's state is known, and what another says of it has no effect.
    KnownState,
    /// The event's blocks have another size than ours, so that its hashes mean nothing here. The
    /// index, which cannot know, never says so; it is for those who check before it.
    BlockSize,
}

/// The present state of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerLife {
    pub(crate) slot: u32,
    pub(crate) generation: Generation,
    /// False from a gap in the worker's events until its state is replaced.
    pub(crate) known: bool,
}

/// All registered workers.
#[derive(Default)]
pub(crate) struct Tenancy {
    lives: FxHashMap<WorkerRank, WorkerLife>,
    /// Slots that cells may still refer to.
    retired: Vec<u32>,
    free: Vec<u32>,
    next: u32,
}

/// Relation of a worker's new state to the one before.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Entrance {
    /// It may be the first.
    Registers,
    /// It follows on it, whatever that is.
    Replaces,
    /// It takes the place of one that is unknown.
    Restores,
}

/// Relation of an event's or snapshot's life to the registered one.
pub(crate) enum Stands {
    /// Of this life.
    Same(WorkerLife),
    /// Of a later life.
    Later,
    Stale,
    UnknownWorker,
}

impl Tenancy {
    pub(crate) fn stands(&self, worker: WorkerRank, generation: Generation) -> Stands {
        match self.lives.get(&worker) {
            None => Stands::UnknownWorker,
            Some(life) if generation < life.generation => Stands::Stale,
            Some(life) if generation > life.generation => Stands::Later,
            Some(life) => Stands::Same(*life),
        }
    }

    pub(crate) fn life(&self, worker: WorkerRank) -> Option<WorkerLife> {
        self.lives.get(&worker).copied()
    }

    pub(crate) fn lives(&self) -> impl Iterator<Item = WorkerLife> {
        self.lives.values().copied()
    }

    /// Lives of all workers but one.
    pub(crate) fn others(&self, than: WorkerRank) -> impl Iterator<Item = WorkerLife> {
        self.lives.iter().filter(move |(worker, _)| **worker != than).map(|(_, life)| *life)
    }

    /// Makes `life` the worker's present one.
    pub(crate) fn enter(&mut self, worker: WorkerRank, life: WorkerLife) {
        self.lives.insert(worker, life);
    }

    pub(crate) fn leave(&mut self, worker: WorkerRank) -> Option<WorkerLife> {
        self.lives.remove(&worker)
    }

    /// A slot that nothing refers to, and whether another life had it before.
    pub(crate) fn slot(&mut self) -> (u32, bool) {
        if let Some(slot) = self.free.pop() {
            return (slot, true);
        }
        let slot = self.next;
        // Retiring sweeps (see `Index::retire`), which frees slots long before there are as many.
        assert!(slot < MAX_SLOTS, "{MAX_SLOTS} slots in use");
        self.next += 1;
        (slot, false)
    }

    /// Takes a slot out of use, until [`Tenancy::swept`].
    pub(crate) fn retire(&mut self, slot: u32) {
        self.retired.push(slot);
    }

    pub(crate) fn retired(&self) -> &[u32] {
        &self.retired
    }

    /// Nothing refers to these slots any more.
    pub(crate) fn swept(&mut self, slots: &[u32]) {
        self.retired.retain(|slot| slots.binary_search(slot).is_err());
        self.free.extend_from_slice(slots);
    }
}
