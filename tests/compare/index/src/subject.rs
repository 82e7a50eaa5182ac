//! What is measured: an index, behind the few calls that every measurement needs.

use crate::corpus::{Chain, Change, Corpus};
use std::ops::Range;
use std::time::Instant;

/// Depth of a match: a worker and how many leading blocks of a prompt it holds.
pub type Depth = (u32, u32);

/// An index under test. Prompts and changes come in the form in which it takes them, made before
/// the clock starts.
pub trait Subject: Sync + Sized {
    /// Name in records and tables.
    const NAME: &'static str;
    /// A change, owned, as it would have come from a socket.
    type Event: Send;
    /// A prompt.
    type Query: Clone;
    /// Memory that a reader keeps between lookups.
    type Buffers: Default;
    /// What a lookup returns beside what it leaves in the buffers.
    type Found;
    /// A lane; see [`Subject::lane`].
    type Lane<'a>: Lane<Event = Self::Event>
    where
        Self: 'a;

    /// An empty index of a corpus's workers.
    fn new(corpus: &Corpus) -> Self;

    /// A change in its form.
    fn event(change: &Change<'_>) -> Self::Event;

    /// A prompt in its form.
    fn query(chain: Chain<'_>) -> Self::Query;

    /// How much of a prompt each worker holds: the call that is timed.
    fn lookup(&self, query: &Self::Query, buffers: &mut Self::Buffers) -> Self::Found;

    /// What a lookup found, by worker, without those that hold nothing.
    fn depths(found: &Self::Found, buffers: &Self::Buffers) -> Vec<Depth>;

    /// Bytes that it has from the system itself, which an allocator that counts does not see, as
    /// it tells; its heap may be among them.
    fn own_bytes(&self) -> usize {
        0
    }

    /// Does what its owners have it do in the background, all of it.
    fn maintain(&self) {}

    /// Opens the one thread that applies events, in the order in which they are sent.
    /// `events` says how many will be sent for each worker; times count from `epoch`.
    fn lane(&self, epoch: Instant, events: &[usize]) -> Self::Lane<'_>;
}

/// An index that takes the whole state of a worker at once.
pub trait Restore: Subject {
    /// The state, in the form in which it takes it.
    type State;

    /// The state of a worker that holds `chains`.
    fn state(worker: u32, chains: &[Chain<'_>]) -> Self::State;

    /// Tells that the states of these workers are to come, where it is told so.
    fn expect(&self, _: Range<u32>) {}

    /// Takes a worker's state, and returns when it is visible.
    fn restore(&self, worker: u32, state: Self::State);
}

/// Where events go. Opening and closing one is not part of a measurement.
pub trait Lane {
    /// A change.
    type Event;

    /// Sends an event and does not wait for it.
    fn send(&mut self, event: Self::Event);

    /// Waits for all events and returns when each was applied, in nanoseconds from the epoch and
    /// in the order in which they were sent.
    fn finish(self) -> Vec<u64>;
}
