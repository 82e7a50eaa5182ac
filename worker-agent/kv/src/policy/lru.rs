//! Evicts the block that was released longest ago.

use super::Eviction;
use super::list::{Links, SlotList};
use crate::SlotId;
use stator_protos::name::BlockName;

/// Least recently used first.
#[derive(Debug, Default)]
pub struct Lru {
    links: Links,
    list: SlotList,
    /// By slot: whether it is in the list.
    listed: Vec<bool>,
}

impl Eviction for Lru {
    fn hold(&mut self, slot: SlotId) {
        self.forget(slot);
    }

    fn release(&mut self, slot: SlotId, _: BlockName) {
        self.forget(slot);
        let at = slot.0 as usize;
        if self.listed.len() <= at {
            self.listed.resize(at + 1, false);
        }
        self.listed[at] = true;
        self.list.push_newest(&mut self.links, slot);
    }

    fn evict(&mut self) -> Option<SlotId> {
        let slot = self.list.pop_oldest(&mut self.links)?;
        self.listed[slot.0 as usize] = false;
        Some(slot)
    }

    fn forget(&mut self, slot: SlotId) {
        let Some(listed) = self.listed.get_mut(slot.0 as usize) else { return };
        if std::mem::take(listed) {
            self.list.remove(&mut self.links, slot);
        }
    }
}
