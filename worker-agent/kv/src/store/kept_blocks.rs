//! Blocks that an operator keeps in host memory.

use crate::{Now, SlotId};
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::BTreeSet;

/// Blocks that are kept until a time, each with one pin on its slot.
#[derive(Debug, Default)]
pub(super) struct KeptBlocks {
    blocks: FxHashMap<BlockName, KeptBlock>,
    ends: BTreeSet<(Now, BlockName)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KeptBlock {
    until: Now,
    /// The slot that is pinned; none as long as the block is not there.
    pub(super) slot: Option<SlotId>,
}

impl KeptBlocks {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn has(&self, name: BlockName) -> bool {
        self.blocks.contains_key(&name)
    }

    pub(super) fn next_end(&self) -> Option<Now> {
        Some(self.ends.first()?.0)
    }

    /// Keeps a block until then, also where it was kept for longer.
    pub(super) fn set_end(&mut self, name: BlockName, until: Now) -> &mut KeptBlock {
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
    pub(super) fn remove(&mut self, name: BlockName) -> Option<SlotId> {
        let kept = self.blocks.remove(&name)?;
        self.ends.remove(&(kept.until, name));
        kept.slot
    }

    pub(super) fn first_ended(&self, now: Now) -> Option<BlockName> {
        let (until, name) = self.ends.first()?;
        (*until <= now).then_some(*name)
    }

    pub(super) fn any(&self) -> Option<BlockName> {
        Some(self.ends.first()?.1)
    }
}
