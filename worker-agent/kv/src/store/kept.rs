//! Blocks that an operator keeps in host memory, or has forgotten.

use super::slots::{ReadFate, SlotState};
use super::tiers::tiers_of;
use super::{Action, BlockStore, ForgetOutcome, KeepOutcome};
use crate::policy::Eviction;
use crate::tier::TierEvent;
use crate::{Now, SlotId};
use rustc_hash::{FxHashMap, FxHashSet};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;

/// Share of the slots that operators may keep: one in so many. Requests need the rest.
const KEPT_SHARE: usize = 2;

impl BlockStore {
    /// The blocks that KV events call by these hashes, in their order, as far as they are known.
    /// Looks at every known block: it is for operators, not for requests.
    pub fn named(&self, hashes: &[SequenceHash]) -> Vec<BlockName> {
        let wanted: FxHashSet<_> = hashes.iter().copied().collect();
        let found = self.index.iter().filter_map(|(name, known)| {
            let hash = known.hash.filter(|hash| wanted.contains(hash))?;
            Some((hash, name))
        });
        let found: FxHashMap<_, _> = found.collect();
        hashes.iter().filter_map(|hash| found.get(hash).copied()).collect()
    }

    /// Keeps leading blocks of a prompt in host memory until `until`, whatever needs room. Blocks
    /// that only tiers below hold are read. At most half of the slots can be kept.
    pub fn keep(&mut self, names: &[BlockName], until: Now, now: Now) -> KeepOutcome {
        self.expire(now);
        let mut outcome = KeepOutcome::default();
        let kept_max = self.slots.limit() / KEPT_SHARE;
        for name in names {
            let Some(known) = self.index.find(*name) else { continue };
            let slot = known.slot;
            if !self.kept.has(*name) && self.kept.len() >= kept_max {
                outcome.refused += 1;
                continue;
            }
            let kept = self.kept.set_end(*name, until);
            if kept.slot.is_some() {
                outcome.here += 1;
                continue;
            }
            match slot.filter(|slot| self.slots[*slot].state == SlotState::Ready) {
                Some(slot) => {
                    kept.slot = Some(slot);
                    self.pin(slot);
                    outcome.here += 1;
                }
                None => outcome.coming += 1,
            }
        }
        if outcome.coming > 0 {
            self.prefetch(names, now);
        }
        outcome
    }

    /// Forgets blocks, in host memory and in all tiers, and keeps them no longer. Requests that have
    /// a block keep its slot as it is until they end.
    pub fn forget(&mut self, names: &[BlockName]) -> ForgetOutcome {
        let mut outcome = ForgetOutcome::default();
        let mut below = vec![Vec::new(); self.tiers.len()];
        for name in names {
            if let Some(slot) = self.kept.remove(*name) {
                self.unpin(slot);
            }
            let Some(known) = self.index.find(*name).copied() else { continue };
            if let Some(hash) = known.hash {
                self.end_pin(hash);
            }
            if let Some(slot) = known.slot {
                outcome.host += usize::from(self.hide(slot));
            }
            for tier in tiers_of(known.tiers) {
                self.lacks(tier, *name);
                below[usize::from(tier)].push(*name);
                outcome.below += 1;
            }
        }
        // All names, not only those that a tier holds: one may be on its way there.
        for (at, _) in self.tiers.iter().enumerate() {
            let tier = super::TierId(at as u8);
            self.actions.push_back(Action::Forget { tier, names: names.into() });
        }
        outcome
    }

    /// Ends what operators kept until now.
    pub(super) fn end_kept(&mut self, now: Now) {
        while let Some(name) = self.kept.first_ended(now) {
            self.keep_no_longer(name);
        }
    }

    /// Ends all that operators keep.
    pub(super) fn end_all_kept(&mut self) {
        while let Some(name) = self.kept.any() {
            self.keep_no_longer(name);
        }
    }

    fn keep_no_longer(&mut self, name: BlockName) {
        if let Some(slot) = self.kept.remove(name) {
            self.unpin(slot);
        }
    }

    /// Makes the block in a slot, or on its way there, invisible. Whoever has pinned the slot keeps
    /// it as it is. Returns whether host memory held the block.
    pub(super) fn hide(&mut self, slot: SlotId) -> bool {
        let name = self.slots[slot].name;
        match &mut self.slots[slot].state {
            state @ SlotState::Ready => *state = SlotState::Hidden,
            // Who waits for the read still gets the block.
            SlotState::Reading { fate, .. } => {
                if std::mem::replace(fate, ReadFate::Hidden) == ReadFate::Wanted {
                    self.index.unset_slot(name);
                    self.settle(slot);
                }
                return false;
            }
            _ => return false,
        }
        self.policy.forget(slot);
        self.tenants.hold(slot);
        let block = self.index.unset_slot(name);
        if block.and_then(|block| block.hash).is_some_and(|hash| self.pins.gone(hash, slot)) {
            // The slot has no block that could be settled, until below.
            self.slots.unpin(slot);
        }
        if let Some(block) = block {
            let medium = Medium::Host;
            self.actions.push_back(Action::Event(TierEvent::Removed { block, medium }));
        }
        match self.kept.lost(name, slot) {
            true => self.unpin(slot),
            false => self.settle(slot),
        }
        true
    }
}
