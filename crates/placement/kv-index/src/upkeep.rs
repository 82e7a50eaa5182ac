//! Work in the background: taking retired slots out of the cells, collecting sets, tables that fit.

use crate::index::Index;
use crate::lane::SweepPlace;
use crate::sets::Collection;
use crate::sweep::Sweep;

/// Cells that are swept under one hold of a lane's lock.
const HOLD: usize = 1024;
/// Retired slots beyond which whoever retires one more sweeps too.
const MANY_RETIRED: usize = 64;
/// Cells that they sweep.
const SHARE: usize = 8192;

impl Index {
    /// Takes what former states of workers left behind out of up to about `cells` cells, or where
    /// nothing is left moves about as many into tables that fit, of blocks that became fewer or no
    /// more since the tables were last looked at; true while there is more to do. To be called now
    /// and then from one background thread, until it is done; until then, memory is not used again. No
    /// lock is held for long. The call that finds nothing more to do also joins memory once, see
    /// [`Index::join_page`].
    pub fn maintain(&self, cells: usize) -> bool {
        let has_more = self.sweep(cells) || self.fit(cells);
        if !has_more {
            self.join_page();
        }
        has_more
    }

    /// Makes a huge page of memory under the tables where they have grown, so that lookups find
    /// their way sooner; false if there is nothing to do. Takes up to some milliseconds, during which
    /// writers wait whose tables grow: to be called with time for them in between.
    pub fn join_page(&self) -> bool {
        self.shared.arena.join()
    }

    /// Looks at all tables in turn, until about `cells` cells were moved into others; true if some
    /// are left. Not while snapshots are waited for, for which room was made.
    fn fit(&self, cells: usize) -> bool {
        let Some(mut next) = self.fitting.try_lock() else { return false };
        if self.tenancy.read().lives().any(|life| !life.known) {
            return false;
        }
        let (layout, mut moved) = (&self.shared.layout, 0);
        while moved <= cells {
            if *next == layout.shards() {
                *next = 0;
                return false;
            }
            let (lane, shard) = (layout.lane_of(*next), *next % layout.shards_per_lane());
            moved += self.lanes[lane].lock().fit(&self.shared, shard);
            *next += 1;
        }
        true
    }

    /// Takes what former states left out of up to about `cells` cells.
    fn sweep(&self, cells: usize) -> bool {
        self.collect_if_wanted();
        for lane in &self.lanes {
            lane.lock().free_replaced();
        }
        let Some(mut sweep) = self.sweep.try_lock() else { return true };
        let mut left = cells;
        loop {
            if sweep.slots.is_empty() && !self.start(&mut sweep) {
                return false;
            }
            if left == 0 {
                return true;
            }
            let cells = left.min(HOLD);
            left -= cells;
            self.go_on(&mut sweep, cells);
        }
    }

    /// Sweeps where slots are retired faster than the background takes them out, so that their
    /// number has a bound.
    pub(crate) fn sweep_if_many(&self, retired: usize) {
        if retired > MANY_RETIRED {
            self.sweep(SHARE);
        }
    }

    /// Collects sets if there are many that may be unused: takes each lane's lock in turn.
    pub(crate) fn collect_if_wanted(&self) {
        if !self.shared.sets.wants_collection() {
            return;
        }
        // Whoever else wants it at the same time need not wait.
        let Some(_turn) = self.collecting.try_lock() else { return };
        let mut collection = Collection::begin(&self.shared.sets);
        for lane in &self.lanes {
            lane.lock().name_sets(&mut collection);
        }
        collection.finish(&self.shared.sets);
    }

    /// Starts a sweep for all slots that are retired by now; false if there are none.
    fn start(&self, sweep: &mut Sweep) -> bool {
        let mut slots = self.tenancy.read().retired().to_vec();
        slots.sort_unstable();
        *sweep = Sweep { slots, ..Sweep::default() };
        for lane in &self.lanes {
            lane.lock().forget_steps();
        }
        !sweep.slots.is_empty()
    }

    fn go_on(&self, sweep: &mut Sweep, cells: usize) {
        let Some(lane) = self.lanes.get(sweep.lane) else { return };
        let is_retired = |slot| sweep.slots.binary_search(&slot).is_ok();
        let place = lane.lock().sweep(&self.shared, sweep.place, cells, is_retired);
        match place {
            Some(place) => sweep.place = place,
            None => {
                sweep.lane += 1;
                sweep.place = SweepPlace::default();
            }
        }
        if sweep.lane == self.lanes.len() {
            self.finish(sweep);
        }
    }

    /// Nothing refers to the slots any more.
    fn finish(&self, sweep: &mut Sweep) {
        for lane in &self.lanes {
            let mut lane = lane.lock();
            sweep.slots.iter().for_each(|&slot| lane.forget_slot(slot));
        }
        self.tenancy.write().swept(&sweep.slots);
        sweep.slots.clear();
    }
}
