//! Keeps blocks that were used twice, and evicts all others before them.

use super::Eviction;
use super::ghosts::Ghosts;
use super::queues::Queues;
use crate::SlotId;
use stator_protos::name::BlockName;

const ONCE: usize = 0;
const TWICE: usize = 1;

/// Admission on the second touch: a block used once leaves before any that was used again, be it
/// in host memory or after it was computed anew.
#[derive(Debug)]
pub struct SecondTouch {
    queues: Queues<2>,
    names: Vec<BlockName>,
    seen: Ghosts,
}

impl SecondTouch {
    /// For `slots` slots; names are remembered for 32 times as many blocks.
    pub fn new(slots: usize) -> Self {
        Self {
            queues: Queues::default(),
            names: vec![BlockName(0); slots],
            seen: Ghosts::new(32 * slots),
        }
    }

    /// The queue for a block that has just come into a slot.
    fn queue_for(&mut self, slot: SlotId, name: BlockName) -> usize {
        self.names[slot.0 as usize] = name;
        if self.seen.take(name) { TWICE } else { ONCE }
    }
}

impl Eviction for SecondTouch {
    fn hold(&mut self, slot: SlotId) {
        self.queues.hold(slot);
    }

    fn release(&mut self, slot: SlotId, name: BlockName) {
        let queue = match self.queues.queue_of(slot) {
            Some(ONCE) if !self.queues.is_held(slot) => ONCE,
            Some(_) => TWICE,
            None => self.queue_for(slot, name),
        };
        self.queues.push(slot, queue);
    }

    fn release_behind(&mut self, slot: SlotId, name: BlockName, prefix: Option<SlotId>) {
        let own = self.queue_for(slot, name);
        let Some(prefix) = prefix else { return self.queues.push_oldest(slot, ONCE) };
        let queue = self.queues.idle_in(prefix).map_or(own, |of_prefix| own.min(of_prefix));
        self.queues.push_before(slot, queue, prefix);
    }

    fn evict(&mut self) -> Option<SlotId> {
        let slot = self.queues.pop(ONCE).or_else(|| self.queues.pop(TWICE))?;
        self.seen.replace(self.names[slot.0 as usize]);
        Some(slot)
    }

    fn forget(&mut self, slot: SlotId) {
        self.queues.forget(slot);
    }
}
