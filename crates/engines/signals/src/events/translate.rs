//! Translation of an engine's block hashes to ours.

use super::merge::Merger;
use super::tally::{Reason, Tally, cache_kind};
use rustc_hash::FxHashMap;
use stator_protos::hash::{HashSeed, SequenceHash, block_hash, next_sequence_hash};
use stator_protos::kv_event::{Detail, EngineEvent, KvEvent, Medium, Removed, Stored};
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::ops::Deref;

/// Kinds of layers that keep the KV of a whole prompt: only their blocks prove that a prefix is
/// present.
const FULL_ATTENTION: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Counts of events and blocks that could not be translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipCounts {
    /// Events of cache groups that are not indexed.
    pub events: u64,
    /// Events whose block size is neither a multiple nor a part of ours.
    pub block_sizes: u64,
    /// Blocks with an unknown parent or more than text, or beyond the room for blocks.
    pub blocks: u64,
}

/// Maps the blocks of one life of one engine to ours.
///
/// The adapter and the cache salt of a block seed our hash as they seed a request's. A salt is
/// found where the engine names it, or as the one text beside the adapter's name in a sequence's
/// first block; vLLM before 0.18 reports no salts, so salted blocks look like plain ones. Small
/// blocks, down to SGLang's of one token, are merged. Blocks with images are not indexed, nor are
/// their continuations: only the engine knows how it names an image. Of a model with several
/// full-attention groups the first that stores blocks is indexed.
#[derive(Debug)]
pub struct Translator {
    block_size: u32,
    blocks_max: usize,
    known: FxHashMap<u64, KnownBlock>,
    /// Tracks blocks smaller than ours.
    merger: Merger,
    /// The indexed cache group, once one has stored blocks.
    group: Option<u32>,
    tally: Tally,
}

/// A block of the engine.
#[derive(Debug)]
struct KnownBlock {
    /// Our blocks that it consists of.
    ours: Ours,
    seed: HashSeed,
    /// Copies on each medium; engines do not always share equal blocks.
    copies: [u32; Medium::ALL.len()],
}

/// Our blocks inside one block of an engine. Nearly always it is one, stored in place: a million
/// blocks need no million allocations.
#[derive(Debug, PartialEq, Eq)]
enum Ours {
    One(SequenceHash),
    Several(Box<[SequenceHash]>),
}

impl FromIterator<SequenceHash> for Ours {
    fn from_iter<I: IntoIterator<Item = SequenceHash>>(hashes: I) -> Self {
        let mut hashes = hashes.into_iter();
        match (hashes.next(), hashes.next()) {
            (Some(one), None) => Self::One(one),
            (first, second) => {
                Self::Several(first.into_iter().chain(second).chain(hashes).collect())
            }
        }
    }
}

impl Deref for Ours {
    type Target = [SequenceHash];

    fn deref(&self) -> &[SequenceHash] {
        match self {
            Self::One(hash) => std::slice::from_ref(hash),
            Self::Several(hashes) => hashes,
        }
    }
}

/// The block before a run of blocks, and the run's seed.
#[derive(Clone, Copy)]
struct Chain {
    parent: Option<SequenceHash>,
    seed: HashSeed,
}

impl Translator {
    /// Makes a translator to blocks of `block_size` tokens that tracks at most `blocks_max`.
    pub fn new(block_size: NonZeroU32, blocks_max: usize) -> Self {
        let block_size = block_size.get();
        let (known, tally) = (FxHashMap::default(), Tally::default());
        let merger = Merger::new(block_size, blocks_max);
        Self { block_size, blocks_max, known, merger, group: None, tally }
    }

    /// Takes the outcomes of events since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Forgets everything, for another life.
    pub fn clear(&mut self) {
        self.known.clear();
        self.merger.clear();
        self.group = None;
    }

    /// All blocks, repeated for each copy.
    pub fn blocks(&self) -> Vec<(SequenceHash, Medium)> {
        let mut blocks: Vec<_> = self.merger.blocks().collect();
        for known in self.known.values() {
            for (copies, medium) in known.copies.iter().zip(Medium::ALL) {
                for _ in 0..*copies {
                    blocks.extend(known.ours.iter().map(|ours| (*ours, medium)));
                }
            }
        }
        blocks
    }

    /// Translates events in order and appends the result.
    pub fn translate(&mut self, events: &[EngineEvent], out: &mut Vec<KvEvent>) -> SkipCounts {
        let mut skipped = SkipCounts::default();
        for EngineEvent { event, detail } in events {
            match event {
                KvEvent::Cleared => {
                    self.known.clear();
                    self.merger.clear();
                    out.push(KvEvent::Cleared);
                }
                // A removal chooses no group. One may be the first that is heard of an engine, and
                // does not say what kind its group is of.
                KvEvent::Removed(removed) => match Self::unfit(detail, self.group) {
                    None => self.remove(removed, out),
                    Some(reason) => {
                        skipped.events += 1;
                        let kind = cache_kind(detail.spec_kind.as_deref());
                        *self.tally.removals.entry((kind, reason)).or_default() += 1;
                    }
                },
                KvEvent::Stored(stored) => {
                    let indexed = self.group.or(detail.group);
                    let reason = match Self::unfit(detail, indexed) {
                        Some(reason) => {
                            skipped.events += 1;
                            Some(reason)
                        }
                        None => {
                            self.group = indexed;
                            self.stored(stored, detail, &mut skipped, out)
                        }
                    };
                    if let Some(reason) = reason {
                        let kind = cache_kind(detail.spec_kind.as_deref());
                        *self.tally.stores.entry((kind, reason)).or_default() += 1;
                    }
                }
            }
        }
        skipped
    }

    /// Translates a stored event of the indexed group; returns the reason if all of it is skipped.
    fn stored(
        &mut self,
        stored: &Stored,
        detail: &Detail,
        skipped: &mut SkipCounts,
        out: &mut Vec<KvEvent>,
    ) -> Option<Reason> {
        if stored.tokens.is_empty() {
            skipped.blocks += self.copy(stored, out);
            return None;
        }
        let is_part = stored.block_size < self.block_size && self.merger.fits(stored.block_size);
        if !is_part && !stored.block_size.is_multiple_of(self.block_size) {
            skipped.block_sizes += 1;
            return Some(Reason::InvalidBlockSize);
        }
        if is_part {
            return self.merge(stored, detail, skipped, out);
        }
        let Some(chain) = self.chain(stored, detail) else {
            skipped.blocks += stored.hashes.len() as u64;
            return Some(Reason::UnknownParent);
        };
        skipped.blocks += self.store(stored, detail, chain, out);
        None
    }

    /// Translates a stored event of blocks smaller than ours.
    fn merge(
        &mut self,
        stored: &Stored,
        detail: &Detail,
        skipped: &mut SkipCounts,
        out: &mut Vec<KvEvent>,
    ) -> Option<Reason> {
        let blocks = stored.hashes.len();
        let seed = match stored.parent {
            Some(parent) => self.merger.seed(parent),
            None => Some(first_seed(stored, detail)),
        };
        let Some(seed) = seed else {
            skipped.blocks += blocks as u64;
            return Some(Reason::UnknownParent);
        };
        let plain = blocks.min(first_with_more_than_text(stored, detail));
        skipped.blocks += (blocks - self.merger.store(stored, seed, plain, out)) as u64;
        None
    }

    /// The reason why an event is outside the indexed cache group; `None` if it is inside, or if no
    /// group is indexed yet.
    fn unfit(detail: &Detail, indexed: Option<u32>) -> Option<Reason> {
        let Detail { group, spec_kind, .. } = detail;
        if spec_kind.as_deref().is_some_and(|kind| !FULL_ATTENTION.contains(&kind)) {
            return Some(Reason::UnsupportedCacheKind);
        }
        // Engines without groups name none, nor do their removals.
        let other = group.is_some() && indexed.is_some() && *group != indexed;
        other.then_some(Reason::OtherGroup)
    }

    /// Stores blocks that come with their tokens. Returns the number that could not be stored.
    fn store(
        &mut self,
        stored: &Stored,
        detail: &Detail,
        chain: Chain,
        out: &mut Vec<KvEvent>,
    ) -> u64 {
        let blocks = stored.hashes.len();
        let plain = blocks.min(first_with_more_than_text(stored, detail));
        let mut hashes = Vec::new();
        let Chain { mut parent, seed } = chain;
        // What the hashes that are gathered follow on.
        let mut before = parent;
        let tokens = stored.tokens.chunks_exact(stored.block_size as usize);
        let mut done = 0;
        for (&theirs, tokens) in stored.hashes.iter().zip(tokens).take(plain) {
            if self.known.len() >= self.blocks_max && !self.known.contains_key(&theirs) {
                break;
            }
            let last = parent;
            let ours = tokens.chunks_exact(self.block_size as usize).map(|tokens| {
                let ours = next_sequence_hash(parent, block_hash(tokens, seed));
                parent = Some(ours);
                ours
            });
            let ours: Ours = ours.collect();
            if self.known.get(&theirs).is_some_and(|known| known.ours != ours) {
                // The block that is replaced may be one of these: it is told before it is removed.
                self.tell(std::mem::take(&mut hashes), before, stored, out);
                before = last;
            }
            hashes.extend(ours.iter().map(|ours| ours.0));
            self.add(theirs, KnownBlock { ours, seed, copies: [0; 4] }, stored.medium, out);
            done += 1;
        }
        self.tell(hashes, before, stored, out);
        (blocks - done) as u64
    }

    /// Adds copies of known blocks on another medium. Returns the number of unknown blocks.
    fn copy(&mut self, stored: &Stored, out: &mut Vec<KvEvent>) -> u64 {
        let mut hashes = Vec::new();
        let mut unknown = 0;
        for theirs in &stored.hashes {
            match self.known.get_mut(theirs) {
                Some(known) => {
                    known.copies[stored.medium as usize] += 1;
                    hashes.extend(known.ours.iter().map(|ours| ours.0));
                }
                None if self.merger.copy(*theirs, stored.medium, out) => {}
                None => unknown += 1,
            }
        }
        self.tell(hashes, None, stored, out);
        unknown
    }

    fn tell(
        &self,
        hashes: Vec<u64>,
        parent: Option<SequenceHash>,
        stored: &Stored,
        out: &mut Vec<KvEvent>,
    ) {
        if hashes.is_empty() {
            return;
        }
        out.push(KvEvent::Stored(Stored {
            hashes,
            parent: parent.map(|parent| parent.0),
            tokens: Vec::new(),
            block_size: self.block_size,
            medium: stored.medium,
            lora_name: stored.lora_name.clone(),
        }));
    }

    /// The block before those of an event; `None` if it is unknown.
    fn chain(&self, stored: &Stored, detail: &Detail) -> Option<Chain> {
        if let Some(parent) = stored.parent {
            let known = self.known.get(&parent)?;
            return Some(Chain { parent: known.ours.last().copied(), seed: known.seed });
        }
        Some(Chain { parent: None, seed: first_seed(stored, detail) })
    }

    fn add(&mut self, theirs: u64, block: KnownBlock, medium: Medium, out: &mut Vec<KvEvent>) {
        let known = match self.known.entry(theirs) {
            Entry::Vacant(entry) => entry.insert(block),
            Entry::Occupied(entry) => {
                let known = entry.into_mut();
                if known.ours != block.ours {
                    // One name for two things, which SGLang gives where salts differ: its removal
                    // could mean either, so that only the later one is kept.
                    forget(known, out);
                    *known = block;
                }
                known
            }
        };
        let copies = &mut known.copies[medium as usize];
        *copies = copies.saturating_add(1);
    }

    fn remove(&mut self, removed: &Removed, out: &mut Vec<KvEvent>) {
        let mut hashes = Vec::new();
        for theirs in &removed.hashes {
            let Some(known) = self.known.get_mut(theirs) else {
                match self.merger.remove(*theirs, removed.medium, out) {
                    Some(true) => self.tally.suppressed += 1,
                    Some(false) => self.tally.forwarded += 1,
                    None => {}
                }
                continue;
            };
            // An engine may hold a block several times in one medium: the last copy alone is news.
            let copies = &mut known.copies[removed.medium as usize];
            if *copies == 0 {
                continue;
            }
            *copies -= 1;
            match *copies {
                0 => self.tally.forwarded += 1,
                _ => self.tally.suppressed += 1,
            }
            hashes.extend(known.ours.iter().map(|ours| ours.0));
            if known.copies == [0; 4] {
                self.known.remove(theirs);
            }
        }
        if !hashes.is_empty() {
            out.push(KvEvent::Removed(Removed { hashes, medium: removed.medium }));
        }
    }
}

/// The seed of a sequence's first block.
fn first_seed(stored: &Stored, detail: &Detail) -> HashSeed {
    let lora = stored.lora_name.as_deref();
    let salt = detail.cache_salt.as_deref().or_else(|| beside_lora(lora, detail).next().flatten());
    HashSeed::new(lora, salt)
}

/// Removes every copy of a block.
fn forget(known: &KnownBlock, out: &mut Vec<KvEvent>) {
    for (copies, medium) in known.copies.iter().zip(Medium::ALL) {
        let hashes: Vec<_> = known.ours.iter().map(|ours| ours.0).collect();
        for _ in 0..*copies {
            out.push(KvEvent::Removed(Removed { hashes: hashes.clone(), medium }));
        }
    }
}

/// Hash keys of the first block beside its tokens and the adapter's name; `None` for a key that is
/// no text.
fn beside_lora<'a>(
    lora: Option<&'a str>,
    detail: &'a Detail,
) -> impl Iterator<Item = Option<&'a str>> {
    let keys = detail.extra_keys.iter().filter(|(block, _)| *block == 0);
    keys.map(|(_, key)| key).filter(move |key| key.is_none() || *key != lora)
}

/// Position of the first block with more than text, judged by its keys: a text in the first block
/// of a sequence is its salt, anything else an image or the like.
fn first_with_more_than_text(stored: &Stored, detail: &Detail) -> usize {
    let lora = stored.lora_name.as_deref();
    let mut salt = None;
    for (block, key) in detail.extra_keys.iter() {
        if key.is_some() && key == lora {
            continue;
        }
        let may_be_salt = block == 0 && stored.parent.is_none() && key.is_some();
        if !may_be_salt || salt.is_some_and(|salt| Some(salt) != key) {
            return block as usize;
        }
        salt = key;
    }
    usize::MAX
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
