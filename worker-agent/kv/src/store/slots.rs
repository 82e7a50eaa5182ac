//! The slots of the host arena: what each holds, and who needs it.

use super::action::{OwnerId, TierId};
use crate::cost::ReadTicket;
use crate::{Checksum, SlotId};
use stator_protos::name::BlockName;

/// Content of a slot, and its one writer if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Nothing.
    Free,
    /// The owner fills it.
    Granted(OwnerId),
    /// The tier reads a block into it.
    Reading { tier: TierId, ticket: ReadTicket, fate: ReadFate },
    /// The visible copy of a block.
    Ready,
    /// A block that is visible no more, kept for those who have pinned it.
    Hidden,
    /// A read failed. The slot is kept until all who waited for it have heard of it.
    Failed,
}

/// Fate of a block that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFate {
    /// The block becomes visible when it is there.
    Wanted,
    /// Nobody waits for the block any more, and the tier may drop the read. A block that comes all the
    /// same becomes visible, unless there is or will be another copy.
    Dropped,
    /// The block stays invisible: it was forgotten, or another copy is there.
    Hidden,
}

/// A slot. Its name and checksum are those of the block that it holds or is to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostSlot {
    pub(super) state: SlotState,
    pub(super) name: BlockName,
    pub(super) checksum: Checksum,
    /// Requests that use the block or wait for it.
    pub(super) pins: u32,
    /// One bit for each tier that writes the block down.
    pub(super) writers: u8,
    /// Reads into the slot so far, which tell them apart.
    pub(super) reads: u64,
    /// The block is wanted by somebody who never waits for it: its read is not dropped.
    pub(super) is_ahead: bool,
    /// Requests that want the block and do not wait for it yet: its read is not dropped before their ends.
    pub(super) ahead: u32,
    /// A request has used the block since it came.
    pub(super) is_reused: bool,
    /// The policy chose the block to be evicted while it was written down: it goes after that.
    pub(super) is_leaving: bool,
}

impl HostSlot {
    /// Whether anybody needs the slot as it is.
    pub(super) fn is_needed(&self) -> bool {
        self.pins > 0 || self.writers != 0
    }
}

/// All slots, and those that are free.
#[derive(Debug)]
pub(super) struct HostSlots {
    slots: Vec<HostSlot>,
    free: Vec<SlotId>,
    /// Slots that may be in use at a time.
    limit: usize,
    /// Slots with at least one pin.
    pinned: usize,
}

impl HostSlots {
    pub(super) fn new(count: u32) -> Self {
        let empty = HostSlot {
            state: SlotState::Free,
            name: BlockName(0),
            checksum: Checksum(0),
            pins: 0,
            writers: 0,
            reads: 0,
            is_ahead: false,
            ahead: 0,
            is_reused: false,
            is_leaving: false,
        };
        // The lowest slot is taken first: memory that was never needed is never touched.
        let free = (0..count).rev().map(SlotId).collect();
        Self { slots: vec![empty; count as usize], free, limit: count as usize, pinned: 0 }
    }

    /// A free slot; none if as many are in use as may be.
    pub(super) fn take_free(&mut self) -> Option<SlotId> {
        if self.used() < self.limit { self.free.pop() } else { None }
    }

    /// Slots that have content or are to get some.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Slots that may be in use at a time.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes how many slots may be in use. Slots in use stay so until they are freed.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(self.slots.len());
    }

    /// Gives back a slot that nobody needs.
    pub(super) fn free(&mut self, slot: SlotId) {
        let of = &mut self[slot];
        debug_assert!(!of.is_needed() && of.state != SlotState::Free);
        of.state = SlotState::Free;
        of.is_leaving = false;
        self.free.push(slot);
    }

    /// Slots that requests or operators have pinned.
    pub(super) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Pins a slot once more.
    pub(super) fn pin(&mut self, slot: SlotId) {
        self[slot].pins += 1;
        self.pinned += usize::from(self[slot].pins == 1);
    }

    /// Takes one pin of a slot away.
    pub(super) fn unpin(&mut self, slot: SlotId) {
        self[slot].pins -= 1;
        self.pinned -= usize::from(self[slot].pins == 0);
    }

    pub(super) fn known(&self, slot: SlotId) -> Option<&HostSlot> {
        self.slots.get(slot.0 as usize)
    }

    pub(super) fn ids(&self) -> impl ExactSizeIterator<Item = SlotId> + use<> {
        (0..self.slots.len() as u32).map(SlotId)
    }
}

impl std::ops::Index<SlotId> for HostSlots {
    type Output = HostSlot;

    fn index(&self, slot: SlotId) -> &HostSlot {
        &self.slots[slot.0 as usize]
    }
}

impl std::ops::IndexMut<SlotId> for HostSlots {
    fn index_mut(&mut self, slot: SlotId) -> &mut HostSlot {
        &mut self.slots[slot.0 as usize]
    }
}
