//! What was sent to each worker and is not finished yet.
//!
//! It counts at once, before any report of a worker could, so that two requests in a row never
//! see the same empty place.

use crate::Time;
use crate::chains::Chains;
use crate::deadlines::Deadlines;
use crate::slots::Slots;
use rustc_hash::FxHashMap;
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;
use std::time::Duration;

/// Identity of a booking. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BookingId(pub u64);

/// What a request takes from the worker that it is sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint<'a> {
    /// Blocks that it shares with any other request that has them; each is counted once.
    pub shared: &'a [SequenceHash],
    /// Further blocks of its prompt, which are its own.
    pub own_blocks: u32,
    /// Prompt tokens that are still to be computed.
    pub prefill_tokens: u64,
    /// Blocks of output that are expected. If known, the request's own blocks count for less
    /// the nearer its end is.
    pub expected_output_blocks: Option<u32>,
}

/// What is in flight at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens that are still to be computed.
    pub prefill_tokens: u64,
    /// KV blocks in use.
    pub blocks: u64,
}

struct Booking {
    slot: u32,
    shared: Arc<[SequenceHash]>,
    own_blocks: u32,
    output_blocks: u32,
    expected_output_blocks: Option<u32>,
    prefill_tokens: u64,
    until: Time,
}

impl Booking {
    /// What the request's own blocks count for: all of them, or the share of its expected output
    /// that is still to come, rounded up.
    ///
    /// Source: Dynamo's output tracking, weight `max(0, 1 - generated / expected)`.
    fn own_weight(&self) -> u64 {
        let own = u64::from(self.own_blocks) + u64::from(self.output_blocks);
        match self.expected_output_blocks {
            None => own,
            Some(expected) => {
                let left = u64::from(expected.saturating_sub(self.output_blocks));
                (own * left).div_ceil(u64::from(expected.max(1)))
            }
        }
    }
}

/// What is booked at one worker.
#[derive(Default)]
struct AtWorker {
    requests: u64,
    prefill_tokens: u64,
    /// Own blocks of the requests, by their weight.
    own_blocks: u64,
    /// Blocks that they share.
    shared: Chains,
}

impl AtWorker {
    fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.requests,
            prefill_tokens: self.prefill_tokens,
            blocks: self.own_blocks + self.shared.blocks(),
        }
    }
}

/// Bookings and their sums.
///
/// A booking ends by [`Tracker::release`], with its worker, or when nothing was heard of it for
/// `lease`: progress renews it, so that a long answer keeps its place and a lost one does not.
/// There are as many as there are requests in flight, which is for the caller to bound.
pub struct Tracker {
    lease: Duration,
    next_id: u64,
    bookings: FxHashMap<BookingId, Booking>,
    deadlines: Deadlines<BookingId>,
    workers: Slots<AtWorker>,
    expired: u64,
}

impl Tracker {
    /// A tracker without bookings.
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            next_id: 0,
            bookings: FxHashMap::default(),
            deadlines: Deadlines::default(),
            workers: Slots::default(),
            expired: 0,
        }
    }

    /// Books a request at a worker.
    pub fn book(&mut self, worker: WorkerRank, footprint: Footprint<'_>, now: Time) -> BookingId {
        self.next_id += 1;
        let id = BookingId(self.next_id);
        let slot = self.workers.slot_or_insert(worker, AtWorker::default);
        let booking = Booking {
            slot,
            shared: footprint.shared.into(),
            own_blocks: footprint.own_blocks,
            output_blocks: 0,
            expected_output_blocks: footprint.expected_output_blocks,
            prefill_tokens: footprint.prefill_tokens,
            until: now.after(self.lease),
        };
        let at_worker = self.workers.at_mut(slot).expect("the slot was just taken");
        at_worker.requests += 1;
        at_worker.prefill_tokens += booking.prefill_tokens;
        at_worker.own_blocks += booking.own_weight();
        at_worker.shared.insert(&booking.shared, id);
        self.deadlines.push(booking.until, id);
        self.bookings.insert(id, booking);
        let bookings = &self.bookings;
        self.deadlines.compact(bookings.len(), |id| bookings.contains_key(id));
        id
    }

    /// The prompt is computed. False if there is no such booking (any more).
    pub fn prefill_done(&mut self, id: BookingId, now: Time) -> bool {
        self.update(id, now, |booking| booking.prefill_tokens = 0)
    }

    /// The output fills one more block. False if there is no such booking (any more).
    pub fn grow(&mut self, id: BookingId, now: Time) -> bool {
        let grow = |booking: &mut Booking| {
            booking.output_blocks = booking.output_blocks.saturating_add(1);
        };
        self.update(id, now, grow)
    }

    /// The request ended, however it did. False if there is no such booking (any more).
    pub fn release(&mut self, id: BookingId) -> bool {
        let Some(booking) = self.bookings.remove(&id) else { return false };
        if let Some(at_worker) = self.workers.at_mut(booking.slot) {
            at_worker.requests -= 1;
            at_worker.prefill_tokens -= booking.prefill_tokens;
            at_worker.own_blocks -= booking.own_weight();
            at_worker.shared.remove(&booking.shared, id);
        }
        true
    }

    /// Ends the bookings that nothing was heard of for too long; how many they were.
    pub fn expire(&mut self, now: Time) -> u64 {
        let before = self.expired;
        while let Some(id) = self.deadlines.pop_due(now) {
            match self.bookings.get(&id).map(|booking| booking.until) {
                Some(until) if until > now => self.deadlines.push(until, id),
                Some(_) => {
                    self.release(id);
                    self.expired += 1;
                }
                None => {}
            }
        }
        self.expired - before
    }

    /// Forgets a worker with all its bookings. Takes a look at every booking.
    pub fn remove_worker(&mut self, worker: WorkerRank) {
        let Some(slot) = self.workers.slot(worker) else { return };
        let at_worker =
            |(id, booking): (&BookingId, &Booking)| (booking.slot == slot).then_some(*id);
        let ids: Vec<BookingId> = self.bookings.iter().filter_map(at_worker).collect();
        for id in ids {
            self.release(id);
        }
        self.workers.remove(worker);
    }

    /// What is in flight at a worker.
    pub fn in_flight(&self, worker: WorkerRank) -> InFlight {
        self.at(worker).map_or_else(InFlight::default, AtWorker::in_flight)
    }

    /// Leading blocks of `sequence` that requests in flight at a worker use.
    pub fn overlap(&self, worker: WorkerRank, sequence: &[SequenceHash]) -> u32 {
        let blocks = self.at(worker).map_or(0, |at_worker| at_worker.shared.overlap(sequence));
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Bookings that have not ended.
    pub fn bookings(&self) -> usize {
        self.bookings.len()
    }

    /// Bookings that ended for lack of news since the start.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    fn at(&self, worker: WorkerRank) -> Option<&AtWorker> {
        self.workers.at(self.workers.slot(worker)?)
    }

    /// Changes a booking, renews it, and brings its worker's sums up to date.
    fn update(&mut self, id: BookingId, now: Time, change: impl FnOnce(&mut Booking)) -> bool {
        let Some(booking) = self.bookings.get_mut(&id) else { return false };
        let before = (booking.prefill_tokens, booking.own_weight());
        change(booking);
        booking.until = booking.until.max(now.after(self.lease));
        if let Some(at_worker) = self.workers.at_mut(booking.slot) {
            at_worker.prefill_tokens += booking.prefill_tokens;
            at_worker.prefill_tokens -= before.0;
            at_worker.own_blocks += booking.own_weight();
            at_worker.own_blocks -= before.1;
        }
        true
    }
}

#[cfg(test)]
mod tests;
