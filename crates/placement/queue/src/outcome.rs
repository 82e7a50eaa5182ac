//! Outcomes of waiting requests.

use crate::entry::{FlowId, QueueTicket};
use std::time::Duration;

/// A request that waits no longer because it has its place, or can never have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchedRequest<T> {
    /// Its name here, of no further use.
    pub ticket: QueueTicket,
    /// Priority of the band that it waited in.
    pub band: i32,
    /// Its flow.
    pub flow: FlowId,
    /// Time that it has waited.
    pub waited: Duration,
    /// The caller's.
    pub payload: T,
}

/// Why a request that waited was sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Eviction {
    /// Its deadline came.
    Deadline,
    /// Its deadline comes before those above it can have been served.
    Hopeless,
    /// One of higher priority needed the room.
    Displaced,
    /// The pool closes.
    Closed,
}

impl Eviction {
    /// Every reason, in the order in which they are counted.
    pub const ALL: [Self; 4] = [Self::Deadline, Self::Hopeless, Self::Displaced, Self::Closed];

    /// Name in metrics and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Hopeless => "hopeless",
            Self::Displaced => "displaced",
            Self::Closed => "closed",
        }
    }
}

/// A request that was sent away after it had waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictedRequest<T> {
    /// Its name here, of no further use.
    pub ticket: QueueTicket,
    /// Why.
    pub reason: Eviction,
    /// Priority of the band that it waited in.
    pub band: i32,
    /// Time that it has waited.
    pub waited: Duration,
    /// Time after which to try again.
    pub retry_after: Duration,
    /// The caller's.
    pub payload: T,
}

/// Why a request may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueRefusal {
    /// Its band holds as many requests as it may.
    BandRequests,
    /// Its band holds as many bytes as it may.
    BandBytes,
    /// Its band holds as many tokens as it may.
    BandTokens,
    /// All bands together hold as many requests as they may.
    TotalRequests,
    /// All bands together hold as many bytes as they may.
    TotalBytes,
    /// All bands together hold as many tokens as they may.
    TotalTokens,
    /// Its deadline has passed already.
    Deadline,
    /// Its deadline comes before those ahead of it can have been served.
    Hopeless,
    /// The pool closes.
    Closed,
}

impl QueueRefusal {
    /// Every reason, in the order in which they are counted.
    pub const ALL: [Self; 9] = [
        Self::BandRequests,
        Self::BandBytes,
        Self::BandTokens,
        Self::TotalRequests,
        Self::TotalBytes,
        Self::TotalTokens,
        Self::Deadline,
        Self::Hopeless,
        Self::Closed,
    ];
    pub(crate) const BAND: [Self; 3] = [Self::BandRequests, Self::BandBytes, Self::BandTokens];
    pub(crate) const TOTAL: [Self; 3] = [Self::TotalRequests, Self::TotalBytes, Self::TotalTokens];

    /// Name in metrics and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::BandRequests => "band-requests",
            Self::BandBytes => "band-bytes",
            Self::BandTokens => "band-tokens",
            Self::TotalRequests => "total-requests",
            Self::TotalBytes => "total-bytes",
            Self::TotalTokens => "total-tokens",
            Self::Deadline => "deadline",
            Self::Hopeless => "hopeless",
            Self::Closed => "closed",
        }
    }

    /// Whether it is for want of room that others take, so that it may be otherwise later.
    pub fn is_capacity(self) -> bool {
        !matches!(self, Self::Deadline | Self::Hopeless | Self::Closed)
    }
}

/// A request that may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused by the queue of priority {band}, {}: {current}, limit {limit}", reason.name())]
pub struct RejectedRequest<T> {
    /// Why.
    pub reason: QueueRefusal,
    /// The limit in the reason's unit: requests, bytes, tokens; milliseconds until its deadline;
    /// 0 if the pool closes.
    pub limit: u64,
    /// Present usage without this request, in the same unit; for a deadline, milliseconds that it
    /// would wait.
    pub current: u64,
    /// Priority of the band that it would have waited in.
    pub band: i32,
    /// Time after which to try again.
    pub retry_after: Duration,
    /// The caller's.
    pub payload: T,
}
