//! Requests that wait for blocks on their way: every wait ends.

use super::requests::{PinnedRequest, RequestKey};
use super::slots::SlotState;
use super::{Action, BlockStore};
use crate::{Now, SlotId};

impl BlockStore {
    /// Ends the waits whose time is over, and continues writes that had to pause. Every other call
    /// does so too; with nothing else to do, call it at [`BlockStore::next_deadline`].
    pub fn expire(&mut self, now: Now) {
        while let Some(key) = self.requests.first_expired(now) {
            self.cut(key);
        }
        self.end_kept(now);
        self.end_pins(now);
        self.write_down(now);
    }

    /// The time at which the next wait ends, or a block is kept or pinned no longer.
    pub fn next_deadline(&self) -> Option<Now> {
        let kept = self.kept.next_end().into_iter().chain(self.pins.next_end());
        self.requests.next_deadline().into_iter().chain(kept).min()
    }

    /// Tells all who wait for a slot what became of it.
    pub(super) fn wake(&mut self, slot: SlotId) {
        while let Some(key) = self.requests.first_waiting(slot) {
            self.advance(key);
        }
    }

    /// Ends a request's wait: the block that did not come is a miss for it from now on.
    pub(super) fn cut(&mut self, key: RequestKey) {
        let Some(mut request) = self.requests.take(key) else { return };
        self.drop_awaited(&mut request);
        self.tell(key, Vec::new(), 0);
        self.requests.put(key, request);
    }

    fn advance(&mut self, key: RequestKey) {
        let Some(mut request) = self.requests.take(key) else { return };
        let before = request.ready;
        while let Some(slot) = request.awaited() {
            match self.slots[slot].state {
                SlotState::Ready | SlotState::Hidden => request.ready += 1,
                SlotState::Reading { .. } => break,
                _ => self.drop_awaited(&mut request),
            }
        }
        let slots = request.slots[before..request.ready].to_vec();
        self.tell(key, slots, request.slots.len() - request.ready);
        self.requests.put(key, request);
    }

    fn drop_awaited(&mut self, request: &mut PinnedRequest) {
        self.stats.waits_cut += 1;
        request.missed = request.names.get(request.ready).copied();
        let awaited = request.slots.split_off(request.ready);
        awaited.into_iter().rev().for_each(|slot| self.unpin(slot));
    }

    fn tell(&mut self, key: RequestKey, slots: Vec<SlotId>, pending: usize) {
        let (owner, request) = key;
        self.actions.push_back(Action::Ready { owner, request, slots, pending });
    }
}
