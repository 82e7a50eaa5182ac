//! Requests sent to each worker and not finished yet.
//!
//! A request counts at once, before any report of a worker could, so that two requests in a row
//! never see the same empty slot.

mod in_flight;
mod load;

pub use in_flight::{InFlight, PeerLoad};
pub(crate) use load::{Loads, Sums};

use crate::Time;
use crate::deadlines::Deadlines;
use crate::learn::{FirstToken, Gap, Learner, Speed};
use crate::running::RunningPrefixes;
use crate::work::Work;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use std::sync::Arc;
use std::time::Duration;

/// Tokens after which the time that they took is looked at.
const GAP_TOKENS: u32 = 8;

/// Identity of a booking. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BookingId(pub u64);

/// Resources that a request takes from its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint<'a> {
    /// Blocks that it shares with any other request that has them; each is counted once.
    pub(crate) shared: &'a [SequenceHash],
    /// Further blocks of its prompt, which are its own.
    pub(crate) own_blocks: u32,
    /// Prompt tokens that are still to be computed, and tokens of the whole prompt.
    pub(crate) prefill_tokens: u64,
    pub(crate) prompt_tokens: u64,
    /// Whether blocks of the prompt come from outside the engine: the time to its first token then
    /// says nothing of how fast the worker computes.
    pub(crate) loads: bool,
    /// Blocks of output that are expected. If known, the request's own blocks count for less
    /// the nearer its end is.
    pub(crate) expected_output_blocks: Option<u32>,
}

struct Booking {
    slot: u32,
    shared: Arc<[SequenceHash]>,
    /// The node at which its prompt ends, in the tree of running prompts.
    last_node: Option<u32>,
    own_blocks: u32,
    output_tokens: u32,
    output_blocks: u32,
    expected_output_blocks: Option<u32>,
    prefill_tokens: u64,
    prompt_tokens: u64,
    loads: bool,
    until: Time,
    /// Prompt work ahead of its first token when it was booked, its own prompt included.
    ahead: Work,
    booked_at: Time,
    mark: Option<Mark>,
}

/// The latest reading of a request's tokens.
#[derive(Clone, Copy)]
struct Mark {
    at: Time,
    output_tokens: u32,
    /// Prompt work that its worker had done by then.
    prefilled: Work,
}

impl Booking {
    /// Work of its prompt.
    fn work(&self) -> Work {
        Work::of(self.prefill_tokens as f64, self.prompt_tokens as f64)
    }

    /// Weight of the request's own blocks: all of them, or the share of its expected output that is
    /// still to come, rounded up.
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

/// Bookings and their sums.
///
/// A booking ends by [`Tracker::release`], with its worker, or when nothing was heard of it for
/// `lease`: progress renews it, so that a long answer keeps its place and a lost one does not.
/// There are as many as there are requests in flight, which is for the caller to bound.
///
/// Workers are known by their slots in the fleet; a slot is empty before another worker takes it.
pub(crate) struct Tracker {
    lease: Duration,
    block_size: u32,
    next_id: u64,
    bookings: FxHashMap<BookingId, Booking>,
    deadlines: Deadlines<BookingId>,
    loads: Loads,
    running: RunningPrefixes,
    expired: u64,
}

impl Tracker {
    /// A tracker without bookings; answers fill a block with `block_size` tokens.
    pub(crate) fn new(lease: Duration, block_size: u32) -> Self {
        Self {
            lease,
            block_size,
            next_id: 0,
            bookings: FxHashMap::default(),
            deadlines: Deadlines::default(),
            loads: Loads::default(),
            running: RunningPrefixes::default(),
            expired: 0,
        }
    }

    /// Books a request at the worker in `slot`, which is as fast as `speed` says.
    pub(crate) fn book(
        &mut self,
        slot: u32,
        footprint: Footprint<'_>,
        now: Time,
        speed: &Speed,
    ) -> BookingId {
        self.next_id += 1;
        let id = BookingId(self.next_id);
        let backlog = self.loads.sums_of(slot).backlog(now.0.as_secs_f64(), speed);
        let mut booking = Booking {
            slot,
            shared: footprint.shared.into(),
            last_node: None,
            own_blocks: footprint.own_blocks,
            output_tokens: 0,
            output_blocks: 0,
            expected_output_blocks: footprint.expected_output_blocks,
            prefill_tokens: footprint.prefill_tokens,
            prompt_tokens: footprint.prompt_tokens,
            loads: footprint.loads,
            until: now.after(self.lease),
            ahead: Work::default(),
            booked_at: now,
            mark: None,
        };
        booking.ahead = backlog.plus(booking.work());
        // Bookings here follow one another; prompts of others are known only as a time.
        let turn = match self.loads.is_alone(slot) {
            true => Duration::ZERO,
            false => Duration::try_from_secs_f64(speed.work(backlog)).unwrap_or_default(),
        };
        self.enter(id, &mut booking, now.after(turn));
        self.deadlines.push(booking.until, id);
        self.bookings.insert(id, booking);
        // Released bookings leave their deadlines behind.
        let bookings = &self.bookings;
        self.deadlines.compact(bookings.len(), |id| bookings.contains_key(id));
        id
    }

    /// The prompt is computed. False if there is no such booking (any more).
    pub(crate) fn prefill_done(&mut self, id: BookingId, now: Time, learner: &mut Learner) -> bool {
        let Some(booking) = self.bookings.get(&id) else { return false };
        let (slot, computed) = (booking.slot, booking.work());
        if computed.tokens > 0.0 && !booking.loads {
            let seconds = seconds_between(booking.booked_at, now);
            learner.first_token(slot, FirstToken { work: booking.ahead, seconds });
        }
        self.prefill_over(id, now)
    }

    /// Notes that a prompt was computed, in a time that says nothing of the worker.
    pub(crate) fn prefill_over(&mut self, id: BookingId, now: Time) -> bool {
        let Some(booking) = self.bookings.get(&id) else { return false };
        let (slot, computed) = (booking.slot, booking.work());
        self.update(id, now, |booking| booking.prefill_tokens = 0);
        self.loads.prefilled(slot, id, computed, now);
        self.mark(id, now);
        true
    }

    /// The answer goes on after a wait that was not for its worker's steps: what comes is counted
    /// from now on.
    pub(crate) fn goes_on(&mut self, id: BookingId, now: Time) {
        if self.bookings.get(&id).is_some_and(|booking| booking.mark.is_some()) {
            self.mark(id, now);
        }
    }

    /// The answer has `tokens` more tokens. False if there is no such booking (any more).
    pub(crate) fn output(
        &mut self,
        id: BookingId,
        tokens: u32,
        now: Time,
        learner: &mut Learner,
    ) -> bool {
        let block_size = self.block_size;
        let grown = self.update(id, now, |booking| {
            booking.output_tokens = booking.output_tokens.saturating_add(tokens);
            booking.output_blocks = booking.output_tokens / block_size;
        });
        if let Some((slot, gap)) = self.gap(id, now) {
            learner.gap(slot, gap);
            self.mark(id, now);
        }
        grown
    }

    /// The request ended, however it did. False if there is no such booking (any more).
    pub(crate) fn release(&mut self, id: BookingId, now: Time) -> Option<u32> {
        let booking = self.bookings.remove(&id)?;
        self.leave(id, &booking, now);
        Some(booking.output_tokens)
    }

    /// The request goes on at the worker in another slot, with what it has. False if there is no
    /// such booking (any more).
    pub(crate) fn moved(&mut self, id: BookingId, slot: u32, now: Time) -> bool {
        let Some(mut booking) = self.bookings.remove(&id) else { return false };
        self.leave(id, &booking, now);
        // What it waited for elsewhere says nothing of this worker.
        (booking.slot, booking.mark) = (slot, None);
        (booking.booked_at, booking.ahead) = (now, Work::default());
        booking.until = booking.until.max(now.after(self.lease));
        self.enter(id, &mut booking, now);
        self.bookings.insert(id, booking);
        true
    }

    /// Ends the bookings that nothing was heard of for too long; how many they were.
    pub(crate) fn expire(&mut self, now: Time) -> u64 {
        self.loads.expire(now);
        let before = self.expired;
        while let Some(id) = self.deadlines.pop_due(now) {
            match self.bookings.get(&id).map(|booking| booking.until) {
                Some(until) if until > now => self.deadlines.push(until, id),
                Some(_) => {
                    self.release(id, now);
                    self.expired += 1;
                }
                None => {}
            }
        }
        self.expired - before
    }

    /// Empties a slot: its worker is gone with all its bookings. Takes a look at every booking if
    /// it has any.
    pub(crate) fn clear(&mut self, slot: u32, now: Time) {
        if self.loads.booked(slot).requests > 0 {
            let here =
                |(id, booking): (&BookingId, &Booking)| (booking.slot == slot).then_some(*id);
            let ids: Vec<BookingId> = self.bookings.iter().filter_map(here).collect();
            for id in ids {
                self.release(id, now);
            }
        }
        self.loads.clear(slot);
    }

    /// Load in flight at each worker.
    pub(crate) fn loads(&self) -> &Loads {
        &self.loads
    }

    pub(crate) fn loads_mut(&mut self) -> &mut Loads {
        &mut self.loads
    }

    /// The prompts that run.
    pub(crate) fn running(&self) -> &RunningPrefixes {
        &self.running
    }

    /// Slot of a booking's worker.
    #[cfg(test)]
    pub(crate) fn slot(&self, id: BookingId) -> Option<u32> {
        self.bookings.get(&id).map(|booking| booking.slot)
    }

    /// Bookings that have not ended.
    pub(crate) fn bookings(&self) -> usize {
        self.bookings.len()
    }

    /// Bookings that ended for lack of news since the start.
    pub(crate) fn expired(&self) -> u64 {
        self.expired
    }

    /// Adds a booking whose turn it is at `turn`, where others have prompts before it.
    fn enter(&mut self, id: BookingId, booking: &mut Booking, turn: Time) {
        let inserted = self.running.insert(booking.slot, &booking.shared);
        booking.last_node = inserted.map(|(last, _)| last);
        let new = inserted.map_or(0, |(_, new)| new);
        self.loads.change(booking.slot, |load| {
            load.requests += 1;
            load.prefill_tokens += booking.prefill_tokens;
            load.blocks += booking.own_weight() + new;
        });
        if booking.prefill_tokens > 0 {
            self.loads.queued(booking.slot, id, booking.work(), turn);
        }
    }

    fn leave(&mut self, id: BookingId, booking: &Booking, now: Time) {
        let slot = booking.slot;
        let gone = booking.last_node.map_or(0, |last| self.running.remove(slot, last));
        self.loads.change(slot, |load| {
            load.requests -= 1;
            load.prefill_tokens -= booking.prefill_tokens;
            load.blocks -= booking.own_weight() + gone;
        });
        if booking.prefill_tokens > 0 {
            self.loads.left(slot, id, now);
        }
    }

    /// Changes a booking, renews it, and brings its worker's sums up to date.
    fn update(&mut self, id: BookingId, now: Time, change: impl FnOnce(&mut Booking)) -> bool {
        let Some(booking) = self.bookings.get_mut(&id) else { return false };
        let before = (booking.prefill_tokens, booking.own_weight());
        change(booking);
        booking.until = booking.until.max(now.after(self.lease));
        self.loads.change(booking.slot, |load| {
            load.prefill_tokens += booking.prefill_tokens;
            load.prefill_tokens -= before.0;
            load.blocks += booking.own_weight();
            load.blocks -= before.1;
        });
        true
    }

    fn mark(&mut self, id: BookingId, now: Time) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let prefilled = self.loads.computed(booking.slot);
        booking.mark = Some(Mark { at: now, output_tokens: booking.output_tokens, prefilled });
    }

    /// A sample from a request's latest tokens, if there are enough of them.
    fn gap(&self, id: BookingId, now: Time) -> Option<(u32, Gap)> {
        let booking = self.bookings.get(&id)?;
        let mark = booking.mark?;
        let tokens = booking.output_tokens - mark.output_tokens;
        let load = self.loads.sums_of(booking.slot);
        // Of what others had computed there meanwhile nothing is heard: as much as they have.
        let everybody = self.loads.everybody();
        let gap = Gap {
            tokens: f64::from(tokens),
            seconds: seconds_between(mark.at, now),
            requests: load.requests,
            blocks: load.blocks,
            prefilled: self.loads.computed(booking.slot).without(mark.prefilled).times(everybody),
        };
        (tokens >= GAP_TOKENS).then_some((booking.slot, gap))
    }
}

fn seconds_between(from: Time, to: Time) -> f64 {
    to.0.saturating_sub(from.0).as_secs_f64()
}

#[cfg(test)]
mod tests;
