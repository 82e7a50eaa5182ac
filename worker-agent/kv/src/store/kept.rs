//! Blocks that an operator keeps in host memory, or has forgotten.

use super::slots::SlotState;
use super::tiers::tiers_of;
use super::{Action, BlockStore};
use crate::policy::Eviction;
use crate::tier::TierEvent;
use crate::{Now, SlotId};
use rustc_hash::{FxHashMap, FxHashSet};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::name::BlockName;
use std::collections::BTreeSet;

/// Share of the slots that operators may keep: one in so many. Requests need the rest.
const KEPT_SHARE: usize = 2;

/// Outcome of keeping blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepOutcome {
    /// Blocks that are in host memory, and stay there.
    pub here: usize,
    /// Blocks that are kept as soon as they come: they are in a tier below or on their way.
    pub coming: usize,
    /// Blocks beyond those that may be kept.
    pub refused: usize,
}

/// Outcome of forgetting blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetOutcome {
    /// Blocks that left host memory.
    pub host: usize,
    /// Copies in tiers below that are forgotten.
    pub below: usize,
}

/// Blocks that are kept until a time, each with one pin on its slot.
#[derive(Debug, Default)]
pub(super) struct KeptBlocks {
    blocks: FxHashMap<BlockName, KeptBlock>,
    ends: BTreeSet<(Now, BlockName)>,
}

#[derive(Clone, Copy, Debug)]
struct KeptBlock {
    until: Now,
    /// The slot that is pinned; none as long as the block is not there.
    slot: Option<SlotId>,
}

impl KeptBlocks {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn next_end(&self) -> Option<Now> {
        Some(self.ends.first()?.0)
    }

    /// Keeps a block until then, also where it was kept for longer.
    fn set_end(&mut self, name: BlockName, until: Now) -> &mut KeptBlock {
        let kept = self.blocks.entry(name).or_insert(KeptBlock { until, slot: None });
        self.ends.remove(&(kept.until, name));
        self.ends.insert((until, name));
        kept.until = until;
        kept
    }

    /// The block that is in a slot now, if it is kept and was not there.
    pub(super) fn awaits(&mut self, name: BlockName, slot: SlotId) -> bool {
        let kept = self.blocks.get_mut(&name).filter(|kept| kept.slot.is_none());
        kept.is_some_and(|kept| {
            kept.slot = Some(slot);
            true
        })
    }

    /// The block's slot holds it no more; whether it was pinned.
    pub(super) fn lost(&mut self, name: BlockName, slot: SlotId) -> bool {
        let kept = self.blocks.get_mut(&name).filter(|kept| kept.slot == Some(slot));
        kept.is_some_and(|kept| {
            kept.slot = None;
            true
        })
    }

    /// Keeps a block no longer. Returns the slot that was pinned.
    fn remove(&mut self, name: BlockName) -> Option<SlotId> {
        let kept = self.blocks.remove(&name)?;
        self.ends.remove(&(kept.until, name));
        kept.slot
    }

    fn first_ended(&self, now: Now) -> Option<BlockName> {
        let (until, name) = self.ends.first()?;
        (*until <= now).then_some(*name)
    }

    fn any(&self) -> Option<BlockName> {
        Some(self.ends.first()?.1)
    }
}

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
            if !self.kept.blocks.contains_key(name) && self.kept.len() >= kept_max {
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
            SlotState::Reading { is_wanted, .. } => {
                if std::mem::take(is_wanted) {
                    self.index.unset_slot(name);
                }
                return false;
            }
            _ => return false,
        }
        self.policy.forget(slot);
        self.tenants.hold(slot);
        if let Some(block) = self.index.unset_slot(name) {
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
