//! Keeps blocks that come back after their eviction apart from blocks that are new.

use super::Eviction;
use super::ghosts::Ghosts;
use super::queues::Queues;
use crate::SlotId;
use stator_protos::name::BlockName;

const NEW: usize = 0;
const MAIN: usize = 1;

/// New blocks wait in a queue of their own, which is evicted first while it is longer than its
/// share. A block whose name is remembered when it comes back goes to the main queue.
///
/// Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement
/// algorithm", 1994; here a use of a new block, too, makes it one of the main queue.
#[derive(Debug)]
pub struct TwoQueue {
    queues: Queues<2>,
    names: Vec<BlockName>,
    evicted: Ghosts,
    new_max: usize,
}

impl TwoQueue {
    /// For `slots` slots, of which new blocks have the share `new_percent`.
    pub fn new(slots: usize, new_percent: usize) -> Self {
        Self {
            queues: Queues::default(),
            names: vec![BlockName(0); slots],
            evicted: Ghosts::new(4 * slots),
            new_max: slots * new_percent / 100,
        }
    }

    /// The queue for a block that has just come into a slot.
    fn queue_for(&mut self, slot: SlotId, name: BlockName) -> usize {
        self.names[slot.0 as usize] = name;
        if self.evicted.take(name) { MAIN } else { NEW }
    }
}

impl Eviction for TwoQueue {
    fn hold(&mut self, slot: SlotId) {
        self.queues.hold(slot);
    }

    fn release(&mut self, slot: SlotId, name: BlockName) {
        let queue = match self.queues.queue_of(slot) {
            // A block used again goes to the main queue, like those behind it that had gone: no
            // block is to be evicted before the blocks behind it.
            Some(NEW) if self.queues.is_held(slot) => MAIN,
            Some(queue) => queue,
            None => self.queue_for(slot, name),
        };
        self.queues.push(slot, queue);
    }

    fn release_behind(&mut self, slot: SlotId, name: BlockName, prefix: Option<SlotId>) {
        let own = self.queue_for(slot, name);
        let Some(prefix) = prefix else { return self.queues.push_oldest(slot, NEW) };
        let queue = self.queues.idle_in(prefix).map_or(own, |of_prefix| own.min(of_prefix));
        self.queues.push_before(slot, queue, prefix);
    }

    fn evict(&mut self) -> Option<SlotId> {
        if self.queues.len(NEW) > self.new_max || self.queues.len(MAIN) == 0 {
            let slot = self.queues.pop(NEW)?;
            self.evicted.replace(self.names[slot.0 as usize]);
            return Some(slot);
        }
        self.queues.pop(MAIN)
    }

    fn forget(&mut self, slot: SlotId) {
        self.queues.forget(slot);
    }
}
