//! Doubly linked lists of slots, in arrays: a slot is in one list at most.

use crate::SlotId;

const NONE: u32 = u32::MAX;

/// The neighbours of each slot in its list.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl Links {
    fn set(&mut self, slot: SlotId, link: Link) {
        let at = slot.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Link { older: NONE, newer: NONE });
        }
        self.0[at] = link;
    }
}

/// A list of slots, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct SlotList {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Default for SlotList {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE, len: 0 }
    }
}

impl SlotList {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<SlotId> {
        (self.oldest != NONE).then_some(SlotId(self.oldest))
    }

    /// Appends a slot that is in no list.
    pub(super) fn push_newest(&mut self, links: &mut Links, slot: SlotId) {
        links.set(slot, Link { older: self.newest, newer: NONE });
        match self.newest {
            NONE => self.oldest = slot.0,
            newest => links.0[newest as usize].newer = slot.0,
        }
        self.newest = slot.0;
        self.len += 1;
    }

    /// Puts a slot that is in no list before all others.
    pub(super) fn push_oldest(&mut self, links: &mut Links, slot: SlotId) {
        match self.oldest() {
            Some(oldest) => self.insert_before(links, slot, oldest),
            None => self.push_newest(links, slot),
        }
    }

    /// Puts a slot that is in no list right before one that is in this list, as the older of the two.
    pub(super) fn insert_before(&mut self, links: &mut Links, slot: SlotId, newer: SlotId) {
        let older = links.0[newer.0 as usize].older;
        links.set(slot, Link { older, newer: newer.0 });
        links.0[newer.0 as usize].older = slot.0;
        match older {
            NONE => self.oldest = slot.0,
            older => links.0[older as usize].newer = slot.0,
        }
        self.len += 1;
    }

    /// Takes out a slot that is in this list.
    pub(super) fn remove(&mut self, links: &mut Links, slot: SlotId) {
        let Link { older, newer } = links.0[slot.0 as usize];
        match older {
            NONE => self.oldest = newer,
            older => links.0[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => links.0[newer as usize].older = older,
        }
        self.len -= 1;
    }
}
