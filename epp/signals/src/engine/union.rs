//! Blocks of all ranks of one engine, reported as those of one worker.

use crate::WorkerSink;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_events::KvSink;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use stator_protos::{Generation, WorkerRank};
use std::sync::Arc;

/// Most ranks of one engine: each is a bit of [`RankSets`].
pub(super) const RANKS_MAX: usize = u64::BITS as usize;

/// Ranks that hold a block, on each medium: bit r is rank r.
type RankSets = [u64; Medium::ALL.len()];

/// Joins the blocks of the ranks, which each rank's follower reports, and passes on those that any
/// rank has, on the nearest medium: under its lock, so that the sink hears them in order.
///
/// The first rank's lives are the worker's. Another rank that begins a life, or of which nothing is
/// known any more, takes its own blocks along and no others. As each rank tells of no block before
/// those that it continues, nor of one that is nearer than these, so does the union.
pub(super) struct Union {
    worker: WorkerRank,
    sink: Arc<dyn WorkerSink>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The worker's life; `None` before the first, while nothing is reported.
    generation: Option<Generation>,
    /// The ranks whose blocks are known.
    known: u64,
    held: FxHashMap<u64, RankSets>,
}

/// One rank's place in a union.
struct RankSink {
    union: Arc<Union>,
    /// Its place among the ranks, below [`RANKS_MAX`].
    at: usize,
}

impl Union {
    /// The sinks of `ranks` ranks, at most [`RANKS_MAX`]; `sink` gets their union as one worker.
    pub(super) fn sinks(
        ranks: usize,
        worker: WorkerRank,
        sink: Arc<dyn WorkerSink>,
    ) -> Vec<Arc<dyn WorkerSink>> {
        assert!(ranks <= RANKS_MAX, "{ranks} ranks, limit {RANKS_MAX}");
        let union = Arc::new(Self { worker, sink, state: Mutex::default() });
        let sink = |at| Arc::new(RankSink { union: union.clone(), at }) as Arc<dyn WorkerSink>;
        (0..ranks).map(sink).collect()
    }

    /// Tells all that is known.
    fn tell(&self, state: &State) {
        match state.generation {
            None => {}
            Some(_) if state.known == 0 => self.sink.unknown(self.worker),
            Some(generation) => self.sink.replace(self.worker, generation, state.blocks()),
        }
    }
}

impl State {
    fn blocks(&self) -> Vec<(SequenceHash, Medium)> {
        let blocks = self.held.iter();
        blocks.filter_map(|(hash, held)| Some((SequenceHash(*hash), nearest(held)?))).collect()
    }

    /// Forgets what a rank holds.
    fn forget(&mut self, rank: u64) {
        self.known &= !rank;
        self.held.retain(|_, held| {
            held.iter_mut().for_each(|ranks| *ranks &= !rank);
            nearest(held).is_some()
        });
    }

    /// Follows an event that is no clearing; appends what it changes.
    fn follow(&mut self, rank: u64, event: &KvEvent, out: &mut Vec<KvEvent>) {
        let (hashes, medium, block_size) = match event {
            KvEvent::Stored(stored) => (&stored.hashes, stored.medium, Some(stored.block_size)),
            KvEvent::Removed(removed) => (&removed.hashes, removed.medium, None),
            KvEvent::Cleared => return,
        };
        let mut changed = Vec::new();
        for hash in hashes {
            let held = self.held.entry(*hash).or_default();
            let before = nearest(held);
            match block_size {
                Some(_) => held[medium as usize] |= rank,
                None => held[medium as usize] &= !rank,
            }
            let after = nearest(held);
            if after.is_none() {
                self.held.remove(hash);
            }
            if before != after {
                changed.push((*hash, before, after));
            }
        }
        tell_changes(&changed, block_size.unwrap_or_default(), out);
    }
}

fn nearest(held: &RankSets) -> Option<Medium> {
    let mut media = Medium::ALL.into_iter().zip(held);
    media.find(|(_, ranks)| **ranks != 0).map(|(medium, _)| medium)
}

/// Reports the new places of blocks before the places that they left.
fn tell_changes(
    changed: &[(u64, Option<Medium>, Option<Medium>)],
    block_size: u32,
    out: &mut Vec<KvEvent>,
) {
    for medium in Medium::ALL {
        let hashes = changed.iter().filter(|(_, _, after)| *after == Some(medium));
        let hashes: Vec<_> = hashes.map(|(hash, ..)| *hash).collect();
        if !hashes.is_empty() {
            // A block's hash names all that is before it.
            let (parent, tokens, lora_name) = (None, Vec::new(), None);
            let stored = Stored { hashes, parent, tokens, block_size, medium, lora_name };
            out.push(KvEvent::Stored(stored));
        }
    }
    for medium in Medium::ALL {
        let hashes = changed.iter().filter(|(_, before, _)| *before == Some(medium));
        let hashes: Vec<_> = hashes.map(|(hash, ..)| *hash).collect();
        if !hashes.is_empty() {
            out.push(KvEvent::Removed(Removed { hashes, medium }));
        }
    }
}

impl RankSink {
    fn bit(&self) -> u64 {
        1 << self.at
    }
}

impl KvSink for RankSink {
    fn apply(&self, _: WorkerRank, _: Generation, events: &[KvEvent]) {
        let (union, mut out) = (&self.union, Vec::new());
        let mut state = union.state.lock();
        for event in events {
            if *event == KvEvent::Cleared {
                state.forget(self.bit());
                state.known |= self.bit();
                // What came before it is told with all else.
                union.tell(&state);
                out.clear();
            }
            state.follow(self.bit(), event, &mut out);
        }
        if let Some(generation) = state.generation.filter(|_| !out.is_empty()) {
            union.sink.apply(union.worker, generation, &out);
        }
    }

    fn replace(&self, _: WorkerRank, _: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        let mut state = self.union.state.lock();
        state.forget(self.bit());
        state.known |= self.bit();
        for (hash, medium) in blocks {
            state.held.entry(hash.0).or_default()[medium as usize] |= self.bit();
        }
        self.union.tell(&state);
    }

    fn unknown(&self, _: WorkerRank) {
        let mut state = self.union.state.lock();
        state.forget(self.bit());
        self.union.tell(&state);
    }
}

impl WorkerSink for RankSink {
    fn life(&self, _: WorkerRank, generation: Generation) {
        let mut state = self.union.state.lock();
        state.forget(self.bit());
        if self.at == 0 {
            state.generation = Some(generation);
            self.union.sink.life(self.union.worker, generation);
        }
        self.union.tell(&state);
    }
}

#[cfg(test)]
#[path = "union_tests.rs"]
mod tests;
