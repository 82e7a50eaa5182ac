//! Owners, their requests with pins, and those of them that wait for blocks on their way.

use super::action::{OwnerId, RequestId};
use crate::{Now, SlotId};
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, BTreeSet};

/// An engine that uses the store.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// Slots that it holds to fill.
    pub(super) granted: usize,
    /// Requests of it that have pins.
    pub(super) requests: usize,
    /// The connection is gone, but the process may still read and fill its slots.
    pub(super) is_lost: bool,
}

/// A request of an owner.
pub(super) type RequestKey = (OwnerId, RequestId);

/// The pins of a request.
#[derive(Debug, Default)]
pub(super) struct PinnedRequest {
    /// Slots in the order of the prompt, all pinned once by this request: `ready` are there, the
    /// others on their way.
    pub(super) slots: Vec<SlotId>,
    pub(super) ready: usize,
    /// Slots of earlier questions of the same request, which the owner may still read.
    pub(super) earlier: Vec<SlotId>,
    /// The prompt. The request's end releases its blocks, also those computed meanwhile.
    pub(super) names: Box<[BlockName]>,
    /// The block that did not come. It stays a miss for this request, wherever it is found later:
    /// a load that failed and is offered again could go on for ever.
    pub(super) missed: Option<BlockName>,
    /// End of the wait, while there is one.
    pub(super) deadline: Option<Now>,
}

impl PinnedRequest {
    /// Slot of the next block, if the request waits for one.
    pub(super) fn awaited(&self) -> Option<SlotId> {
        self.slots.get(self.ready).copied()
    }
}

/// All requests. A request waits for one slot at a time: that of its next block.
#[derive(Debug, Default)]
pub(super) struct Requests {
    all: BTreeMap<RequestKey, PinnedRequest>,
    waiting: BTreeSet<(SlotId, RequestKey)>,
    deadlines: BTreeSet<(Now, RequestKey)>,
}

impl Requests {
    /// Takes a request out, which then waits for nothing.
    pub(super) fn take(&mut self, key: RequestKey) -> Option<PinnedRequest> {
        let request = self.all.remove(&key)?;
        if let Some(slot) = request.awaited() {
            self.waiting.remove(&(slot, key));
        }
        if let Some(deadline) = request.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        Some(request)
    }

    /// Puts a request in, which waits for its next block if it has one.
    pub(super) fn put(&mut self, key: RequestKey, mut request: PinnedRequest) {
        match request.awaited() {
            Some(slot) => {
                self.waiting.insert((slot, key));
                self.deadlines.extend(request.deadline.map(|deadline| (deadline, key)));
            }
            None => request.deadline = None,
        }
        self.all.insert(key, request);
    }

    /// Requests of an owner.
    pub(super) fn of(&self, owner: OwnerId) -> impl Iterator<Item = RequestKey> {
        let range = (owner, RequestId(0))..=(owner, RequestId(u64::MAX));
        self.all.range(range).map(|(key, _)| *key)
    }

    /// A request that waits for a block, whichever.
    pub(super) fn any_waiting(&self) -> Option<RequestKey> {
        Some(self.waiting.first()?.1)
    }

    /// The next request that waits for a slot.
    pub(super) fn first_waiting(&self, slot: SlotId) -> Option<RequestKey> {
        let from = (slot, (OwnerId(0), RequestId(0)));
        let (of, key) = self.waiting.range(from..).next()?;
        (*of == slot).then_some(*key)
    }

    /// The next request whose wait has ended by `now`.
    pub(super) fn first_expired(&self, now: Now) -> Option<RequestKey> {
        let (deadline, key) = self.deadlines.first()?;
        (*deadline <= now).then_some(*key)
    }

    pub(super) fn next_deadline(&self) -> Option<Now> {
        Some(self.deadlines.first()?.0)
    }
}
