//! What there is of a prompt: pins for blocks that are here, reads for blocks that are below.

use super::requests::{Request, RequestKey};
use super::slots::SlotState;
use super::tiers::tiers_of;
use super::{Action, BlockStore, Found, OwnerId, RequestId, TierId};
use crate::tier::{TierRead, Urgency};
use crate::{Block, Now, SlotId};
use stator_protos::name::BlockName;
use std::time::Duration;

impl BlockStore {
    /// The leading blocks of a prompt that are in host memory, pinned until the request ends, and
    /// how many of the blocks behind them are on their way.
    ///
    /// `block_prefill` is the time in which the engine computes a block; zero if it is not known.
    /// A request may ask again: it keeps the pins that it has.
    pub fn ask(
        &mut self,
        owner: OwnerId,
        request: RequestId,
        names: &[BlockName],
        block_prefill: Duration,
        now: Now,
    ) -> Found {
        self.expire(now);
        let key = (owner, request);
        let Some(state) = self.live_owner(owner) else { return Found::default() };
        let has_too_many = state.requests >= self.requests_max;
        let earlier = match self.requests.take(key) {
            Some(earlier) => earlier,
            None if has_too_many => return Found::default(),
            None => {
                self.count_request(owner);
                Request::default()
            }
        };
        let mut asked = Request { names: names.into(), missed: earlier.missed, ..earlier };
        // New pins first: what the request already holds must not be evicted between.
        let told = std::mem::take(&mut asked.slots);
        let told_ready = std::mem::take(&mut asked.ready);
        let end = names.iter().position(|name| Some(*name) == asked.missed);
        let names = &names[..end.unwrap_or(names.len())];
        self.pin_ready(names, &mut asked);
        self.read_behind(names, &mut asked, now);
        self.keep_earlier(&mut asked, told, told_ready);
        let found = Found {
            ready: asked.slots[..asked.ready].to_vec(),
            pending: asked.slots.len() - asked.ready,
        };
        // To wait for longer than computing takes is never right.
        let wait = match block_prefill {
            Duration::ZERO => self.wait_max,
            prefill => self.wait_max.min(prefill.saturating_mul(found.pending as u32)),
        };
        asked.deadline = Some(now + wait);
        self.requests.put(key, asked);
        found
    }

    /// Starts to read blocks that a request may soon ask for.
    pub fn prefetch(&mut self, names: &[BlockName], now: Now) {
        self.expire(now);
        for name in names {
            match self.index.find(*name) {
                Some(known) if known.slot.is_some() => {}
                Some(known) => {
                    let (block, tiers) = (known.block(*name), known.tiers);
                    if self.read(block, tiers, Urgency::Prefetch, now).is_none() {
                        return;
                    }
                }
                None => return,
            }
        }
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

    /// Ends the waits whose time is over, and continues writes that had to pause. Every other call
    /// does so too; with nothing else to do, call it at [`BlockStore::next_deadline`].
    pub fn expire(&mut self, now: Now) {
        while let Some(key) = self.requests.first_expired(now) {
            self.cut(key);
        }
        self.write_down(now);
    }

    /// The time at which the next wait ends.
    pub fn next_deadline(&self) -> Option<Now> {
        self.requests.next_deadline()
    }

    fn pin_ready(&mut self, names: &[BlockName], asked: &mut Request) {
        for name in names {
            let Some(slot) = self.index.slot(*name) else { break };
            if self.slots[slot].state != SlotState::Ready {
                break;
            }
            self.pin(slot);
            asked.slots.push(slot);
        }
        asked.ready = asked.slots.len();
    }

    /// Pins blocks behind the ready ones: those on their way, those that a tier can read now, and
    /// those that are here after a gap that is on its way.
    fn read_behind(&mut self, names: &[BlockName], asked: &mut Request, now: Now) {
        for name in &names[asked.ready..] {
            let Some(known) = self.index.find(*name) else { break };
            let (block, tiers) = (known.block(*name), known.tiers);
            let slot = known.slot.or_else(|| self.read(block, tiers, Urgency::Demand, now));
            let Some(slot) = slot else { break };
            self.pin(slot);
            asked.slots.push(slot);
        }
    }

    /// Starts to read a block from the nearest tier that holds it and takes reads now.
    fn read(&mut self, block: Block, tiers: u8, urgency: Urgency, now: Now) -> Option<SlotId> {
        let tier = tiers_of(tiers).find(|tier| self.tier(*tier).takes_read(now))?;
        let slot = self.take_slot()?;
        self.slots[slot].state = SlotState::Reading { tier, is_wanted: true };
        self.slots[slot].name = block.name;
        self.index.set_slot(block, slot);
        self.tier_mut(tier).reads += 1;
        let read = TierRead { name: block.name, slot, urgency };
        self.actions.push_back(Action::Read { tier, read });
        Some(slot)
    }

    /// Keeps what an earlier answer to the same request said is ready: the owner may be reading it.
    fn keep_earlier(&mut self, asked: &mut Request, mut told: Vec<SlotId>, ready: usize) {
        told.drain(ready..).rev().for_each(|slot| self.unpin(slot));
        asked.earlier.append(&mut told);
        // One pin for a slot is enough, however often the request asks.
        asked.earlier.sort_unstable();
        let mut kept: Option<SlotId> = None;
        asked.earlier.retain(|slot| {
            let is_new = kept.replace(*slot) != Some(*slot);
            if !is_new {
                self.unpin(*slot);
            }
            is_new
        });
    }

    pub(super) fn end_request(&mut self, key: RequestKey) {
        let Some(request) = self.requests.take(key) else { return };
        if let Some(owner) = self.owners.get_mut(&key.0) {
            owner.requests -= 1;
        }
        // Deepest first: of a sequence, the deeper block is to be the older one.
        for name in request.names[request.slots.len()..].iter().rev() {
            if let Some(slot) = self.index.slot(*name) {
                self.touch_slot(slot);
            }
        }
        let slots = request.slots.into_iter().rev();
        slots.chain(request.earlier).for_each(|slot| self.unpin(slot));
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
        let pending = request.slots.len() - request.ready;
        self.tell(key, request.slots[before..request.ready].to_vec(), pending);
        self.requests.put(key, request);
    }

    fn drop_awaited(&mut self, request: &mut Request) {
        request.missed = request.names.get(request.ready).copied();
        let awaited = request.slots.split_off(request.ready);
        awaited.into_iter().rev().for_each(|slot| self.unpin(slot));
    }

    fn tell(&mut self, key: RequestKey, slots: Vec<SlotId>, pending: usize) {
        let (owner, request) = key;
        self.actions.push_back(Action::Ready { owner, request, slots, pending });
    }

    /// The tier from which a slot is being read.
    pub(super) fn reader(&self, slot: SlotId) -> Option<TierId> {
        match self.slots.known(slot)?.state {
            SlotState::Reading { tier, .. } => Some(tier),
            _ => None,
        }
    }
}
