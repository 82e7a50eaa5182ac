//! Checks that slots still hold the registered KV.

use super::BlockStore;
use super::slots::SlotState;
use crate::{Checksum, SlotId};
use stator_protos::name::BlockName;

/// A block in host memory as it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotContent {
    /// The slot.
    pub slot: SlotId,
    /// The block that it holds.
    pub name: BlockName,
    /// The checksum that its KV had then.
    pub checksum: Checksum,
}

impl BlockStore {
    /// The block that a slot holds, if it holds one.
    pub fn content(&self, slot: SlotId) -> Option<SlotContent> {
        let of = self.slots.known(slot)?;
        let has_block = matches!(of.state, SlotState::Ready | SlotState::Hidden);
        has_block.then_some(SlotContent { slot, name: of.name, checksum: of.checksum })
    }

    /// The KV of a block in host memory is not what was registered: host memory forgets the block.
    /// Its slot stays as it is for requests that have it.
    pub fn spoiled(&mut self, content: SlotContent) {
        let slot = content.slot;
        // The slot may hold another block by now.
        let is_there = self.content(slot) == Some(content);
        if !is_there || self.slots[slot].state != SlotState::Ready {
            return;
        }
        self.hide(slot);
    }
}
