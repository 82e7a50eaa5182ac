//! Answers about prompts, and pins on their blocks.

use super::requests::{PinnedRequest, RequestKey};
use super::slots::SlotState;
use super::{BlockStore, Found, LoanTerms, OwnerId, RequestId};
use crate::cost::{EnginePace, times};
use crate::{Now, SlotId};
use stator_protos::name::BlockName;
use std::time::Duration;

impl BlockStore {
    /// The leading blocks of a prompt that are in host memory, pinned until the request ends, and
    /// how many of the blocks behind them are on their way.
    ///
    /// `pace` is the engine's; a time in which it computes a block does for one whose loads take no
    /// time of their own. A request may ask again: it keeps the pins that it has.
    pub fn ask(
        &mut self,
        owner: OwnerId,
        request: RequestId,
        names: &[BlockName],
        pace: impl Into<EnginePace>,
        now: Now,
    ) -> Found {
        self.answer((owner, request), names, now, |store, behind, asked| {
            let mut pace = pace.into();
            if asked.ready > 0 {
                // The ready blocks are loaded anyway.
                pace.load = Duration::ZERO;
            }
            let pending = store.load_behind(behind, asked, pace, now);
            // To wait for longer than computing takes is never right.
            match pace.block_prefill {
                Duration::ZERO => store.wait_max,
                prefill => store.wait_max.min(times(prefill, pending)),
            }
        })
    }

    /// The leading blocks of a prompt that another agent may read: those in host memory, and those on
    /// disk as far as they are expected to be read within the terms. They are pinned, and told, as those
    /// of [`BlockStore::ask`]. Nothing is read from anybody else for another agent: two agents could
    /// wait for each other.
    pub fn lend(
        &mut self,
        owner: OwnerId,
        request: RequestId,
        names: &[BlockName],
        terms: LoanTerms,
        now: Now,
    ) -> Found {
        self.answer((owner, request), names, now, |store, behind, asked| {
            store.load_to_lend(behind, asked, terms, now);
            store.wait_max.min(terms.wait)
        })
    }

    /// Pins what is there of a prompt, and what `load` gets of the blocks behind that. `load` returns how
    /// long the request waits for them.
    fn answer(
        &mut self,
        key: RequestKey,
        names: &[BlockName],
        now: Now,
        load: impl FnOnce(&mut Self, &[BlockName], &mut PinnedRequest) -> Duration,
    ) -> Found {
        self.expire(now);
        let Some(earlier) = self.take_request(key) else { return Found::default() };
        if earlier.names.is_empty() {
            self.policy.ask(names);
            let measured = self.tiers.iter_mut().filter_map(|tier| tier.admission.as_mut());
            measured.for_each(|admission| admission.ask(names));
        }
        let told = earlier.slots;
        let mut asked =
            PinnedRequest { names: names.into(), slots: Vec::new(), ready: 0, ..earlier };
        let end = names.iter().position(|name| Some(*name) == asked.missed);
        let names = &names[..end.unwrap_or(names.len())];
        // New pins come first: what the request already holds must not be evicted between.
        self.pin_ready(names, &mut asked);
        let ready = asked.ready;
        let wait = load(self, &names[ready..], &mut asked);
        self.keep_earlier(&mut asked, told, earlier.ready);
        let pending = asked.slots.len() - ready;
        asked.deadline = Some(now + wait);
        let found = Found { ready: asked.slots[..ready].to_vec(), pending };
        self.requests.put(key, asked);
        found
    }

    /// Ends a request: its pins go.
    pub fn end(&mut self, owner: OwnerId, request: RequestId, now: Now) {
        self.expire(now);
        self.end_request((owner, request));
    }

    /// Blocks of a sequence were used on the device: in host memory they count as used too.
    pub fn touch(&mut self, names: &[BlockName], now: Now) {
        self.expire(now);
        for name in names.iter().rev() {
            if let Some(slot) = self.index.slot(*name) {
                self.touch_slot(slot);
            }
        }
    }

    pub(super) fn end_request(&mut self, key: RequestKey) {
        let Some(request) = self.requests.take(key) else { return };
        if let Some(owner) = self.owners.get_mut(&key.0) {
            owner.requests -= 1;
        }
        // Deepest first: of a sequence, the deeper block is to be the older one. That holds for
        // what was computed since the question too.
        for name in request.names[request.slots.len()..].iter().rev() {
            if let Some(slot) = self.index.slot(*name) {
                self.release_again(slot);
            }
        }
        let slots = request.slots.into_iter().rev();
        slots.chain(request.earlier).for_each(|slot| self.unpin(slot));
    }

    /// The request if it is known, else a new one; none where the owner may not have one.
    fn take_request(&mut self, key: RequestKey) -> Option<PinnedRequest> {
        let owner = self.owners.get_mut(&key.0).filter(|owner| !owner.is_lost)?;
        let request = self.requests.take(key);
        if request.is_none() {
            if owner.requests >= self.requests_max {
                return None;
            }
            owner.requests += 1;
        }
        Some(request.unwrap_or_default())
    }

    fn pin_ready(&mut self, names: &[BlockName], asked: &mut PinnedRequest) {
        for name in names {
            let Some(slot) = self.index.slot(*name) else { break };
            if self.slots[slot].state != SlotState::Ready {
                break;
            }
            self.pin(slot);
            if !std::mem::replace(&mut self.slots[slot].is_reused, true) {
                self.offer_reused(*name);
            }
            asked.slots.push(slot);
        }
        asked.ready = asked.slots.len();
    }

    /// Keeps what an earlier answer to the same request said is ready: the owner may be reading it.
    fn keep_earlier(&mut self, asked: &mut PinnedRequest, mut told: Vec<SlotId>, ready: usize) {
        told.drain(ready..).rev().for_each(|slot| self.unpin(slot));
        asked.earlier.append(&mut told);
        // One pin for a slot is enough, however often the request asks.
        asked.earlier.sort_unstable();
        let mut kept = None;
        asked.earlier.retain(|slot| {
            let is_new = kept.replace(*slot) != Some(*slot);
            if !is_new {
                self.unpin(*slot);
            }
            is_new
        });
    }
}
