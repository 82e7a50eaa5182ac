//! What workers hold, for those who tell of it and those who ask, without the placement's lock.

use crate::Time;
use crate::settings::Settings;
use stator_kv_index::{Applied, Index, Overlaps};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::{Generation, WorkerRank};
use std::cell::Cell;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Memory that each lookup of a thread uses again.
    static OVERLAPS: Cell<Overlaps> = Cell::default();
}

/// The blocks of one placement's workers: the KV index, and what became of what it was told.
///
/// Shared by the placement, which says which workers there are, by their event feeds, and by
/// whoever looks a prompt up before it takes the placement's lock. Calls about one worker have to
/// come one after the other; events must be closed, see [`stator_kv_index`].
pub struct Blocks {
    index: Index,
    block_size: NonZeroU32,
    ignored_events: AtomicU64,
}

/// What workers hold of one prompt. Its memory goes to the next lookup of the thread that drops
/// it.
#[derive(Debug)]
pub struct Found(Overlaps);

impl Deref for Found {
    type Target = Overlaps;

    fn deref(&self) -> &Overlaps {
        &self.0
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        OVERLAPS.set(std::mem::take(&mut self.0));
    }
}

impl Blocks {
    pub(crate) fn new(settings: &Settings) -> Self {
        let index = Index::new(settings.index.clone());
        Self { index, block_size: settings.block_size, ignored_events: AtomicU64::new(0) }
    }

    /// Follows KV events of a worker, in order: what became of the last that had no effect, if
    /// there was one.
    pub fn apply(&self, worker: WorkerRank, generation: Generation, events: &[KvEvent]) -> Applied {
        let mut applied = Applied::Yes;
        let ours = |event: &KvEvent| match event {
            KvEvent::Stored(stored) => stored.block_size == self.block_size.get(),
            KvEvent::Removed(_) | KvEvent::Cleared => true,
        };
        for part in events.chunk_by(|one, next| ours(one) == ours(next)) {
            let became = match ours(&part[0]) {
                true => self.index.apply_all(worker, generation, part),
                false => Applied::BlockSize,
            };
            if became != Applied::Yes {
                self.ignored_events.fetch_add(part.len() as u64, Ordering::Relaxed);
                applied = became;
            }
        }
        applied
    }

    /// Replaces what is known of a worker's blocks by a snapshot.
    pub fn replace(
        &self,
        worker: WorkerRank,
        generation: Generation,
        blocks: impl IntoIterator<Item = (SequenceHash, Medium)>,
    ) -> Applied {
        let applied = self.index.replace(worker, generation, blocks);
        if applied != Applied::Yes {
            self.ignored_events.fetch_add(1, Ordering::Relaxed);
        }
        applied
    }

    /// Events of a worker were lost: it counts as holding no blocks until [`Blocks::replace`] or
    /// a new life.
    pub fn unknown(&self, worker: WorkerRank) {
        self.index.unknown(worker);
    }

    /// What each worker holds of a prompt, to be passed on as [`crate::Request::overlaps`].
    pub fn look_up(&self, sequence: &[SequenceHash]) -> Found {
        let mut overlaps = OVERLAPS.take();
        self.index.overlap(sequence, &mut overlaps);
        Found(overlaps)
    }

    /// Takes what ended out of memory, bit by bit; true while there is more to do. To be called
    /// now and then by whoever has time.
    pub fn maintain(&self) -> bool {
        /// Some tens of microseconds' work.
        const CELLS: usize = 4096;
        self.index.maintain(CELLS)
    }

    /// The index itself.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Events and snapshots that had no effect, see [`Applied`], since the start.
    pub fn ignored_events(&self) -> u64 {
        self.ignored_events.load(Ordering::Relaxed)
    }

    pub(crate) fn expire(&self, now: Time) {
        self.index.expire(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Placement, Request};
    use stator_protos::WorkerId;
    use stator_protos::kv_event::Stored;

    const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };
    const LIFE: Generation = Generation(1);

    fn stored(block_size: u32, hashes: Vec<u64>) -> KvEvent {
        KvEvent::Stored(Stored {
            hashes,
            parent: None,
            tokens: Vec::new(),
            block_size,
            medium: Medium::Device,
            lora_name: None,
        })
    }

    fn blocks() -> Blocks {
        let blocks = Blocks::new(&Settings::default());
        assert!(blocks.index().insert(RANK, LIFE));
        blocks
    }

    #[test]
    fn foreign_blocks_are_passed_over_and_counted() {
        let blocks = blocks();
        let events = [stored(16, vec![1]), stored(32, vec![2]), stored(16, vec![2, 3])];
        assert_eq!(blocks.apply(RANK, LIFE, &events), Applied::BlockSize);
        assert_eq!(blocks.look_up(&[1, 2, 3].map(SequenceHash)).of(RANK).blocks(), 3);
        assert_eq!(blocks.apply(RANK, Generation(0), &events[..1]), Applied::Stale);
        assert_eq!(blocks.replace(RANK, Generation(0), []), Applied::Stale);
        assert_eq!(blocks.ignored_events(), 3);
    }

    #[test]
    fn lookups_may_overlap() {
        let blocks = blocks();
        blocks.apply(RANK, LIFE, &[stored(16, vec![1, 2])]);
        let one = blocks.look_up(&[SequenceHash(1)]);
        let other = blocks.look_up(&[SequenceHash(1), SequenceHash(2)]);
        assert_eq!((one.of(RANK).blocks(), other.of(RANK).blocks()), (1, 2));
        drop(one);
        assert_eq!(other.of(RANK).blocks(), 2);
    }

    #[test]
    fn what_was_looked_up_before_is_what_a_pick_goes_by() {
        let mut placement = Placement::new(Settings::default());
        let record = stator_protos::discovery::WorkerRecord {
            worker: RANK,
            generation: LIFE,
            total_blocks: 9,
        };
        placement.worker_up(crate::Worker::new(&record, true));
        let blocks = placement.blocks().clone();
        blocks.apply(RANK, LIFE, &[stored(16, vec![1, 2])]);
        let sequence = [1, 2].map(SequenceHash);
        let found = blocks.look_up(&sequence);
        blocks.unknown(RANK);
        let request = Request { sequence: &sequence, prompt_tokens: 32, ..Request::default() };
        let asked = Request { overlaps: Some(&found), ..request };
        let told = placement.pick(&asked, Time::default(), 0).expect("it takes requests");
        let looked = placement.pick(&request, Time::default(), 0).expect("it takes requests");
        assert_eq!((told.overlap_blocks, looked.overlap_blocks), (2, 0));
        blocks.maintain();
    }
}
