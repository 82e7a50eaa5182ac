//! Blocks that clients have pinned in host memory.

use super::BlockStore;
use super::slots::SlotState;
use crate::{Block, Now, SlotId};
use stator_pins::{PinOutcome, PinWish};
use stator_protos::hash::SequenceHash;

impl BlockStore {
    /// Pins leading blocks of a prompt in host memory, as a client wishes, whatever else needs room.
    /// Blocks that only tiers below hold are read; those that are still to be computed are pinned
    /// when they come.
    pub fn pin_prompt(&mut self, hashes: &[SequenceHash], wish: PinWish, now: Now) -> PinOutcome {
        self.expire(now);
        let (slots, index) = (&self.slots, &self.index);
        let (mut held, mut below) = (Vec::new(), Vec::new());
        let outcome = self.pins.pin(hashes, wish, slots.limit(), now, |hash| {
            let name = index.name(hash)?;
            let known = index.find(name)?;
            let Some(slot) = known.slot else {
                below.push(name);
                return None;
            };
            let is_here = slots[slot].state == SlotState::Ready;
            is_here.then(|| {
                held.push(slot);
                slot
            })
        });
        held.into_iter().for_each(|slot| self.pin(slot));
        if !below.is_empty() {
            self.prefetch(&below, now);
        }
        outcome
    }

    /// Ends what clients pinned until now.
    pub(super) fn end_pins(&mut self, now: Now) {
        while let Some(hash) = self.pins.first_ended(now) {
            self.end_pin(hash);
        }
    }

    /// Ends all that clients have pinned.
    pub(super) fn end_all_pins(&mut self) {
        while let Some(hash) = self.pins.first() {
            self.end_pin(hash);
        }
    }

    /// Ends a client's pin of a block, if there is one.
    pub(super) fn end_pin(&mut self, hash: SequenceHash) {
        if let Some(slot) = self.pins.remove(hash) {
            self.unpin(slot);
        }
    }

    /// Pins a block that has come into a slot, if a client waits for it.
    pub(super) fn pin_if_wished(&mut self, slot: SlotId, block: &Block) {
        if block.hash.is_some_and(|hash| self.pins.came(hash, slot)) {
            self.pin(slot);
        }
    }
}
