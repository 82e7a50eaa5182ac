//! Keeps the blocks that are used most often.

use super::Eviction;
use super::queues::Queues;
use super::sketch::UseSketch;
use crate::SlotId;
use stator_protos::name::BlockName;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// New blocks pass through a small window. To stay, a block that leaves the window must have been
/// used more often than the block that would be evicted for it.
///
/// Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy",
/// with a segmented main cache: 80 % of it are for blocks used again.
#[derive(Debug)]
pub struct WindowTinyLfu {
    queues: Queues<3>,
    names: Vec<BlockName>,
    uses: UseSketch,
    window_max: usize,
    protected_max: usize,
    main_max: usize,
}

impl WindowTinyLfu {
    /// For `slots` slots, of which the window has `window_percent`, and one at least.
    pub fn new(slots: usize, window_percent: usize) -> Self {
        let window_max = (slots * window_percent / 100).max(1);
        let main_max = slots.saturating_sub(window_max);
        Self {
            queues: Queues::default(),
            names: vec![BlockName(0); slots],
            uses: UseSketch::new(slots),
            window_max,
            protected_max: main_max * 4 / 5,
            main_max,
        }
    }

    fn count(&self, slot: SlotId) -> u8 {
        self.uses.count(self.names[slot.0 as usize])
    }

    fn oldest_in_main(&self) -> Option<SlotId> {
        self.queues.oldest(PROBATION).or_else(|| self.queues.oldest(PROTECTED))
    }

    /// Takes note of a block that has just come into a slot.
    fn come(&mut self, slot: SlotId, name: BlockName) {
        self.names[slot.0 as usize] = name;
        self.uses.add(name);
    }

    /// While the main cache has room, whatever leaves the window stays.
    fn leave_window(&mut self) {
        if self.queues.len(WINDOW) > self.window_max
            && self.has_room()
            && let Some(oldest) = self.queues.oldest(WINDOW)
        {
            self.queues.push(oldest, PROBATION);
        }
    }

    /// Whether the main cache has room.
    fn has_room(&self) -> bool {
        self.queues.len(PROBATION) + self.queues.len(PROTECTED) < self.main_max
    }

    fn protect(&mut self, slot: SlotId) {
        self.queues.push(slot, PROTECTED);
        if self.queues.len(PROTECTED) > self.protected_max
            && let Some(oldest) = self.queues.oldest(PROTECTED)
        {
            self.queues.push(oldest, PROBATION);
        }
    }
}

impl Eviction for WindowTinyLfu {
    fn hold(&mut self, slot: SlotId) {
        if self.queues.queue_of(slot).is_some() {
            self.uses.add(self.names[slot.0 as usize]);
        }
        self.queues.hold(slot);
    }

    fn release(&mut self, slot: SlotId, name: BlockName) {
        match self.queues.queue_of(slot) {
            None => {
                self.come(slot, name);
                self.queues.push(slot, WINDOW);
            }
            Some(PROBATION) if self.queues.is_held(slot) => self.protect(slot),
            Some(queue) => self.queues.push(slot, queue),
        }
        self.leave_window();
    }

    fn release_behind(&mut self, slot: SlotId, name: BlockName, prefix: Option<SlotId>) {
        self.come(slot, name);
        let Some(prefix) = prefix else { return self.queues.push_oldest(slot, WINDOW) };
        // The block before it may have left the window already.
        let queue = match self.queues.idle_in(prefix) {
            Some(PROBATION) if self.has_room() => PROBATION,
            _ => WINDOW,
        };
        self.queues.push_before(slot, queue, prefix);
        self.leave_window();
    }

    fn evict(&mut self) -> Option<SlotId> {
        let victim = self.oldest_in_main();
        let candidate = self.queues.oldest(WINDOW);
        let evicted = match (candidate, victim) {
            (Some(candidate), Some(victim)) if self.queues.len(WINDOW) >= self.window_max => {
                if self.count(candidate) > self.count(victim) {
                    self.queues.push(candidate, PROBATION);
                    victim
                } else {
                    candidate
                }
            }
            (_, Some(victim)) => victim,
            (candidate, None) => candidate?,
        };
        self.queues.forget(evicted);
        Some(evicted)
    }

    fn forget(&mut self, slot: SlotId) {
        self.queues.forget(slot);
    }
}
