//! A policy tried on the sampled sequences, without their KV.

use super::Eviction;
use crate::SlotId;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;

/// A cache of names that counts the hits that a policy would have.
pub struct ShadowCache<P = Box<dyn Eviction>> {
    policy: P,
    slots: FxHashMap<BlockName, SlotId>,
    names: Vec<BlockName>,
    free: Vec<SlotId>,
    hits: u64,
}

impl<P: Eviction> ShadowCache<P> {
    /// An empty cache of `slots` names.
    pub fn new(policy: P, slots: usize) -> Self {
        Self {
            policy,
            slots: FxHashMap::default(),
            names: vec![BlockName(0); slots],
            free: (0..slots as u32).map(SlotId).collect(),
            hits: 0,
        }
    }

    /// A prompt comes: leading blocks that are there are hits, all others come in.
    pub fn ask(&mut self, names: &[BlockName]) {
        let mut is_leading = true;
        for name in names {
            let slot = self.slots.get(name);
            slot.into_iter().for_each(|slot| self.policy.hold(*slot));
            is_leading &= slot.is_some();
            self.hits += u64::from(is_leading);
        }
        // Deepest first, as requests release their blocks.
        for name in names.iter().rev() {
            let slot = self.slots.get(name).copied().or_else(|| self.insert(*name));
            slot.into_iter().for_each(|slot| self.policy.release(slot, *name));
        }
    }

    /// Leading blocks that were there.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// The policy.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Makes the past count less.
    pub(super) fn fade(&mut self) {
        self.hits = self.hits * 3 / 4;
    }

    fn insert(&mut self, name: BlockName) -> Option<SlotId> {
        let slot = self.free.pop().or_else(|| {
            let victim = self.policy.evict()?;
            self.slots.remove(&self.names[victim.0 as usize]);
            Some(victim)
        })?;
        self.names[slot.0 as usize] = name;
        self.slots.insert(name, slot);
        Some(slot)
    }
}
