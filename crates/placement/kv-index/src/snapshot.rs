//! Snapshots: all blocks of a worker at once, in parts, with room made ahead.
//!
//! A new replica gets one of each worker after the other. Once some have come, room is made for
//! more of them together.

use crate::elements::{Code, Op};
use crate::index::Index;
use crate::lane::ExpectedBlocks;
use crate::scatter;
use crate::tenancy::{Entrance, EventEffect, Stands, WorkerLife};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::{Generation, WorkerRank};
use std::sync::atomic::Ordering::Relaxed;

/// Blocks of a snapshot that are written at a time; between them other writers have their turn.
const PART: usize = 8192;
/// Bytes that room for one block takes at most, all shards together.
const BLOCK_BYTES: usize = 24;

impl Index {
    /// Replaces all that is known of a worker's blocks, reported and predicted: readers see the
    /// old state or the new one. The worker's state is known from here on.
    ///
    /// Where the iterator tells how many blocks come at least, room for them is made ahead; where
    /// the states of others are unknown, for some of theirs too.
    pub fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
    ) -> EventEffect {
        self.fill(worker, generation, blocks, Entrance::Replaces)
    }

    /// As [`Index::replace`], from another who knows the worker's blocks: no effect where its state
    /// is known already, or is before all blocks are in. It may come at once with other calls about
    /// the worker.
    pub fn restore(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
    ) -> EventEffect {
        self.fill(worker, generation, blocks, Entrance::Restores)
    }

    fn fill(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
        entrance: Entrance,
    ) -> EventEffect {
        match self.tenancy.read().stands(worker, generation) {
            Stands::UnknownWorker => return EventEffect::UnknownWorker,
            Stands::Stale => return EventEffect::Stale,
            Stands::Same(life) if life.known && entrance == Entrance::Restores => {
                return EventEffect::KnownState;
            }
            Stands::Same(_) | Stands::Later => {}
        }
        let slot = self.take_slot();
        let change = |(SequenceHash(hash), medium): (SequenceHash, Medium)| {
            (Op::Store(medium).code(), [hash])
        };
        let mut changes = blocks.into_iter().map(change).peekable();
        let is_long = changes.size_hint().0 > PART;
        let before = if is_long { self.distinct() } else { 0 };
        self.write_part(slot, &mut changes);
        if is_long {
            // Others may hold the same blocks, or the worker itself held them: the first part
            // tells how many have a place already.
            let new = self.distinct().saturating_sub(before).min(PART);
            let left = changes.size_hint().0;
            let part = |blocks: usize| blocks.saturating_mul(new) / PART;
            self.make_room(
                part(left),
                part(left.saturating_add(PART).saturating_mul(self.coming(worker))),
            );
        }
        while changes.peek().is_some() {
            self.write_part(slot, &mut changes);
        }
        self.enter(worker, WorkerLife { slot, generation, known: true }, entrance)
    }

    fn write_part(&self, slot: u32, changes: &mut impl Iterator<Item = (Code, [u64; 1])>) {
        self.collect_if_wanted();
        // Nobody else knows the slot, so that it needs no guard.
        scatter::write(&self.shared, &self.lanes, slot, changes.take(PART));
    }

    /// Distinct blocks.
    fn distinct(&self) -> usize {
        self.lanes.iter().map(|lane| lane.lock().blocks()).sum()
    }

    /// Snapshots of other workers that may come next: one of each whose state is unknown, up to one
    /// and a half times as many as are known.
    fn coming(&self, worker: WorkerRank) -> usize {
        let tenancy = self.tenancy.read();
        let (mut known, mut unknown) = (0, 0);
        for life in tenancy.others(worker) {
            *if life.known { &mut known } else { &mut unknown } += 1;
        }
        unknown.min(known * 3 / 2)
    }

    /// Makes room for so many more blocks or, where memory does not allow it, for an even share
    /// of them in every shard. Shards that grow for them get room for `others` too, which may come
    /// next, while half of all memory is enough.
    fn make_room(&self, blocks: usize, others: usize) {
        let bytes = self.shared.table_bytes.load(Relaxed);
        let fitting = |max: usize| max.saturating_sub(bytes) / BLOCK_BYTES;
        let (all, half) = (self.shared.max_table_bytes, self.shared.max_table_bytes / 2);
        let shards = self.shared.layout.shards();
        let each = blocks.min(fitting(all)) / shards;
        let others = others.min(fitting(half).saturating_sub(blocks)) / shards;
        let expected = ExpectedBlocks { sure: each, others };
        for lane in &self.lanes {
            // A hold for each shard: a copy takes long enough.
            (0..self.shared.layout.shards_per_lane())
                .for_each(|shard| lane.lock().reserve(&self.shared, shard, expected));
        }
    }
}
