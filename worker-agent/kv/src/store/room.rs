//! Slots, pins, and room for new blocks.

use super::slots::SlotState;
use super::{Action, BlockStore};
use crate::{Block, SlotId};
use stator_protos::kv_event::Medium;

impl BlockStore {
    /// A slot without content; evicts a block where none is free.
    pub(super) fn take_slot(&mut self) -> Option<SlotId> {
        if let Some(slot) = self.slots.take_free() {
            return Some(slot);
        }
        // Blocks that are being written are passed over, at most as many as writes are in flight.
        loop {
            let victim = self.policy.evict()?;
            if self.slots[victim].writers == 0 {
                self.evict(victim);
                return self.slots.take_free();
            }
            self.slots[victim].is_leaving = true;
        }
    }

    /// Makes the block in a slot visible.
    pub(super) fn register(&mut self, slot: SlotId, block: Block) {
        let of = &mut self.slots[slot];
        of.state = SlotState::Ready;
        of.name = block.name;
        self.index.set_slot(block, slot);
        self.actions.push_back(Action::Stored { block, medium: Medium::Host });
        self.settle(slot);
    }

    /// Keeps a slot for a request.
    pub(super) fn pin(&mut self, slot: SlotId) {
        let of = &mut self.slots[slot];
        of.pins += 1;
        of.is_leaving = false;
        if of.state == SlotState::Ready {
            self.policy.hold(slot);
        }
    }

    pub(super) fn unpin(&mut self, slot: SlotId) {
        self.slots[slot].pins -= 1;
        self.settle(slot);
    }

    /// A use of a block that no request holds.
    pub(super) fn touch_slot(&mut self, slot: SlotId) {
        let of = &mut self.slots[slot];
        if of.state == SlotState::Ready && of.pins == 0 {
            of.is_leaving = false;
            self.policy.hold(slot);
            self.policy.release(slot, self.slots[slot].name);
        }
    }

    /// Lets go of a slot when the last request that held it has ended.
    pub(super) fn settle(&mut self, slot: SlotId) {
        let of = &self.slots[slot];
        if of.pins > 0 {
            return;
        }
        match of.state {
            SlotState::Ready => self.policy.release(slot, of.name),
            SlotState::Hidden | SlotState::Failed if of.writers == 0 => self.slots.free(slot),
            _ => {}
        }
    }

    /// Ends a write of a slot.
    pub(super) fn end_write(&mut self, slot: SlotId, bit: u8) {
        let of = &mut self.slots[slot];
        of.writers &= !bit;
        if of.writers != 0 || of.pins > 0 {
            return;
        }
        match of.state {
            SlotState::Ready if of.is_leaving => self.evict(slot),
            SlotState::Hidden => self.slots.free(slot),
            _ => {}
        }
    }

    /// Forgets the block in a slot that nobody needs and the policy does not list.
    fn evict(&mut self, slot: SlotId) {
        let name = self.slots[slot].name;
        self.slots.free(slot);
        let block = self.index.unset_slot(name).expect("a ready slot's block is known");
        self.actions.push_back(Action::Removed { block, medium: Medium::Host });
    }
}
