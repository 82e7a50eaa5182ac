//! Sweeping: takes what retired slots held out of the cells, a few cells at a time.

use super::{Lane, Shared, UsedCell};
use crate::table;

/// Position of a sweep within a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SweepPlace {
    shard: usize,
    bucket: usize,
    /// Of the shard's table; a sweep of a shard that grows starts over.
    growths: u32,
}

impl Lane {
    /// Sweeps up to `cells` cells from `place` on; where to go on, `None` when the lane is done.
    pub(crate) fn sweep(
        &mut self,
        shared: &Shared,
        place: SweepPlace,
        cells: usize,
        is_retired: impl Fn(u32) -> bool,
    ) -> Option<SweepPlace> {
        let shard = self.shards.get(place.shard)?;
        let growths = shard.growths;
        let first = if growths == place.growths { place.bucket } else { 0 };
        let most = cells.div_ceil(table::capacity(1)).max(1);
        let end = (first + most).min(shard.table.len());
        for bucket in first..end {
            self.sweep_bucket(shared, place.shard, bucket, &is_retired);
        }
        if end < self.shards[place.shard].table.len() {
            return Some(SweepPlace { bucket: end, growths, ..place });
        }
        let next = place.shard + 1;
        let growths = self.shards.get(next)?.growths;
        Some(SweepPlace { shard: next, bucket: 0, growths })
    }

    fn sweep_bucket(
        &mut self,
        shared: &Shared,
        shard: usize,
        bucket: usize,
        is_retired: &impl Fn(u32) -> bool,
    ) {
        for cell in 0..table::capacity(1) {
            let table = &self.shards[shard].table;
            let Some(value) = table::used(table, bucket, cell) else { continue };
            let step = self.transitions.strip(&shared.sets, value.set(), is_retired);
            if step.is_some_and(|step| step.set == value.set()) {
                continue;
            }
            let place = table::place_of(table, &shared.layout, bucket, cell);
            let Some((path, at)) = place else { continue };
            match step {
                Some(step) => self.turn(shard, UsedCell { path, at, value }, step.set, false),
                None => self.drop_block(shared, shard, UsedCell { path, at, value }),
            }
        }
    }
}
