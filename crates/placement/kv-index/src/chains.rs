//! Sequences in order, so that those with a common prefix are neighbours.

use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

/// The sequences that were sent to one worker, with something known of each.
///
/// That two sequences with the same hash at one place are the same up to there is what a chained
/// hash means; where hashes collide, what two sequences share is taken for less or more.
pub(crate) struct Chains<T> {
    sorted: BTreeMap<Chain, T>,
    /// Different blocks of all sequences.
    blocks: usize,
}

impl<T> Default for Chains<T> {
    fn default() -> Self {
        Self { sorted: BTreeMap::new(), blocks: 0 }
    }
}

impl<T> Chains<T> {
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<[SequenceHash]>, &T)> {
        self.sorted.iter().map(|(chain, value)| (&chain.0, value))
    }

    /// The sequence itself or, if it is not there, the one that shares most with it among those
    /// after it; with how many blocks they share.
    pub(crate) fn at_or_after(
        &self,
        sequence: &[SequenceHash],
    ) -> Option<(&Arc<[SequenceHash]>, &T, usize)> {
        let from: &dyn Path = &sequence;
        let (chain, value) =
            self.sorted.range::<dyn Path, _>((Included(from), Unbounded)).next()?;
        Some((&chain.0, value, common_prefix(&chain.0, sequence)))
    }

    /// Blocks that a sequence which is not there shares with others.
    pub(crate) fn shared(&self, sequence: &[SequenceHash]) -> usize {
        let before = self.before(sequence).map_or(0, |(.., shared)| shared);
        let after = self.at_or_after(sequence).map_or(0, |(.., shared)| shared);
        before.max(after)
    }

    /// The one that shares most with `sequence` among those before it.
    pub(crate) fn before(
        &self,
        sequence: &[SequenceHash],
    ) -> Option<(&Arc<[SequenceHash]>, &T, usize)> {
        let to: &dyn Path = &sequence;
        let mut range = self.sorted.range::<dyn Path, _>((Unbounded, Excluded(to)));
        let (chain, value) = range.next_back()?;
        Some((&chain.0, value, common_prefix(&chain.0, sequence)))
    }

    /// Adds a sequence that is not there and shares `shared` blocks with those that are.
    pub(crate) fn insert(&mut self, sequence: Arc<[SequenceHash]>, shared: usize, value: T) {
        self.blocks += sequence.len() - shared;
        self.sorted.insert(Chain(sequence), value);
    }

    /// Value of a sequence.
    pub(crate) fn get_mut(&mut self, sequence: &[SequenceHash]) -> Option<&mut T> {
        let path: &dyn Path = &sequence;
        self.sorted.get_mut(path)
    }

    /// Removes a sequence; returns how many of its blocks others have too, and what was known.
    pub(crate) fn remove(&mut self, sequence: &[SequenceHash]) -> Option<(usize, T)> {
        let path: &dyn Path = &sequence;
        let value = self.sorted.remove(path)?;
        let shared = self.shared(sequence);
        self.blocks = self.blocks.saturating_sub(sequence.len() - shared);
        Some((shared, value))
    }
}

/// Chains of many workers.
pub(crate) type BySlot<T> = FxHashMap<u32, Chains<T>>;

/// A sequence as a key, compared from its start.
struct Chain(Arc<[SequenceHash]>);

/// Form of a key to look it up by, owned or not.
trait Path {
    fn hashes(&self) -> &[SequenceHash];
}

impl Path for Chain {
    fn hashes(&self) -> &[SequenceHash] {
        &self.0
    }
}

impl Path for &[SequenceHash] {
    fn hashes(&self) -> &[SequenceHash] {
        self
    }
}

impl<'a> Borrow<dyn Path + 'a> for Chain {
    fn borrow(&self) -> &(dyn Path + 'a) {
        self
    }
}

impl Ord for dyn Path + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other) = (self.hashes(), other.hashes());
        let shared = common_prefix(one, other);
        one.get(shared).cmp(&other.get(shared))
    }
}

impl PartialOrd for dyn Path + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Path + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for dyn Path + '_ {}

impl Ord for Chain {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other): (&dyn Path, &dyn Path) = (self, other);
        one.cmp(other)
    }
}

impl PartialOrd for Chain {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Chain {}

/// Leading blocks that two sequences have in common: doubles its steps until they differ, then
/// halves them, since hashes that are equal at one place are equal before it.
pub fn common_prefix(one: &[SequenceHash], other: &[SequenceHash]) -> usize {
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

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_common_part_is_found_at_every_length() {
        for length in 0..40 {
            for same in 0..=length {
                let one: Vec<_> = (0..length).map(SequenceHash).collect();
                let mut other = one.clone();
                other.iter_mut().skip(same as usize).for_each(|hash| hash.0 += 100);
                assert_eq!(common_prefix(&one, &other), same as usize);
                assert_eq!(common_prefix(&one[..same as usize], &one), same as usize);
            }
        }
    }
}
