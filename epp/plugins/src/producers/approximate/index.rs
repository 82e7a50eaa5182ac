//! Index of the blocks that endpoints are believed to hold.
//!
//! The KV index predicts as well, in the blocks that engines report and until they do. This index
//! is llm-d's: blocks of its own size, of text where there are no tokens, and an LRU for each
//! endpoint, which its scorers and thresholds were tuned for.

use crate::lru::LruKeys;
use rustc_hash::FxHashMap;
use stator_epp_scheduler::Endpoint;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;

/// Blocks by hash and their holders; each endpoint holds as many as its capacity.
#[derive(Default)]
pub(super) struct Index {
    holders: FxHashMap<SequenceHash, Holders>,
    /// Endpoints by number; `None` is free.
    slots: Vec<Option<Slot>>,
    numbers: FxHashMap<WorkerRank, u32>,
}

struct Slot {
    /// The life of the pod that holds the blocks.
    uid: Arc<str>,
    blocks: LruKeys<SequenceHash>,
}

/// Numbers of the endpoints that hold a block; most blocks are held by one.
enum Holders {
    One(u32),
    /// Bits by number.
    Many(Vec<u64>),
}

impl Index {
    /// Number of leading blocks of a chain that each endpoint holds.
    pub(super) fn matches<'e>(
        &self,
        chain: &[SequenceHash],
        endpoints: impl Iterator<Item = &'e Endpoint>,
    ) -> Vec<u32> {
        let numbers: Vec<_> = endpoints.map(|endpoint| self.number(endpoint)).collect();
        let mut depths = vec![0; self.slots.len()];
        let mut holding = vec![0u64; self.slots.len().div_ceil(64)];
        for number in numbers.iter().flatten() {
            holding[*number as usize / 64] |= 1 << (number % 64);
        }
        let mut left = holding.iter().any(|word| *word != 0);
        for hash in chain {
            let Some(holders) = self.holders.get(hash).filter(|_| left) else { break };
            left = false;
            for (position, word) in holding.iter_mut().enumerate() {
                *word &= holders.word(position);
                left |= *word != 0;
                for_each_bit(*word, |bit| depths[position * 64 + bit] += 1);
            }
        }
        numbers.iter().map(|number| number.map_or(0, |number| depths[number as usize])).collect()
    }

    /// An endpoint gets a chain of blocks, and forgets those that do not fit beside them.
    pub(super) fn record(&mut self, endpoint: &Endpoint, capacity: usize, chain: &[SequenceHash]) {
        if self.number(endpoint).is_none() {
            self.forget(endpoint.worker);
        }
        let number = self.number(endpoint).unwrap_or_else(|| self.enrol(endpoint, capacity));
        let Some(slot) = &mut self.slots[number as usize] else { return };
        if slot.blocks.capacity() != capacity {
            while let Some(evicted) = slot.blocks.resize(capacity) {
                Self::release(&mut self.holders, evicted, number);
            }
        }
        // From the last to the first, so that what is forgotten first is the end of a prompt:
        // without its beginning the rest of it is of no use.
        for &hash in chain[..chain.len().min(capacity)].iter().rev() {
            if !slot.blocks.contains(&hash) {
                let holders = self.holders.entry(hash);
                holders.and_modify(|holders| holders.add(number)).or_insert(Holders::One(number));
            }
            if let Some(evicted) = slot.blocks.touch(hash) {
                Self::release(&mut self.holders, evicted, number);
            }
        }
    }

    /// An endpoint holds nothing any more.
    pub(super) fn forget(&mut self, worker: WorkerRank) {
        let Some(number) = self.numbers.remove(&worker) else { return };
        let Some(slot) = self.slots[number as usize].take() else { return };
        for hash in slot.blocks.iter() {
            Self::release(&mut self.holders, hash, number);
        }
    }

    /// At most `most` blocks from position `from` on, each with its holder; `None` at the end. Of
    /// a holder those used last come in the last part, and within a part first. Takes time for
    /// the blocks of a holder before `from` too.
    pub(super) fn part(
        &self,
        mut from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let mut workers: Vec<_> = self.numbers.iter().collect();
        workers.sort_unstable_by_key(|(_, number)| **number);
        let mut part = Vec::new();
        for (worker, number) in workers {
            let Some(slot) = &self.slots[*number as usize] else { continue };
            let blocks = slot.blocks.iter().skip(from).take(most - part.len());
            part.extend(blocks.map(|hash| (*worker, hash)));
            from = from.saturating_sub(slot.blocks.len());
        }
        part.reverse();
        (!part.is_empty()).then_some(part)
    }

    /// Number of known blocks.
    pub(super) fn len(&self) -> usize {
        self.holders.len()
    }

    /// The number of an endpoint in its present life.
    fn number(&self, endpoint: &Endpoint) -> Option<u32> {
        let number = *self.numbers.get(&endpoint.worker)?;
        let slot = self.slots[number as usize].as_ref()?;
        (slot.uid == endpoint.uid).then_some(number)
    }

    fn enrol(&mut self, endpoint: &Endpoint, capacity: usize) -> u32 {
        let slot = Slot { uid: Arc::clone(&endpoint.uid), blocks: LruKeys::new(capacity) };
        let free = self.slots.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[number] = Some(slot);
        self.numbers.insert(endpoint.worker, number as u32);
        number as u32
    }

    fn release(holders: &mut FxHashMap<SequenceHash, Holders>, hash: SequenceHash, number: u32) {
        if holders.get_mut(&hash).is_some_and(|held| held.drop_one(number)) {
            holders.remove(&hash);
        }
    }
}

impl Holders {
    /// The bits of 64 endpoints.
    fn word(&self, position: usize) -> u64 {
        match self {
            Self::One(number) if *number as usize / 64 == position => 1 << (number % 64),
            Self::One(_) => 0,
            Self::Many(words) => words.get(position).copied().unwrap_or(0),
        }
    }

    fn add(&mut self, number: u32) {
        if let Self::One(first) = *self {
            *self = Self::Many(Vec::new());
            self.add(first);
        }
        if let Self::Many(words) = self {
            let position = number as usize / 64;
            words.resize(words.len().max(position + 1), 0);
            words[position] |= 1 << (number % 64);
        }
    }

    /// Whether nobody holds it any more.
    fn drop_one(&mut self, number: u32) -> bool {
        match self {
            Self::One(only) => *only == number,
            Self::Many(words) => {
                if let Some(word) = words.get_mut(number as usize / 64) {
                    *word &= !(1 << (number % 64));
                }
                words.iter().all(|word| *word == 0)
            }
        }
    }
}

fn for_each_bit(mut word: u64, mut visit: impl FnMut(usize)) {
    while word != 0 {
        visit(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}
