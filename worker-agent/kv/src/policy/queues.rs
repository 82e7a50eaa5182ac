//! Queues of the blocks that may be evicted, oldest first. Each slot is in one queue at most.

use super::list::{Links, SlotList};
use crate::SlotId;

/// Up to `N` queues over the same slots.
#[derive(Debug)]
pub(super) struct Queues<const N: usize> {
    links: Links,
    lists: [SlotList; N],
    members: Vec<Option<Member>>,
}

/// The queue of a slot.
#[derive(Clone, Copy, Debug)]
struct Member {
    queue: u8,
    /// The slot is out of the queue for as long as a request uses it.
    is_held: bool,
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        let lists = std::array::from_fn(|_| SlotList::default());
        Self { links: Links::default(), lists, members: Vec::new() }
    }
}

impl<const N: usize> Queues<N> {
    /// The queue that a slot is in or was held from.
    pub(super) fn queue_of(&self, slot: SlotId) -> Option<usize> {
        self.members.get(slot.0 as usize)?.map(|member| member.queue.into())
    }

    pub(super) fn is_held(&self, slot: SlotId) -> bool {
        let member = self.members.get(slot.0 as usize).copied().flatten();
        member.is_some_and(|member| member.is_held)
    }

    /// Slots in a queue, without those held.
    pub(super) fn len(&self, queue: usize) -> usize {
        self.lists[queue].len()
    }

    pub(super) fn oldest(&self, queue: usize) -> Option<SlotId> {
        self.lists[queue].oldest()
    }

    pub(super) fn hold(&mut self, slot: SlotId) {
        self.unlink(slot);
        if let Some(Some(member)) = self.members.get_mut(slot.0 as usize) {
            member.is_held = true;
        }
    }

    /// The queue that a slot is in; none if it is held.
    pub(super) fn idle_in(&self, slot: SlotId) -> Option<usize> {
        self.queue_of(slot).filter(|_| !self.is_held(slot))
    }

    /// Makes a slot the newest of a queue, wherever it was.
    pub(super) fn push(&mut self, slot: SlotId, queue: usize) {
        self.enter(slot, queue);
        self.lists[queue].push_newest(&mut self.links, slot);
    }

    /// Makes a slot the oldest of a queue, wherever it was.
    pub(super) fn push_oldest(&mut self, slot: SlotId, queue: usize) {
        self.enter(slot, queue);
        self.lists[queue].push_oldest(&mut self.links, slot);
    }

    /// Puts a slot right before `newer` if that is in the queue, else where [`Queues::push`] does.
    pub(super) fn push_before(&mut self, slot: SlotId, queue: usize, newer: SlotId) {
        if self.idle_in(newer) != Some(queue) || newer == slot {
            return self.push(slot, queue);
        }
        self.enter(slot, queue);
        self.lists[queue].insert_before(&mut self.links, slot, newer);
    }

    pub(super) fn pop(&mut self, queue: usize) -> Option<SlotId> {
        let slot = self.oldest(queue)?;
        self.forget(slot);
        Some(slot)
    }

    pub(super) fn forget(&mut self, slot: SlotId) {
        self.unlink(slot);
        if let Some(member) = self.members.get_mut(slot.0 as usize) {
            *member = None;
        }
    }

    /// Takes a slot out of the queue that it is in, as a member of another.
    fn enter(&mut self, slot: SlotId, queue: usize) {
        self.unlink(slot);
        let at = slot.0 as usize;
        if self.members.len() <= at {
            self.members.resize(at + 1, None);
        }
        self.members[at] = Some(Member { queue: queue as u8, is_held: false });
    }

    fn unlink(&mut self, slot: SlotId) {
        if let Some(Some(Member { queue, is_held: false })) = self.members.get(slot.0 as usize) {
            self.lists[usize::from(*queue)].remove(&mut self.links, slot);
        }
    }
}
