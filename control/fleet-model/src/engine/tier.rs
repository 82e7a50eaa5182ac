//! Host memory below the device: takes what the device evicts, least recently used first out.

use super::block::BlockId;
use super::news::KvNews;
use crate::recency::RecencyList;
use rustc_hash::FxHashMap;
use stator_protos::kv_event::Medium;

/// At most a number of blocks, which may be none.
#[derive(Debug)]
pub(crate) struct Tier {
    capacity: u32,
    ids: Vec<BlockId>,
    free: Vec<u32>,
    order: RecencyList,
    index: FxHashMap<BlockId, u32>,
}

impl Tier {
    pub(crate) fn new(capacity: u32) -> Self {
        let (ids, free, order, index) = Default::default();
        Self { capacity, ids, free, order, index }
    }

    /// Leading blocks that are here.
    pub(crate) fn lookup(&self, ids: &[BlockId]) -> u32 {
        ids.iter().take_while(|id| self.index.contains_key(id)).count() as u32
    }

    /// Blocks were used: the first of them is forgotten last.
    pub(crate) fn touch(&mut self, ids: &[BlockId]) {
        for slot in ids.iter().rev().filter_map(|id| self.index.get(id)) {
            self.order.remove(*slot);
            self.order.push(*slot);
        }
    }

    /// Takes a block in, if there is any room at all.
    pub(crate) fn store(&mut self, id: BlockId, parent: Option<BlockId>, news: &mut KvNews) {
        if self.capacity == 0 {
            return;
        }
        if self.index.contains_key(&id) {
            return self.touch(&[id]);
        }
        if self.order.len() == self.capacity {
            let slot = self.order.pop().expect("a full tier is not empty");
            let evicted = self.ids[slot as usize];
            self.index.remove(&evicted);
            self.free.push(slot);
            news.removed(evicted, Medium::Host);
        }
        let slot = self.free.pop().unwrap_or(self.ids.len() as u32);
        if slot as usize == self.ids.len() {
            self.ids.push(id);
        }
        self.ids[slot as usize] = id;
        self.index.insert(id, slot);
        self.order.push(slot);
        news.stored(id, parent, Medium::Host);
    }

    /// All blocks that are here, in no order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = BlockId> {
        self.index.keys().copied()
    }
}
