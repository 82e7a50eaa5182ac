//! Writes of blocks to the tiers below.

use super::slots::SlotState;
use super::{Action, BlockStore, TierAdmission, TierId};
use crate::tier::TierWrite;
use crate::{Now, SlotId};
use stator_protos::name::BlockName;

impl BlockStore {
    /// Queues a block for every tier that takes all blocks and does not hold it.
    pub(super) fn offer(&mut self, name: BlockName) {
        let Some(held) = self.index.find(name).map(|known| known.tiers) else { return };
        for (at, tier) in self.tiers.iter_mut().enumerate() {
            let bit = TierId(at as u8).bit();
            if tier.settings.admission == TierAdmission::Through && held & bit == 0 {
                tier.offer(name);
            }
        }
    }

    /// Starts writes, as many as the tiers take.
    pub(super) fn write_down(&mut self, now: Now) {
        for at in 0..self.tiers.len() {
            let tier = TierId(at as u8);
            while self.tier(tier).takes_write(now) {
                let Some(name) = self.tier_mut(tier).next_write() else { break };
                // A block that was evicted meanwhile, or has come to the tier, is passed over.
                if let Some(slot) = self.to_write(name, tier) {
                    self.write(name, slot, tier);
                }
            }
        }
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
        self.tier_mut(tier).writes += 1;
        let write = TierWrite { block, slot, checksum: self.slots[slot].checksum };
        self.actions.push_back(Action::Write { tier, write });
    }
}
