//! Slots, pins, and room for new blocks.

use super::slots::{ReadFate, SlotState};
use super::{Action, BlockStore};
use crate::policy::Eviction;
use crate::tier::TierEvent;
use crate::{Block, Now, SlotId, TenantKey};
use stator_protos::kv_event::Medium;

impl BlockStore {
    /// A slot without content; evicts a block where none is free.
    pub(super) fn take_slot(&mut self, now: Now) -> Option<SlotId> {
        if let Some(slot) = self.slots.take_free() {
            return Some(slot);
        }
        // Blocks that are being written, or are worth it, are passed over: they go when they are
        // written. The limit on writes in flight bounds their number.
        loop {
            let victim = self.policy.evict()?;
            if self.make_leave(victim, now) {
                return self.slots.take_free();
            }
        }
    }

    /// Changes how many slots may be in use. [`BlockStore::shrink`] evicts those beyond.
    pub fn set_slot_limit(&mut self, slots: usize) {
        self.slots.set_limit(slots);
    }

    /// Evicts blocks, in the policy's order, while more slots are in use than may be; at most so
    /// many, so that requests get their turn in between. Returns whether there are more. Blocks that
    /// requests hold, or that are being written down, go when they are released.
    pub fn shrink(&mut self, most: usize, now: Now) -> bool {
        for _ in 0..most {
            if self.slots.used() <= self.slots.limit() {
                return false;
            }
            let Some(victim) = self.policy.evict() else { return false };
            self.make_leave(victim, now);
        }
        self.slots.used() > self.slots.limit()
    }

    /// Has a tenant that has as many slots as it may give up blocks of its own, the least recently
    /// used first. False if all of them are in use.
    pub(super) fn make_room_of(&mut self, tenant: TenantKey, now: Now) -> bool {
        // Each turn takes a block off the tenant's list, so this ends.
        while self.tenants.is_full(tenant) {
            let Some(victim) = self.tenants.oldest(tenant) else { return false };
            self.policy.forget(victim);
            self.tenants.hold(victim);
            self.make_leave(victim, now);
        }
        true
    }

    /// Gives back a slot that nobody needs.
    pub(super) fn free(&mut self, slot: SlotId) {
        self.tenants.remove(slot);
        self.slots.free(slot);
    }

    /// Evicts a block that the policy has chosen, or lets it go when it is written down. Returns
    /// whether it is gone.
    fn make_leave(&mut self, victim: SlotId, now: Now) -> bool {
        let goes = self.slots[victim].writers == 0 && !self.demote(victim, now);
        match goes {
            true => self.evict(victim),
            false => self.slots[victim].is_leaving = true,
        }
        goes
    }

    /// Makes the block in a slot visible.
    pub(super) fn register(&mut self, slot: SlotId, block: Block, now: Now) {
        let of = &mut self.slots[slot];
        of.state = SlotState::Ready;
        of.name = block.name;
        of.is_reused = false;
        self.index.set_slot(block, slot);
        self.actions.push_back(Action::Event(TierEvent::Stored { block, medium: Medium::Host }));
        if self.kept.awaits(block.name, slot) {
            self.pin(slot);
        }
        self.pin_if_wished(slot, &block);
        if self.slots[slot].pins == 0 {
            self.release_new(slot, &block);
        }
        self.offer_new(block.name);
        self.write_down(now);
    }

    /// Keeps a slot for a request.
    pub(super) fn pin(&mut self, slot: SlotId) {
        self.slots.pin(slot);
        let of = &mut self.slots[slot];
        of.is_leaving = false;
        if of.state == SlotState::Ready {
            self.policy.hold(slot);
            self.tenants.hold(slot);
        }
    }

    pub(super) fn unpin(&mut self, slot: SlotId) {
        self.slots.unpin(slot);
        self.settle(slot);
    }

    /// A use of a block that no request holds.
    pub(super) fn touch_slot(&mut self, slot: SlotId) {
        let of = &self.slots[slot];
        if of.state == SlotState::Ready && of.pins == 0 {
            self.policy.hold(slot);
            self.release_again(slot);
        }
    }

    /// Makes a block the newest of those that no request holds, which is no use of it.
    pub(super) fn release_again(&mut self, slot: SlotId) {
        let of = &mut self.slots[slot];
        if of.state == SlotState::Ready && of.pins == 0 {
            of.is_leaving = false;
            self.policy.release(slot, of.name);
            self.tenants.release(slot);
        }
    }

    /// Lets go of a block that has just come: of a prompt the deeper block is to be the older one, as
    /// after the prompt's end.
    fn release_new(&mut self, slot: SlotId, block: &Block) {
        let before = block.parent.map(|hash| self.index.named(hash).map(|known| known.slot));
        match before {
            // The block is the first one, or of an unknown place, or a tier can read the one before it.
            None | Some(Some(None)) => {
                self.policy.release(slot, block.name);
                self.tenants.release(slot);
            }
            Some(prefix) => {
                self.policy.release_behind(slot, block.name, prefix.flatten());
                self.tenants.release_behind(slot, prefix.flatten());
            }
        }
    }

    /// Lets go of a slot when the last request that held it has ended.
    pub(super) fn settle(&mut self, slot: SlotId) {
        let of = &self.slots[slot];
        if of.pins > 0 {
            return;
        }
        match of.state {
            SlotState::Ready => {
                self.policy.release(slot, of.name);
                self.tenants.release(slot);
            }
            SlotState::Hidden | SlotState::Failed if of.writers == 0 => self.free(slot),
            SlotState::Reading { fate: ReadFate::Hidden, .. } => self.drop_read(slot),
            SlotState::Reading { fate: ReadFate::Wanted, .. } if !self.is_wanted_ahead(slot) => {
                self.drop_read(slot);
            }
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
            SlotState::Hidden => self.free(slot),
            _ => {}
        }
    }

    /// Forgets the block in a slot that nobody needs and the policy does not list.
    fn evict(&mut self, slot: SlotId) {
        let name = self.slots[slot].name;
        self.free(slot);
        let evicted = self.index.unset_slot(name).expect("a ready slot's block is known");
        self.stats.evictions += 1;
        self.stats.evictions_for_good += u64::from(self.index.find(name).is_none());
        self.actions
            .push_back(Action::Event(TierEvent::Removed { block: evicted, medium: Medium::Host }));
    }
}
