//! The prompts that run on one worker, and how many different blocks they have.

use crate::tracker::BookingId;
use stator_protos::hash::SequenceHash;
use std::cmp::Ordering;
use std::sync::Arc;

/// Sequences of the requests on one worker, in order, so that those with a common prefix are
/// neighbours. Finding a place takes a few comparisons, where a table of all blocks would take one
/// step for each block of each request.
///
/// That two sequences with the same hash at one place are the same up to there is what a chained
/// hash means; should hashes ever collide, counts are off while the two requests run.
#[derive(Default)]
pub(crate) struct Chains {
    sorted: Vec<Chain>,
    /// Sum over all chains of what each has beyond its predecessor.
    blocks: u64,
}

struct Chain {
    /// A copy of the first hash, which decides most comparisons.
    first: SequenceHash,
    hashes: Arc<[SequenceHash]>,
    id: BookingId,
}

impl Chain {
    fn compare(&self, sequence: &[SequenceHash]) -> Ordering {
        let Some(first) = sequence.first() else { return Ordering::Greater };
        self.first.cmp(first).then_with(|| {
            let common = common(&self.hashes, sequence);
            self.hashes.get(common).cmp(&sequence.get(common))
        })
    }
}

impl Chains {
    /// Different blocks of all chains.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Leading blocks of `sequence` that some chain has.
    pub(crate) fn overlap(&self, sequence: &[SequenceHash]) -> usize {
        if sequence.is_empty() || self.sorted.is_empty() {
            return 0;
        }
        let place = self.sorted.partition_point(|chain| chain.compare(sequence).is_lt());
        let (before, after) = self.common_with_neighbours(place, place, sequence);
        before.max(after)
    }

    /// Adds a chain; an empty one leaves no trace.
    pub(crate) fn insert(&mut self, hashes: &Arc<[SequenceHash]>, id: BookingId) {
        let Some(&first) = hashes.first() else { return };
        let place = self.place(hashes, id);
        let (before, after) = self.common_with_neighbours(place, place, hashes);
        self.blocks += hashes.len() as u64 + self.common_across(place, place);
        self.blocks -= (before + after) as u64;
        self.sorted.insert(place, Chain { first, hashes: hashes.clone(), id });
    }

    /// Removes a chain that was added.
    pub(crate) fn remove(&mut self, hashes: &Arc<[SequenceHash]>, id: BookingId) {
        let mut place = self.place(hashes, id);
        if self.sorted.get(place).is_none_or(|chain| chain.id != id) {
            // Only colliding hashes can hide a chain from the search.
            let Some(found) = self.sorted.iter().position(|chain| chain.id == id) else { return };
            place = found;
        }
        let (before, after) = self.common_with_neighbours(place, place + 1, hashes);
        self.blocks += (before + after) as u64;
        self.blocks -= hashes.len() as u64 + self.common_across(place, place + 1);
        self.sorted.remove(place);
    }

    /// Where a chain stands or would stand; equal ones stand in order of their bookings.
    fn place(&self, hashes: &[SequenceHash], id: BookingId) -> usize {
        self.sorted.partition_point(|chain| chain.compare(hashes).then(chain.id.cmp(&id)).is_lt())
    }

    /// Blocks that `sequence` has in common with the chain before `before` and the one at `after`.
    fn common_with_neighbours(
        &self,
        before: usize,
        after: usize,
        sequence: &[SequenceHash],
    ) -> (usize, usize) {
        let with = |place: Option<usize>| {
            let chain = place.and_then(|place| self.sorted.get(place));
            chain.map_or(0, |chain| common(&chain.hashes, sequence))
        };
        (with(before.checked_sub(1)), with(Some(after)))
    }

    /// Blocks that the chain before `before` and the one at `after` have in common.
    fn common_across(&self, before: usize, after: usize) -> u64 {
        let chain = |place: usize| self.sorted.get(place).map(|chain| &*chain.hashes);
        let pair = before.checked_sub(1).and_then(chain).zip(chain(after));
        pair.map_or(0, |(one, other)| common(one, other) as u64)
    }
}

/// Leading blocks that two sequences have in common: doubles its steps until they differ, then
/// halves them, since hashes that are equal at one place are equal before it.
fn common(one: &[SequenceHash], other: &[SequenceHash]) -> usize {
    let limit = one.len().min(other.len());
    let same = |place: usize| one[place] == other[place];
    let (mut low, mut step) = (0, 1);
    while low + step <= limit && same(low + step - 1) {
        low += step;
        step *= 2;
    }
    let mut high = limit.min(low + step - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if same(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::collections::HashSet;

    /// A chain of hashes for a path through a tree: equal paths, equal hashes.
    fn chain(path: &[u8]) -> Arc<[SequenceHash]> {
        let mut hash = 1u64;
        path.iter()
            .map(|step| {
                hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(*step) + 1);
                SequenceHash(hash)
            })
            .collect()
    }

    fn model_overlap(running: &[Arc<[SequenceHash]>], sequence: &[SequenceHash]) -> usize {
        let known: HashSet<_> = running.iter().flat_map(|chain| chain.iter()).collect();
        sequence.iter().take_while(|hash| known.contains(hash)).count()
    }

    #[test]
    fn the_common_part_is_found_at_every_length() {
        for length in 0..40 {
            for same in 0..=length {
                let one: Vec<_> = (0..length).map(SequenceHash).collect();
                let mut other = one.clone();
                other.iter_mut().skip(same as usize).for_each(|hash| hash.0 += 100);
                assert_eq!(common(&one, &other), same as usize);
                assert_eq!(common(&one[..same as usize], &one), same as usize);
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_all_blocks(
            paths in vec(vec(0u8..2, 0..7), 0..30),
            removals in vec(any::<prop::sample::Index>(), 0..30),
            query in vec(0u8..2, 0..7),
        ) {
            let mut chains = Chains::default();
            let mut running = Vec::new();
            for (id, path) in paths.iter().enumerate() {
                let id = BookingId(id as u64);
                chains.insert(&chain(path), id);
                running.push((id, chain(path)));
            }
            for at in removals {
                if !running.is_empty() {
                    let (id, removed) = running.swap_remove(at.index(running.len()));
                    chains.remove(&removed, id);
                }
                let hashes: Vec<_> = running.iter().map(|(_, chain)| chain.clone()).collect();
                let distinct: HashSet<_> = hashes.iter().flat_map(|chain| chain.iter()).collect();
                prop_assert_eq!(chains.blocks(), distinct.len() as u64);
                let query = chain(&query);
                prop_assert_eq!(chains.overlap(&query), model_overlap(&hashes, &query));
            }
        }

        /// Sequences that are no chains are counted wrongly, but nothing of them stays.
        #[test]
        fn collisions_leave_nothing_behind(sequences in vec(vec(0u64..3, 0..6), 0..20)) {
            let mut chains = Chains::default();
            let sequences: Vec<Arc<[_]>> = sequences
                .into_iter()
                .map(|sequence| sequence.into_iter().map(SequenceHash).collect())
                .collect();
            for (id, sequence) in sequences.iter().enumerate() {
                chains.insert(sequence, BookingId(id as u64));
            }
            for (id, sequence) in sequences.iter().enumerate() {
                chains.remove(sequence, BookingId(id as u64));
            }
            prop_assert_eq!((chains.blocks(), chains.sorted.len()), (0, 0));
        }
    }
}
