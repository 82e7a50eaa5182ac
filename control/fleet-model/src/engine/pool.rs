//! The KV blocks of one engine: their holders, and the prefixes that can be reused.
//!
//! Blocks with an identity have a slot; blocks that a sequence fills alone are only counted. The
//! cache stays prefix-closed, because a sequence gives its blocks back last to first and the oldest
//! idle block is evicted first.

use super::block::{BlockId, BlockPlace, hash};
use super::news::KvNews;
use super::tiers::{LoadedBlocks, Tiers};
use crate::recency::RecencyList;
use crate::time::Ps;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;

/// Leading blocks of a sequence that are in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) blocks: u32,
    /// Cached blocks that no sequence holds; holding one takes it from the available blocks.
    pub(crate) idle: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: BlockId,
    holders: u32,
}

/// A fixed number of blocks, and the tiers below them.
#[derive(Debug)]
pub(crate) struct BlockPool {
    total: u32,
    /// Blocks without an identity, in use.
    private: u32,
    /// Slots with at least one holder.
    held: u32,
    slots: Vec<Slot>,
    free: Vec<u32>,
    idle: RecencyList,
    index: FxHashMap<BlockId, u32>,
    pub(crate) tiers: Tiers,
    pub(crate) news: KvNews,
}

impl BlockPool {
    pub(crate) fn new(total: u32, tiers: Tiers, block_size: u32) -> Self {
        Self {
            total,
            private: 0,
            held: 0,
            slots: Vec::new(),
            free: Vec::new(),
            idle: RecencyList::default(),
            index: FxHashMap::default(),
            news: KvNews::new(block_size, tiers.are_there()),
            tiers,
        }
    }

    /// Blocks in use.
    pub(crate) fn used(&self) -> u32 {
        self.held + self.private
    }

    /// Blocks that only the cache holds.
    pub(crate) fn cached(&self) -> u32 {
        self.idle.len()
    }

    /// Blocks that can be taken: free and idle ones.
    pub(crate) fn available(&self) -> u32 {
        self.total - self.used()
    }

    /// Leading blocks of a sequence that are here, up to the first gap.
    pub(crate) fn lookup(&self, ids: &[BlockId]) -> Prefix {
        let mut prefix = Prefix::default();
        for slot in ids.iter().map_while(|id| self.index.get(id)) {
            prefix.blocks += 1;
            prefix.idle += u32::from(self.slots[*slot as usize].holders == 0);
        }
        prefix
    }

    /// Holds leading blocks that [`BlockPool::lookup`] found on the device.
    pub(crate) fn hold(&mut self, ids: &[BlockId], held: &mut Vec<u32>) {
        for id in ids {
            let slot = self.index[id];
            self.hold_slot(slot);
            held.push(slot);
        }
        self.tiers.touch(ids, &mut self.news);
    }

    /// Time goes on for the tiers.
    pub(crate) fn advance(&mut self, now: Ps) {
        self.tiers.advance(now, &mut self.news);
    }

    /// Leading blocks of `ids` that come from the tiers.
    pub(crate) fn load(&mut self, ids: &[BlockId], block_prefill: Ps) -> LoadedBlocks {
        self.tiers.load(ids, block_prefill, &mut self.news)
    }

    /// Leading blocks of a sequence on the device or in host memory.
    pub(crate) fn held(&self, ids: &[BlockId]) -> usize {
        let is_held = |id: &&BlockId| self.index.contains_key(id) || self.tiers.has_in_host(**id);
        ids.iter().take_while(is_held).count()
    }

    /// Another worker lends these leading blocks of a sequence from the one of number `first` on, once
    /// they are `ready`.
    pub(crate) fn hint(&mut self, ids: &[BlockId], first: usize, ready: Ps) {
        self.tiers.hint(ids, first, ready, &mut self.news);
    }

    /// Leading blocks of these that another worker can read here, and from when on.
    pub(crate) fn lend(&mut self, ids: &[BlockId]) -> LoadedBlocks {
        self.tiers.lend(ids, &mut self.news)
    }

    /// Takes private blocks, at most what is available; evicts where none is free.
    pub(crate) fn take(&mut self, blocks: u32) {
        self.vacate(blocks);
        self.private += blocks;
    }

    /// Evicts until `blocks` blocks, at most what is available, are empty.
    pub(crate) fn vacate(&mut self, blocks: u32) {
        assert!(blocks <= self.available(), "{blocks} blocks of {}", self.available());
        let unused = self.available() - self.idle.len();
        (unused..blocks).for_each(|_| self.evict());
    }

    /// A private block became full: it is indexed, for others to reuse. Returns its slot, which
    /// is another's where that one has indexed the same before.
    pub(crate) fn commit(&mut self, id: BlockId, place: BlockPlace) -> u32 {
        self.private -= 1;
        if let Some(&slot) = self.index.get(&id) {
            self.hold_slot(slot);
            return slot;
        }
        let new = Slot { id, holders: 1 };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                (self.slots.len() - 1) as u32
            }
        };
        self.held += 1;
        self.index.insert(id, slot);
        self.news.stored(id, place.parent, Medium::Device);
        self.tiers.store(id, place, &mut self.news);
        slot
    }

    /// Gives a sequence's blocks back; `held` are in its order.
    pub(crate) fn release(&mut self, held: &mut Vec<u32>, private: u32) {
        self.private -= private;
        while let Some(slot) = held.pop() {
            let holders = &mut self.slots[slot as usize].holders;
            *holders -= 1;
            if *holders == 0 {
                self.held -= 1;
                self.idle.push(slot);
            }
        }
    }

    /// Every block with an identity, each after the one before it, and where it is.
    pub(crate) fn snapshot(&self) -> Vec<(SequenceHash, Medium)> {
        if self.tiers.are_there() {
            return self.news.blocks().collect();
        }
        let mut ids: Vec<_> = self.index.keys().copied().collect();
        // The order of a hash map must not leak into a run.
        ids.sort_unstable();
        ids.into_iter().map(|id| (hash(id), Medium::Device)).collect()
    }

    /// Whether every block is counted exactly once. Takes a look at each slot.
    pub(crate) fn check(&self) -> Result<(), String> {
        let holders = |slot: &u32| self.slots[*slot as usize].holders;
        let held = self.index.values().filter(|slot| holders(slot) > 0).count() as u32;
        let idle = self.index.len() as u32 - held;
        let slots = self.slots.len() - self.free.len();
        if (held, idle, slots) != (self.held, self.idle.len(), self.index.len()) {
            return Err(format!(
                "{held} blocks are held and {idle} idle in {slots} slots, but {} and {} are counted",
                self.held,
                self.idle.len()
            ));
        }
        let all = u64::from(self.used()) + u64::from(self.cached());
        if all > u64::from(self.total) {
            return Err(format!("{all} blocks are in use or cached in a pool of {}", self.total));
        }
        Ok(())
    }

    fn hold_slot(&mut self, slot: u32) {
        let holders = &mut self.slots[slot as usize].holders;
        if *holders == 0 {
            self.idle.remove(slot);
            self.held += 1;
        }
        *holders += 1;
    }

    fn evict(&mut self) {
        let slot = self.idle.pop().expect("what is available and not free is idle");
        let Slot { id, .. } = self.slots[slot as usize];
        self.index.remove(&id);
        self.free.push(slot);
        self.news.removed(id, Medium::Device);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tiers::{Bucket, TierLimits};
    use super::*;
    use crate::time::SECOND;

    /// A sequence of `ids` passes through the pool; returns what it reused.
    fn pass(pool: &mut BlockPool, ids: &[BlockId]) -> Prefix {
        let prefix = pool.lookup(ids);
        let mut held = Vec::new();
        pool.hold(&ids[..prefix.blocks as usize], &mut held);
        pool.take(ids.len() as u32 - prefix.blocks);
        for place in prefix.blocks as usize..ids.len() {
            let parent = place.checked_sub(1).map(|before| ids[before]);
            held.push(pool.commit(ids[place], BlockPlace { parent, depth: place as u32 }));
        }
        pool.release(&mut held, 0);
        pool.check().expect("every block is counted once");
        prefix
    }

    fn tiers(limits: TierLimits) -> Tiers {
        Tiers::new(limits, Bucket::default())
    }

    #[test]
    fn the_tail_of_the_oldest_is_evicted_first() {
        let mut pool = BlockPool::new(6, tiers(TierLimits::NONE), 16);
        pass(&mut pool, &[1, 2, 3]);
        pass(&mut pool, &[11, 12]);
        assert_eq!(pool.cached(), 5);
        pass(&mut pool, &[21, 22, 23]);
        assert_eq!(pool.lookup(&[1, 2, 3]).blocks, 1);
        assert_eq!(pool.lookup(&[11, 12]).blocks, 2);
    }

    #[test]
    fn evicted_blocks_are_found_in_host_memory() {
        let limits = TierLimits { host_blocks: 8, ..TierLimits::NONE };
        let mut pool = BlockPool::new(3, tiers(limits), 16);
        pass(&mut pool, &[1, 2, 3]);
        pass(&mut pool, &[11, 12]);
        let prefix = pool.lookup(&[1, 2, 3]);
        assert_eq!((prefix.blocks, prefix.idle), (1, 1));
        assert_eq!(pool.load(&[2, 3, 4], SECOND).blocks, 2);
        // Each block is told of once, as on its nearest medium.
        pool.news.take();
        let snapshot = pool.snapshot();
        let on = |medium| snapshot.iter().filter(|(_, on)| *on == medium).count();
        assert_eq!((on(Medium::Device), on(Medium::Host)), (3, 2));
    }

    #[test]
    fn two_sequences_that_fill_the_same_block_share_it() {
        let mut pool = BlockPool::new(4, tiers(TierLimits::NONE), 16);
        pool.take(2);
        let (first, second) =
            (pool.commit(7, BlockPlace::default()), pool.commit(7, BlockPlace::default()));
        assert_eq!((first, pool.used(), pool.available()), (second, 1, 3));
        pool.release(&mut vec![first], 0);
        assert_eq!(pool.cached(), 0);
        pool.release(&mut vec![second], 0);
        assert_eq!((pool.cached(), pool.used()), (1, 0));
    }
}
