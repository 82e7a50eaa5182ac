//! Requests in flight: what each holds, until it gives it back.

use crate::{Request, ScheduleError, Time};
use rustc_hash::{FxBuildHasher, FxHashMap};
use stator_placement::BookingId;
use stator_protos::WorkerRank;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

/// Hash of a flow's sender and priority. Two flows that share one, which is as good as never, are
/// counted as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey(u64);

impl FlowKey {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        Self(FxBuildHasher.hash_one((request.fairness_id, request.priority)))
    }
}

/// State of a request in flight.
pub(crate) struct RequestTicket {
    /// The request's flow.
    pub flow: FlowKey,
    /// Its reservations, the one at the endpoint that answers first.
    pub reservations: Vec<Reservation>,
    /// Whether its answer comes as it is made.
    pub streams: bool,
    /// Tokens of its prompt that are still to be computed.
    pub prompt_tokens: u64,
    /// Tokens of its answer that it counts for until it ends.
    pub output_tokens: u64,
}

/// A request's booking at one endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Reservation {
    pub rank: WorkerRank,
    /// Epoch of the slot in which it was booked.
    pub epoch: u64,
    pub booking: BookingId,
}

/// Numbers of requests, the first to come due first; some have ended since.
#[derive(Default)]
pub(crate) struct Due(VecDeque<(Time, u64)>);

impl Due {
    /// Numbers of ended requests that may lie between others.
    const SLACK: usize = 64;

    pub(crate) fn push(&mut self, at: Time, number: u64) {
        self.0.push_back((at, number));
    }

    /// The first, if it was due by `now`.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u64> {
        self.0.pop_front_if(|(at, _)| *at <= now).map(|(_, number)| number)
    }

    /// Gives back the memory of requests that have ended; at most `open` have not. To be called
    /// after each that ends: at its front there are none of them then, and altogether no more
    /// than of the others, but for a few.
    pub(crate) fn forget_ended(&mut self, open: usize, is_open: impl Fn(u64) -> bool) {
        while self.0.pop_front_if(|(_, number)| !is_open(*number)).is_some() {}
        // Seldom: as many have ended since the last time as are looked at here.
        if self.0.len() > 2 * open + Self::SLACK {
            self.0.retain(|(_, number)| is_open(*number));
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// All requests in flight.
pub(crate) struct Tickets {
    held: FxHashMap<u64, RequestTicket>,
    /// Ends of the leases of unwatched requests.
    unwatched: Due,
    lease: Duration,
    max: usize,
    next: u64,
}

impl Tickets {
    /// No requests; the numbers of those to come are above `last`.
    pub(crate) fn new(max: usize, lease: Duration, last: u64) -> Self {
        let (held, unwatched) = (FxHashMap::default(), Due::default());
        Self { held, unwatched, lease, max, next: last }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// # Errors
    ///
    /// [`ScheduleError::TooMany`] if no more requests may be in flight.
    pub(crate) fn check_room(&self) -> Result<(), ScheduleError> {
        match self.held.len() < self.max {
            true => Ok(()),
            false => Err(ScheduleError::TooMany { limit: self.max }),
        }
    }

    /// A number for a request that was not given before.
    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Keeps a ticket; `sent` is when, if nobody watches it.
    pub(crate) fn insert(&mut self, number: u64, ticket: RequestTicket, sent: Option<Time>) {
        self.held.insert(number, ticket);
        if let Some(sent) = sent {
            self.unwatched.push(sent.after(self.lease), number);
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut RequestTicket> {
        self.held.get_mut(&number)
    }

    pub(crate) fn is_held(&self, number: u64) -> bool {
        self.held.contains_key(&number)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<RequestTicket> {
        let ticket = self.held.remove(&number)?;
        let held = &self.held;
        self.unwatched.forget_ended(held.len(), |number| held.contains_key(&number));
        Some(ticket)
    }

    /// Removes an unwatched request whose lease is over by `now`.
    pub(crate) fn pop_expired(&mut self, now: Time) -> Option<RequestTicket> {
        let number = self.unwatched.pop(now)?;
        // At the front of the queue is none that has ended.
        self.remove(number)
    }

    /// Numbers that are kept for leases.
    #[cfg(test)]
    pub(crate) fn leases(&self) -> usize {
        self.unwatched.len()
    }
}
