//! Requests in flight: what each holds, until it gives it back.

use crate::{Refused, Time};
use rustc_hash::FxHashMap;
use stator_placement::BookingId;
use stator_protos::WorkerRank;
use std::collections::VecDeque;
use std::time::Duration;

/// What a request in flight holds.
pub(crate) struct Ticket {
    /// Its places.
    pub places: Vec<Place>,
    /// Tokens of its prompt that are still to be computed.
    pub prompt_tokens: u64,
    /// Tokens of its answer that it counts for until it ends.
    pub output_tokens: u64,
}

/// A request's place at one endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub rank: WorkerRank,
    /// Of the slot that it was taken in.
    pub epoch: u64,
    pub booking: BookingId,
}

/// All requests in flight.
pub(crate) struct Tickets {
    held: FxHashMap<u64, Ticket>,
    /// Those that nobody watches, oldest first; some have ended since.
    unwatched: VecDeque<(Time, u64)>,
    lease: Duration,
    max: usize,
    next: u64,
}

impl Tickets {
    pub(crate) fn new(max: usize, lease: Duration) -> Self {
        let (held, unwatched) = (FxHashMap::default(), VecDeque::new());
        Self { held, unwatched, lease, max, next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// # Errors
    ///
    /// [`Refused::TooMany`] if no more requests may be in flight.
    pub(crate) fn check_room(&self) -> Result<(), Refused> {
        // Those that have ended leave the queue when their lease is over, so it has a bound too.
        match self.held.len() < self.max && self.unwatched.len() < self.max {
            true => Ok(()),
            false => Err(Refused::TooMany { limit: self.max }),
        }
    }

    /// A number for a request that was not given before.
    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Keeps a ticket; `sent` is when, if nobody watches it.
    pub(crate) fn insert(&mut self, number: u64, ticket: Ticket, sent: Option<Time>) {
        self.held.insert(number, ticket);
        if let Some(sent) = sent {
            self.unwatched.push_back((sent.after(self.lease), number));
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Ticket> {
        self.held.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Ticket> {
        self.held.remove(&number)
    }

    /// One that nobody watches and whose lease is over.
    pub(crate) fn pop_expired(&mut self, now: Time) -> Option<Ticket> {
        while let Some(&(until, number)) = self.unwatched.front() {
            // Those that have ended need not wait for their lease.
            if until > now && self.held.contains_key(&number) {
                return None;
            }
            self.unwatched.pop_front();
            if let Some(ticket) = self.held.remove(&number) {
                return Some(ticket);
            }
        }
        None
    }
}
