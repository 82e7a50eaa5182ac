//! Writes of blocks to the tiers below.

use super::slots::SlotState;
use super::tiers::tiers_of;
use super::{Action, BlockStore, TierAdmission, TierId};
use crate::tier::TierWrite;
use crate::{Now, SlotId};
use stator_protos::name::BlockName;

impl BlockStore {
    /// A block has come into host memory: queues it for every tier that takes it and lacks it.
    pub(super) fn offer_new(&mut self, name: BlockName) {
        // A block that was here before is used for the second time, although it was evicted.
        let is_second_touch = self.seen.replace(name);
        self.offer(name, |admission| match admission {
            TierAdmission::Through => true,
            TierAdmission::SecondTouch => is_second_touch,
            TierAdmission::Never | TierAdmission::Measured { .. } => false,
        });
    }

    /// A block in host memory is used for the second time.
    pub(super) fn offer_reused(&mut self, name: BlockName) {
        self.offer(name, |admission| admission == TierAdmission::SecondTouch);
    }

    fn offer(&mut self, name: BlockName, takes: impl Fn(TierAdmission) -> bool) {
        let Some(held) = self.index.find(name).map(|known| known.tiers) else { return };
        for (at, tier) in self.tiers.iter_mut().enumerate() {
            if takes(tier.admission()) && held & TierId(at as u8).bit() == 0 {
                tier.offer(name);
            }
        }
    }

    /// Starts writes, as many as the tiers take.
    pub(super) fn write_down(&mut self, now: Now) {
        for at in 0..self.tiers.len() {
            let tier = TierId(at as u8);
            while let Some(name) = self.tier(tier).first_offered() {
                // A block that was evicted meanwhile, or has come to the tier, is passed over.
                if let Some(slot) = self.to_write(name, tier) {
                    if !self.tier_mut(tier).begin_write(now) {
                        break;
                    }
                    self.write(name, slot, tier);
                }
                self.tier_mut(tier).drop_offered();
            }
        }
    }

    /// Writes a block that is to be evicted to the nearest tier that takes it, if the block is
    /// worth it: it was used again, and no tier holds it.
    pub(super) fn demote(&mut self, slot: SlotId, now: Now) -> bool {
        let of = &self.slots[slot];
        let name = of.name;
        // What another agent holds may be gone when it is needed.
        let own = tiers_of(u8::MAX).zip(&self.tiers);
        let own = own.filter(|(_, state)| state.settings.is_announced);
        let own = own.fold(0, |bits, (tier, _)| bits | tier.bit());
        if !of.is_reused || self.index.find(name).is_none_or(|known| known.tiers & own != 0) {
            return false;
        }
        for at in 0..self.tiers.len() {
            let tier = TierId(at as u8);
            let takes = self.tier(tier).settings.admission != TierAdmission::Never;
            if takes && self.tier_mut(tier).begin_write(now) {
                self.write(name, slot, tier);
                return true;
            }
        }
        false
    }

    fn to_write(&self, name: BlockName, tier: TierId) -> Option<SlotId> {
        let known = self.index.find(name).filter(|known| known.tiers & tier.bit() == 0)?;
        let of = &self.slots[known.slot?];
        let is_due = of.state == SlotState::Ready && of.writers & tier.bit() == 0;
        is_due.then_some(known.slot?)
    }

    fn write(&mut self, name: BlockName, slot: SlotId, tier: TierId) {
        let Some(block) = self.index.find(name).map(|known| known.block(name)) else { return };
        self.slots[slot].writers |= tier.bit();
        let write = TierWrite { block, slot, checksum: self.slots[slot].checksum };
        self.actions.push_back(Action::Write { tier, write });
    }
}
