//! The index as its users see it: lives of workers, events, predictions.

use crate::arena::Arena;
use crate::elements::Op;
use crate::lane::{Lane, Shared};
use crate::layout::{BUCKET_BYTES, Layout};
use crate::lookup::{self, Overlaps};
use crate::predictions::{Predictions, Tails};
use crate::scatter;
use crate::sets::Sets;
use crate::settings::IndexSettings;
use crate::sweep::Sweep;
use crate::tenancy::{Entrance, EventEffect, Stands, Tenancy, WorkerLife};
use crate::time::Time;
use crate::view::Published;
use parking_lot::{Mutex, RwLock};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::KvEvent;
use stator_protos::{Generation, WorkerRank};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// The index of blocks: the workers that hold each block, and the medium.
///
/// Shared by any number of readers ([`Index::overlap`]), which take no lock, and writers. A write
/// is visible when its call returns. Calls about one worker have to come one after the other, as
/// its events do; calls about several workers may come at once.
///
/// Memory is bounded ([`IndexSettings::max_bytes`]). Beyond the bound the blocks that were stored
/// longest ago go first, and are counted ([`IndexStats::dropped`](crate::IndexStats::dropped)): overlaps come
/// out shorter than they are, never longer.
pub struct Index {
    pub(crate) shared: Shared,
    pub(crate) lanes: Box<[Mutex<Lane>]>,
    /// Read while cells are written for a slot, so that the slot is not given away meanwhile.
    pub(crate) tenancy: RwLock<Tenancy>,
    pub(crate) predictions: Mutex<Predictions>,
    pub(crate) sweep: Mutex<Sweep>,
    /// The shard that is looked at next for whether its table fits.
    pub(crate) fitting: Mutex<usize>,
    /// Held by whoever collects sets.
    pub(crate) collecting: Mutex<()>,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(IndexSettings::default())
    }
}

impl Index {
    /// An empty index.
    pub fn new(settings: IndexSettings) -> Self {
        let layout = Layout::new(&settings);
        Self::with_layout(&settings, layout)
    }

    pub(crate) fn with_layout(settings: &IndexSettings, layout: Layout) -> Self {
        let max_table_bytes = settings.max_bytes - settings.max_bytes / 8;
        let arena = Arena::new(max_table_bytes);
        let published = Published::new(&layout, &arena);
        let buckets: usize = published.view().tables().map(|table| table.len()).sum();
        let table_bytes = AtomicUsize::new(buckets * BUCKET_BYTES);
        // Sets are few; a fleet that needs more than an eighth for them has hostile members.
        let sets = Sets::new(settings.max_bytes / 8);
        let has_dropped = AtomicBool::new(false);
        let shared =
            Shared { layout, arena, published, sets, table_bytes, max_table_bytes, has_dropped };
        let lanes = (0..layout.lanes()).map(|number| Mutex::new(Lane::new(&shared, number)));
        Self {
            lanes: lanes.collect(),
            shared,
            tenancy: RwLock::default(),
            predictions: Mutex::new(Predictions::new(settings)),
            sweep: Mutex::default(),
            fitting: Mutex::default(),
            collecting: Mutex::default(),
        }
    }

    /// Registers a worker, or a later life of one, with no blocks. False, and without effect, if
    /// a later life is registered already; the same life keeps its blocks.
    pub fn insert(&self, worker: WorkerRank, generation: Generation) -> bool {
        let stands = self.tenancy.read().stands(worker, generation);
        match stands {
            Stands::Stale => false,
            Stands::Same(_) => true,
            Stands::Later | Stands::UnknownWorker => {
                let life = WorkerLife { slot: self.take_slot(), generation, known: true };
                self.enter(worker, life, Entrance::Registers) == EventEffect::Yes
            }
        }
    }

    /// Forgets a worker with all its blocks; its events have no effect from here on.
    pub fn remove(&self, worker: WorkerRank) {
        let left = {
            let mut tenancy = self.tenancy.write();
            let left = tenancy.leave(worker);
            if let Some(life) = left {
                self.shared.published.update(|view| view.set_worker(life.slot, None));
            }
            left
        };
        left.into_iter().for_each(|life| self.retire(life.slot));
    }

    /// Follows one event of a worker. An event of a later life than the registered one starts
    /// that life, with no blocks.
    pub fn apply(
        &self,
        worker: WorkerRank,
        generation: Generation,
        event: &KvEvent,
    ) -> EventEffect {
        self.apply_all(worker, generation, std::slice::from_ref(event))
    }

    /// Follows events of a worker, in order, at less cost than one by one.
    pub fn apply_all(
        &self,
        worker: WorkerRank,
        generation: Generation,
        events: &[KvEvent],
    ) -> EventEffect {
        self.collect_if_wanted();
        for events in events.split_inclusive(|event| *event == KvEvent::Cleared) {
            let (cleared, events) = match events.split_last() {
                Some((KvEvent::Cleared, events)) => (true, events),
                _ => (false, events),
            };
            let applied = self.follow(worker, generation, events);
            if applied != EventEffect::Yes {
                return applied;
            }
            if cleared && self.has_blocks(worker) {
                self.renew(worker, generation, true);
            }
        }
        EventEffect::Yes
    }

    /// Events of a worker were lost: it counts as holding nothing until its state is replaced or
    /// a new life begins.
    pub fn unknown(&self, worker: WorkerRank) {
        let life = self.tenancy.read().life(worker);
        if let Some(life) = life.filter(|life| life.known) {
            self.renew(worker, life.generation, false);
        }
    }

    /// The life of a worker that its blocks belong to; `None` if it is not registered.
    pub fn generation(&self, worker: WorkerRank) -> Option<Generation> {
        self.tenancy.read().life(worker).map(|life| life.generation)
    }

    /// Whether a worker's reported blocks are known; false too if it is not registered.
    pub fn is_known(&self, worker: WorkerRank) -> bool {
        self.tenancy.read().life(worker).is_some_and(|life| life.known)
    }

    /// Finds how many leading blocks of `sequence` each worker holds, reported or predicted.
    ///
    /// Takes no lock, and allocates nothing once `out` has room. Changes made meanwhile may be in
    /// the result or not.
    pub fn overlap(&self, sequence: &[SequenceHash], out: &mut Overlaps) {
        lookup::overlap(&self.shared, sequence, out);
    }

    /// Takes it that the worker holds `sequence`, without a report, for as long as
    /// [`IndexSettings::predicting`] says; `until` is the end where that is a matter of time. No effect
    /// if the worker is not registered or its state is unknown.
    pub fn predict(&self, worker: WorkerRank, sequence: &[SequenceHash], until: Time) {
        self.collect_if_wanted();
        let mut predictions = self.predictions.lock();
        let tenancy = self.tenancy.read();
        if let Some(life) = tenancy.life(worker).filter(|life| life.known) {
            predictions.add(life.slot, sequence, until, self);
        }
    }

    /// Forgets predictions that ended at `now` or before.
    pub fn expire(&self, now: Time) {
        self.predictions.lock().expire(now, self);
    }

    /// A page of the predictions: at most `most` blocks from position `from` on, sequence by
    /// sequence in the order in which they expire; `None` at the end. A block that several
    /// sequences of a worker share comes with each. Predictions that change between two calls may
    /// be missed or come twice.
    pub fn predictions(&self, from: usize, most: usize) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let predictions = self.predictions.lock();
        let view = self.shared.published.view();
        let (mut skip, mut part) = (from, Vec::new());
        for (slot, chain) in predictions.iter() {
            let rest = chain.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(chain.len());
            let Some(worker) = view.worker(slot) else { continue };
            let left = most - part.len();
            part.extend(rest.iter().take(left).map(|&hash| (worker, hash)));
            if part.len() == most {
                break;
            }
        }
        (!part.is_empty()).then_some(part)
    }

    /// Follows events without a clear among them.
    fn follow(
        &self,
        worker: WorkerRank,
        generation: Generation,
        events: &[KvEvent],
    ) -> EventEffect {
        // The read lock stays until the blocks are written, so that nobody retires the slot before.
        let (life, tenancy) = loop {
            let tenancy = self.tenancy.read();
            match tenancy.stands(worker, generation) {
                Stands::UnknownWorker => return EventEffect::UnknownWorker,
                Stands::Stale => return EventEffect::Stale,
                Stands::Same(life) => break (life, tenancy),
                Stands::Later => {
                    drop(tenancy);
                    self.renew(worker, generation, true);
                }
            }
        };
        if !life.known {
            return EventEffect::UnknownState;
        }
        let runs = events.iter().map(|event| {
            let (op, hashes) = match event {
                KvEvent::Stored(stored) => (Op::Store(stored.medium), &stored.hashes[..]),
                KvEvent::Removed(removed) => (Op::Remove(removed.medium), &removed.hashes[..]),
                KvEvent::Cleared => (Op::Unpredict, &[][..]),
            };
            (op.code(), hashes.iter().copied())
        });
        scatter::write(&self.shared, &self.lanes, life.slot, runs);
        drop(tenancy);
        EventEffect::Yes
    }

    /// Whether there is anything to clear.
    fn has_blocks(&self, worker: WorkerRank) -> bool {
        let predictions = self.predictions.lock();
        let Some(life) = self.tenancy.read().life(worker) else { return false };
        predictions.has(life.slot) || self.lanes.iter().any(|lane| lane.lock().held(life.slot) > 0)
    }

    /// Starts an empty state of a worker.
    fn renew(&self, worker: WorkerRank, generation: Generation, known: bool) {
        let slot = self.take_slot();
        self.enter(worker, WorkerLife { slot, generation, known }, Entrance::Replaces);
    }

    /// Makes `life` the worker's, unless a later one came meanwhile, the worker went, or this is
    /// not to take the place of what became known.
    pub(crate) fn enter(
        &self,
        worker: WorkerRank,
        life: WorkerLife,
        entrance: Entrance,
    ) -> EventEffect {
        let (applied, retired) = {
            let mut tenancy = self.tenancy.write();
            match tenancy.stands(worker, life.generation) {
                Stands::Stale => (EventEffect::Stale, Some(life.slot)),
                Stands::UnknownWorker if entrance != Entrance::Registers => {
                    (EventEffect::UnknownWorker, Some(life.slot))
                }
                Stands::Same(WorkerLife { known: true, .. }) if entrance == Entrance::Restores => {
                    (EventEffect::KnownState, Some(life.slot))
                }
                Stands::UnknownWorker => {
                    (EventEffect::Yes, self.publish(&mut tenancy, worker, life))
                }
                Stands::Same(_) | Stands::Later => {
                    (EventEffect::Yes, self.publish(&mut tenancy, worker, life))
                }
            }
        };
        // After the lock, which retiring takes again.
        retired.into_iter().for_each(|slot| self.retire(slot));
        applied
    }

    /// Shows readers a worker's new state in the place of the old one, whose slot it returns.
    fn publish(&self, tenancy: &mut Tenancy, worker: WorkerRank, life: WorkerLife) -> Option<u32> {
        let old = tenancy.life(worker).map(|life| life.slot);
        tenancy.enter(worker, life);
        self.shared.published.update(|view| {
            old.into_iter().for_each(|slot| view.set_worker(slot, None));
            view.set_worker(life.slot, Some(worker));
        });
        old
    }

    pub(crate) fn take_slot(&self) -> u32 {
        let (slot, used) = self.tenancy.write().slot();
        if used {
            self.shared.published.reuse();
        }
        slot
    }

    /// Lets go of a slot that no view has any more.
    fn retire(&self, slot: u32) {
        self.predictions.lock().forget_slot(slot);
        let retired = {
            let mut tenancy = self.tenancy.write();
            tenancy.retire(slot);
            tenancy.retired().len()
        };
        self.sweep_if_many(retired);
    }
}

impl Tails for Index {
    fn write(&self, slot: u32, blocks: &[SequenceHash], op: Op) {
        let run = (op.code(), blocks.iter().map(|hash| hash.0));
        scatter::write(&self.shared, &self.lanes, slot, std::iter::once(run));
    }
}

#[cfg(all(test, not(stator_loom)))]
mod tests;
