//! A request that waits, as the caller sees it.

use std::time::Duration;

/// A flow, which shares a band fairly with other flows: a tenant, a program or a session. The
/// caller chooses the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// Names a waiting request; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueTicket {
    pub(crate) slot: u32,
    pub(crate) number: u64,
}

/// A request that is to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueEntry<T> {
    /// Its priority: higher ones are served first, whatever else there is.
    pub priority: i32,
    /// Its flow.
    pub flow: FlowId,
    /// Tokens of its prompt that are to be computed, as far as is known.
    pub tokens: u32,
    /// Bytes of its body.
    pub bytes: u64,
    /// Time to give up, on the clock of `now`; `None` is after the band's time to live.
    pub deadline: Option<Duration>,
    /// Time that it may take from its arrival to its first token.
    pub objective: Option<Duration>,
    /// Head start inside its flow: seconds for [`crate::Ordering::Fcfs`] and
    /// [`crate::Ordering::Lcfs`], weight for [`crate::Ordering::WeightedShortest`]; others do not
    /// look at it. 0 is none.
    pub jump: u32,
    /// The caller's data, to place and answer it.
    pub payload: T,
}

impl<T> QueueEntry<T> {
    /// Maps the payload of the request.
    pub fn map<U>(self, payload: impl FnOnce(T) -> U) -> QueueEntry<U> {
        let Self { priority, flow, tokens, bytes, deadline, objective, jump, payload: own } = self;
        let payload = payload(own);
        QueueEntry { priority, flow, tokens, bytes, deadline, objective, jump, payload }
    }
}

/// Position of a band among the existing bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandPlace {
    /// Its priority.
    pub priority: i32,
    /// Bands above it.
    pub rank: u32,
    /// Bands there are, at least 1.
    pub bands: u32,
    /// The highest band's priority.
    pub highest: i32,
    /// The lowest band's priority.
    pub lowest: i32,
}

/// A request whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueHead {
    /// Its name here.
    pub ticket: QueueTicket,
    /// Its band.
    pub band: BandPlace,
    /// Its flow.
    pub flow: FlowId,
    /// Tokens of its prompt that are to be computed.
    pub tokens: u32,
    /// Time that it has waited.
    pub waited: Duration,
}

/// Verdict on a request whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has its place: it waits no longer.
    Go,
    /// It can never be placed: it waits no longer, and nobody has been served.
    Leave,
    /// It cannot be placed now; others perhaps can.
    Wait,
    /// None can be placed now.
    Stop,
}
