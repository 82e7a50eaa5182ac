//! What the tiers did, and what they hold.

use super::slots::SlotState;
use super::{Action, BlockStore, TierId};
use crate::tier::{TierError, TierReport};
use crate::{Block, Checksum, Now, SlotId};
use stator_protos::name::BlockName;

impl BlockStore {
    /// A tier tells what became of its work, or what it holds. Reports of work that the tier was
    /// not given are ignored.
    pub fn report(&mut self, tier: TierId, report: TierReport, now: Now) {
        self.expire(now);
        if usize::from(tier.0) >= self.tiers.len() {
            return;
        }
        match report {
            TierReport::Read { name, slot, result } => {
                self.end_read(tier, (name, slot), result, now)
            }
            TierReport::Written { name, slot, result } => {
                self.written(tier, (name, slot), result, now);
            }
            TierReport::Found(blocks) => {
                blocks.into_iter().for_each(|block| self.holds(tier, block))
            }
            TierReport::Gone(names) => names.into_iter().for_each(|name| self.lost(tier, name)),
        }
        self.write_down(now);
    }

    /// Forgets all blocks. Slots that are in use stay as they are until nobody needs them.
    pub fn clear(&mut self) {
        while let Some(key) = self.requests.any_waiting() {
            self.cut(key);
        }
        for slot in self.slots.ids() {
            match &mut self.slots[slot].state {
                SlotState::Ready => {
                    self.policy.forget(slot);
                    self.slots[slot].state = SlotState::Hidden;
                    self.settle(slot);
                }
                SlotState::Reading { is_wanted, .. } => *is_wanted = false,
                _ => {}
            }
        }
        self.index.clear();
        self.tiers.iter_mut().for_each(|tier| tier.drop_backlog());
        self.actions.push_back(Action::Cleared);
    }

    fn end_read(
        &mut self,
        tier: TierId,
        of: (BlockName, SlotId),
        result: Result<Checksum, TierError>,
        now: Now,
    ) {
        let (name, slot) = of;
        if self.reader(slot) != Some(tier) || self.slots[slot].name != name {
            return;
        }
        self.tier_mut(tier).reads -= 1;
        let is_wanted = self.slots[slot].state == SlotState::Reading { tier, is_wanted: true };
        match result {
            Ok(checksum) => {
                self.tier_mut(tier).succeeded();
                self.slots[slot].checksum = checksum;
                match self.index.find(name).filter(|_| is_wanted) {
                    Some(known) => {
                        self.register(slot, known.block(name));
                        self.offer(name);
                    }
                    None => self.slots[slot].state = SlotState::Hidden,
                }
            }
            Err(error) => {
                self.tier_mut(tier).failed(error, now);
                if matches!(error, TierError::Missing | TierError::Corrupt) {
                    self.lost(tier, name);
                }
                if is_wanted {
                    self.index.unset_slot(name);
                }
                self.slots[slot].state = SlotState::Failed;
            }
        }
        self.wake(slot);
        self.settle_read(slot);
    }

    /// Frees a slot whose read gave no visible block, unless somebody waits for it.
    fn settle_read(&mut self, slot: SlotId) {
        if self.slots[slot].state != SlotState::Ready {
            self.settle(slot);
        }
    }

    fn written(
        &mut self,
        tier: TierId,
        of: (BlockName, SlotId),
        result: Result<(), TierError>,
        now: Now,
    ) {
        let (name, slot) = of;
        let Some(written) = self.slots.known(slot) else { return };
        if written.writers & tier.bit() == 0 || written.name != name {
            return;
        }
        // A block that was forgotten meanwhile is not looked for in the tier any more.
        let is_visible = written.state == SlotState::Ready;
        self.tier_mut(tier).writes -= 1;
        match result {
            Ok(()) => {
                self.tier_mut(tier).succeeded();
                let known = self.index.find(name).filter(|_| is_visible);
                if let Some(block) = known.map(|known| known.block(name)) {
                    self.holds(tier, block);
                }
            }
            Err(error) => self.tier_mut(tier).failed(error, now),
        }
        self.end_write(slot, tier.bit());
    }

    fn holds(&mut self, tier: TierId, block: Block) {
        if self.index.add_tier(block, tier) {
            let medium = self.tier(tier).medium();
            self.actions.push_back(Action::Stored { block, medium });
        }
    }

    fn lost(&mut self, tier: TierId, name: BlockName) {
        if let Some(block) = self.index.remove_tier(name, tier) {
            let medium = self.tier(tier).medium();
            self.actions.push_back(Action::Removed { block, medium });
        }
    }
}
