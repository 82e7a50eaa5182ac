//! Blocks that workers hold, written and read without the placement's lock.

use crate::settings::PlacementSettings;
use crate::{Decision, Time};
use stator_kv_index::{EventEffect, Index, Overlaps};
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

/// Overlaps of one prompt. Dropping them gives their memory to the next lookup of that thread.
#[derive(Debug, Default)]
pub struct PromptOverlaps(Overlaps);

impl Deref for PromptOverlaps {
    type Target = Overlaps;

    fn deref(&self) -> &Overlaps {
        &self.0
    }
}

impl Drop for PromptOverlaps {
    fn drop(&mut self) {
        OVERLAPS.set(std::mem::take(&mut self.0));
    }
}

impl Blocks {
    pub(crate) fn new(settings: &PlacementSettings) -> Self {
        let index = Index::new(settings.index.clone());
        Self { index, block_size: settings.block_size, ignored_events: AtomicU64::new(0) }
    }

    /// Follows KV events of a worker, in order: what became of the last that had no effect, if
    /// there was one.
    pub fn apply(
        &self,
        worker: WorkerRank,
        generation: Generation,
        events: &[KvEvent],
    ) -> EventEffect {
        let mut applied = EventEffect::Yes;
        let ours = |event: &KvEvent| match event {
            KvEvent::Stored(stored) => stored.block_size == self.block_size.get(),
            KvEvent::Removed(_) | KvEvent::Cleared => true,
        };
        for part in events.chunk_by(|one, next| ours(one) == ours(next)) {
            let became = match ours(&part[0]) {
                true => self.index.apply_all(worker, generation, part),
                false => EventEffect::BlockSize,
            };
            if became != EventEffect::Yes {
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
    ) -> EventEffect {
        let applied = self.index.replace(worker, generation, blocks);
        if applied != EventEffect::Yes {
            self.ignored_events.fetch_add(1, Ordering::Relaxed);
        }
        applied
    }

    /// Events of a worker were lost: it counts as holding no blocks until [`Blocks::replace`] or
    /// a new life.
    pub fn unknown(&self, worker: WorkerRank) {
        self.index.unknown(worker);
    }

    /// Looks up the overlap of a prompt with each worker, to be passed on as
    /// [`crate::PlacementRequest::overlaps`].
    pub fn look_up(&self, sequence: &[SequenceHash]) -> PromptOverlaps {
        let mut overlaps = OVERLAPS.take();
        self.index.overlap(sequence, &mut overlaps);
        PromptOverlaps(overlaps)
    }

    /// Workers were sent a prompt that was looked up before the decision: they are taken to hold
    /// it where their events are not enough.
    pub fn sent(&self, decision: &Decision, sequence: &[SequenceHash]) {
        let legs = decision.prefill.iter().chain(&decision.encode);
        let legs = legs.map(|leg| (leg.worker, leg.holds_until));
        for (worker, until) in legs.chain([(decision.worker, decision.holds_until)]) {
            if let Some(until) = until {
                self.predict(worker, sequence, until);
            }
        }
    }

    /// Takes it that a worker holds a prompt, see [`crate::Placement::prediction_end`].
    pub fn predict(&self, worker: WorkerRank, sequence: &[SequenceHash], until: Time) {
        self.index.predict(worker, sequence, until);
    }

    /// Ends what workers are taken to hold until `now`. To be called now and then.
    pub fn expire(&self, now: Time) {
        self.index.expire(now);
    }

    /// Takes a part of what ended out of memory; true while there is more to do. To be called now
    /// and then by one task, until it is done, with room for others between the parts.
    pub fn maintain(&self) -> bool {
        /// Some hundred microseconds' work, a millisecond where most of it ended.
        const CELLS: usize = 65_536;
        self.index.maintain(CELLS)
    }

    /// The index itself.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Events and snapshots that had no effect, see [`EventEffect`], since the start.
    pub fn ignored_events(&self) -> u64 {
        self.ignored_events.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Placement, PlacementRequest};
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
        let blocks = Blocks::new(&PlacementSettings::default());
        assert!(blocks.index().insert(RANK, LIFE));
        blocks
    }

    #[test]
    fn foreign_blocks_are_passed_over_and_counted() {
        let blocks = blocks();
        let events = [stored(16, vec![1]), stored(32, vec![2]), stored(16, vec![2, 3])];
        assert_eq!(blocks.apply(RANK, LIFE, &events), EventEffect::BlockSize);
        assert_eq!(blocks.look_up(&[1, 2, 3].map(SequenceHash)).of(RANK).blocks(), 3);
        assert_eq!(blocks.apply(RANK, Generation(0), &events[..1]), EventEffect::Stale);
        assert_eq!(blocks.replace(RANK, Generation(0), []), EventEffect::Stale);
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
        let mut placement = Placement::new(PlacementSettings::default());
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
        let request = PlacementRequest {
            sequence: &sequence,
            prompt_tokens: 32,
            ..PlacementRequest::default()
        };
        let asked = PlacementRequest { overlaps: Some(&found), ..request };
        let told = placement.pick(&asked, Time::default(), 0).expect("it takes requests");
        let looked = placement.pick(&request, Time::default(), 0).expect("it takes requests");
        assert_eq!((told.overlap_blocks, looked.overlap_blocks), (2, 0));
    }

    #[test]
    fn what_was_sent_is_predicted_once_the_blocks_are_told() {
        let mut placement = Placement::new(PlacementSettings::default());
        let record = stator_protos::discovery::WorkerRecord {
            worker: RANK,
            generation: LIFE,
            total_blocks: 9,
        };
        let worker = crate::Worker::new(&record, true);
        placement.worker_up(crate::Worker { publishes_events: false, ..worker });
        let blocks = placement.blocks().clone();
        let sequence = [1, 2].map(SequenceHash);
        let held = || blocks.look_up(&sequence).of(RANK).blocks();
        let found = blocks.look_up(&sequence);
        let asked = PlacementRequest {
            sequence: &sequence,
            overlaps: Some(&found),
            ..PlacementRequest::default()
        };
        let decision = placement.pick(&asked, Time::default(), 0).expect("it takes requests");
        assert_eq!(held(), 0, "the placement's lock is not held for that");
        blocks.sent(&decision, &sequence);
        let until = decision.holds_until.expect("its events do not tell");
        blocks.expire(Time(until.0 - std::time::Duration::from_millis(1)));
        assert_eq!(held(), 2);
        blocks.expire(until);
        assert_eq!(held(), 0);
    }

    #[test]
    fn what_ended_goes_in_parts() {
        let blocks = blocks();
        let all: Vec<u64> = (0..200_000).collect();
        blocks.apply(RANK, LIFE, &[stored(16, all)]);
        blocks.unknown(RANK);
        let mut parts = 1;
        while blocks.maintain() {
            parts += 1;
        }
        assert!((3..=10).contains(&parts), "{parts} parts");
        assert_eq!(blocks.index().stats().blocks, 0);
    }
}
