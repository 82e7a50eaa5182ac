//! Reports of the tiers: ended work, found and lost blocks.

use super::slots::{ReadFate, SlotState};
use super::{Action, BlockStore, TierId, TierSettings};
use crate::policy::Eviction;
use crate::tier::{TierError, TierEvent, TierReport};
use crate::{Block, Checksum, Now, SlotId};
use stator_protos::name::BlockName;

impl BlockStore {
    /// A tier tells what became of its work, or what it holds. Reports of work that the tier was
    /// not given are ignored.
    pub fn report(&mut self, tier: TierId, report: TierReport, now: Now) {
        self.expire(now);
        if usize::from(tier) >= self.tiers.len() {
            self.stats.odd_reports += 1;
            return;
        }
        match report {
            TierReport::Read { name, slot, result } => {
                if self.is_read(tier, name, slot) {
                    self.end_read(slot, result, now);
                } else {
                    self.stats.odd_reports += 1;
                }
            }
            TierReport::Written { name, slot, result } => {
                if self.is_written(tier, name, slot) {
                    self.written(tier, slot, result, now);
                } else {
                    self.stats.odd_reports += 1;
                }
            }
            TierReport::Found(blocks) => {
                blocks.into_iter().for_each(|block| self.holds(tier, block));
            }
            TierReport::Located { names, source, cost } => {
                self.tier_mut(tier).sources.learn(source, cost, now);
                names.into_iter().for_each(|name| self.index.locate(name, tier, source));
            }
            TierReport::Gone(names) => {
                for name in names {
                    let was_there = self.lacks(tier, name);
                    self.tier_mut(tier).stats.gone += u64::from(was_there);
                }
            }
        }
        self.write_down(now);
    }

    /// Forgets all blocks. Slots that are in use stay as they are until nobody needs them.
    pub fn clear(&mut self) {
        while let Some(key) = self.requests.any_waiting() {
            self.cut(key);
        }
        self.end_all_kept();
        self.end_all_pins();
        for slot in self.slots.ids() {
            match &mut self.slots[slot].state {
                SlotState::Ready => {
                    self.policy.forget(slot);
                    self.tenants.hold(slot);
                    self.slots[slot].state = SlotState::Hidden;
                    self.settle(slot);
                }
                // A read that nobody waited for before is dropped; the tier was told of the others.
                SlotState::Reading { fate, .. } => {
                    let before = std::mem::replace(fate, ReadFate::Hidden);
                    if before == ReadFate::Wanted {
                        self.settle(slot);
                    }
                }
                _ => {}
            }
        }
        self.index.clear();
        self.tiers.iter_mut().for_each(|tier| tier.clear());
        self.actions.push_back(Action::Event(TierEvent::Cleared));
    }

    /// Forgets all blocks in host memory; the tiers keep theirs.
    pub fn clear_host(&mut self) {
        self.end_all_kept();
        self.end_all_pins();
        for slot in self.slots.ids() {
            self.hide(slot);
        }
    }

    /// Forgets all blocks of one tier; host memory and the other tiers keep theirs.
    pub fn clear_tier(&mut self, tier: TierId) {
        let held = self.index.iter().filter(|(_, known)| known.tiers & tier.bit() != 0);
        let names: Vec<_> = held.map(|(name, _)| name).collect();
        for name in names {
            self.lacks(tier, name);
        }
        self.tier_mut(tier).clear();
        self.actions.push_back(Action::Clear { tier });
    }

    fn is_read(&self, tier: TierId, name: BlockName, slot: SlotId) -> bool {
        self.slots.known(slot).is_some_and(|of| {
            matches!(of.state, SlotState::Reading { tier: reader, .. } if reader == tier)
                && of.name == name
        })
    }

    fn is_written(&self, tier: TierId, name: BlockName, slot: SlotId) -> bool {
        let known = self.slots.known(slot);
        known.is_some_and(|of| of.writers & tier.bit() != 0 && of.name == name)
    }

    fn end_read(&mut self, slot: SlotId, result: Result<Checksum, TierError>, now: Now) {
        let SlotState::Reading { tier, ticket, fate } = self.slots[slot].state else { return };
        let name = self.slots[slot].name;
        let is_visible = |slot: Option<SlotId>| match fate {
            ReadFate::Wanted => true,
            ReadFate::Dropped => slot.is_none(),
            ReadFate::Hidden => false,
        };
        let known = self.index.find(name).filter(|known| is_visible(known.slot));
        let block = known.map(|known| known.block(name));
        let state = self.tier_mut(tier);
        match result {
            Ok(checksum) => {
                state.succeeded();
                state.speed.end(ticket, now);
                self.slots[slot].checksum = checksum;
                self.slots[slot].state = SlotState::Hidden;
                if let Some(block) = block {
                    self.register(slot, block, now);
                }
            }
            Err(error) => {
                state.failed(error, now);
                match error {
                    TierError::Cancelled => {
                        state.stats.dropped += 1;
                        state.speed.drop_queued();
                    }
                    _ => state.speed.give_up(now),
                }
                if matches!(error, TierError::Missing | TierError::Corrupt) {
                    self.lacks(tier, name);
                }
                if fate == ReadFate::Wanted {
                    self.index.unset_slot(name);
                }
                self.slots[slot].state = SlotState::Failed;
            }
        }
        self.wake(slot);
        if self.slots[slot].state != SlotState::Ready {
            self.settle(slot);
        }
    }

    fn written(&mut self, tier: TierId, slot: SlotId, result: Result<(), TierError>, now: Now) {
        let name = self.slots[slot].name;
        // A block that was forgotten meanwhile is not looked for in the tier any more.
        let is_visible = self.slots[slot].state == SlotState::Ready;
        let state = self.tier_mut(tier);
        state.writes -= 1;
        match result {
            Ok(()) => {
                state.succeeded();
                let known = self.index.find(name).filter(|_| is_visible);
                if let Some(block) = known.map(|known| known.block(name)) {
                    self.holds(tier, block);
                }
            }
            Err(error) => {
                state.failed(error, now);
                // The tier will have time for it; other errors would only repeat themselves.
                if error == TierError::Busy && is_visible {
                    state.offer(name);
                }
            }
        }
        self.end_write(slot, tier.bit());
    }

    fn holds(&mut self, tier: TierId, block: Block) {
        if self.index.add_tier(block, tier) {
            let state = self.tier_mut(tier);
            state.held += 1;
            let TierSettings { medium, is_announced, .. } = state.settings;
            if is_announced {
                self.actions.push_back(Action::Event(TierEvent::Stored { block, medium }));
            }
        }
    }

    /// The tier does not hold the block; whether it did.
    pub(super) fn lacks(&mut self, tier: TierId, name: BlockName) -> bool {
        let Some(block) = self.index.remove_tier(name, tier) else { return false };
        let state = self.tier_mut(tier);
        state.held -= 1;
        let TierSettings { medium, is_announced, .. } = state.settings;
        if is_announced {
            self.actions.push_back(Action::Event(TierEvent::Removed { block, medium }));
        }
        true
    }
}
