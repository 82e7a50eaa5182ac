//! Engines come, fill slots and go.

use super::requests::Owner;
use super::slots::{ReadFate, SlotState};
use super::tiers::tiers_of;
use super::{Action, BlockStore, Filled, OwnerId};
use crate::tier::TierEvent;
use crate::{Block, Checksum, Now, SlotId};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;

impl BlockStore {
    /// A new owner.
    pub fn connect(&mut self) -> OwnerId {
        let owner = OwnerId(self.next_owner);
        self.next_owner += 1;
        self.owners.insert(owner, Owner::default());
        owner
    }

    /// Ends an owner. Unless its process `is_dead`, the slots that it may still read or fill stay
    /// in quarantine until it is [`BlockStore::buried`].
    pub fn disconnect(&mut self, owner: OwnerId, is_dead: bool) {
        let Some(state) = self.owners.get_mut(&owner) else { return };
        state.is_lost = true;
        if is_dead {
            self.buried(owner);
            return;
        }
        let keys: Vec<_> = self.requests.of(owner).collect();
        for key in keys {
            let Some(mut request) = self.requests.take(key) else { continue };
            // The owner was never told of blocks that are still on their way.
            let awaited = request.slots.split_off(request.ready);
            awaited.into_iter().rev().for_each(|slot| self.unpin(slot));
            self.requests.put(key, request);
        }
    }

    /// The process of a disconnected owner is gone: nobody touches its slots any more.
    pub fn buried(&mut self, owner: OwnerId) {
        if !self.owners.get(&owner).is_some_and(|state| state.is_lost) {
            return;
        }
        let keys: Vec<_> = self.requests.of(owner).collect();
        keys.into_iter().for_each(|key| self.end_request(key));
        self.owners.remove(&owner);
        for slot in self.slots.ids() {
            if self.slots[slot].state == SlotState::Granted(owner) {
                self.free(slot);
            }
        }
    }

    /// Slots for the owner to fill, in advance. Evicts blocks where needed; gives fewer than
    /// `wanted` where blocks cannot be evicted, or the owner would hold too many.
    pub fn grant(&mut self, owner: OwnerId, wanted: usize, now: Now) -> Vec<SlotId> {
        self.expire(now);
        let Some(state) = self.live_owner(owner) else { return Vec::new() };
        let most = wanted.min(self.granted_max.saturating_sub(state.granted));
        let mut granted = Vec::with_capacity(most);
        for _ in 0..most {
            let Some(slot) = self.take_slot(now) else { break };
            self.slots[slot].state = SlotState::Granted(owner);
            granted.push(slot);
        }
        if let Some(state) = self.owners.get_mut(&owner) {
            state.granted += granted.len();
        }
        self.stats.not_granted += (wanted - granted.len()) as u64;
        granted
    }

    /// The owner has filled a slot that it was granted.
    pub fn filled(
        &mut self,
        owner: OwnerId,
        slot: SlotId,
        block: Block,
        checksum: Checksum,
        now: Now,
    ) -> Filled {
        self.expire(now);
        let is_granted =
            self.slots.known(slot).is_some_and(|of| of.state == SlotState::Granted(owner));
        if !is_granted || self.live_owner(owner).is_none() {
            return Filled::NotGranted;
        }
        self.learn(block, now);
        let held = self.index.slot(block.name);
        let is_coming = held.is_some_and(|at| self.slots[at].state != SlotState::Ready);
        if (held.is_none() || is_coming) && !self.make_room_of(block.tenant, now) {
            return Filled::OverQuota;
        }
        if let Some(other) = self.index.slot(block.name) {
            match &mut self.slots[other].state {
                // A tier may take long, or never answer: what was computed is there now. Those
                // who wait for the tier still get its copy.
                SlotState::Reading { fate, .. } => *fate = ReadFate::Hidden,
                _ => return Filled::Duplicate,
            }
            self.settle(other);
        }
        if let Some(state) = self.owners.get_mut(&owner) {
            state.granted -= 1;
        }
        self.slots[slot].checksum = checksum;
        self.tenants.add(slot, block.tenant);
        self.register(slot, block, now);
        Filled::Registered
    }

    /// The hash by which routers know a block, if the block is held and its hash is known.
    pub fn event_hash(&self, name: BlockName) -> Option<SequenceHash> {
        self.index.find(name)?.hash
    }

    /// Takes the hashes and the tenant of a block that had no hashes, and tells where the block is.
    pub fn learn(&mut self, block: Block, now: Now) {
        let Some(known) = self.index.learn(block) else { return };
        let block = known.block(block.name);
        if let Some(slot) =
            known.slot.filter(|slot| self.tenants.is_of_another(*slot, block.tenant))
        {
            // Where all that the tenant may have is in use, it has one more.
            self.make_room_of(block.tenant, now);
            self.tenants.give(slot, block.tenant);
        }
        let slot = known.slot.filter(|slot| self.slots[*slot].state == SlotState::Ready);
        if let Some(slot) = slot {
            self.pin_if_wished(slot, &block);
        }
        let below = tiers_of(known.tiers).map(|tier| &self.tier(tier).settings);
        let below = below.filter(|tier| tier.is_announced).map(|tier| tier.medium);
        let media: Vec<_> = slot.map(|_| Medium::Host).into_iter().chain(below).collect();
        let stored = |medium| Action::Event(TierEvent::Stored { block, medium });
        self.actions.extend(media.into_iter().map(stored));
    }

    fn live_owner(&self, owner: OwnerId) -> Option<&Owner> {
        self.owners.get(&owner).filter(|state| !state.is_lost)
    }
}
