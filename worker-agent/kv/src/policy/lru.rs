//! Evicts the block that was released longest ago.

use super::Eviction;
use super::queues::Queues;
use crate::SlotId;
use stator_protos::name::BlockName;

/// Least recently used first.
#[derive(Debug, Default)]
pub struct Lru(Queues<1>);

impl Eviction for Lru {
    fn hold(&mut self, slot: SlotId) {
        self.0.hold(slot);
    }

    fn release(&mut self, slot: SlotId, _: BlockName) {
        self.0.push(slot, 0);
    }

    fn release_behind(&mut self, slot: SlotId, _: BlockName, prefix: Option<SlotId>) {
        match prefix {
            Some(prefix) => self.0.push_before(slot, 0, prefix),
            None => self.0.push_oldest(slot, 0),
        }
    }

    fn evict(&mut self) -> Option<SlotId> {
        self.0.pop(0)
    }

    fn forget(&mut self, slot: SlotId) {
        self.0.forget(slot);
    }
}
