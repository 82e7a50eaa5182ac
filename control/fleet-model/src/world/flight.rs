//! A request on its way through the fleet.

use crate::engine::SequenceId;
use crate::policy::{PolicyTicket, WorkerNumber};
use crate::time::Ps;

/// One request's stay at one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLeg {
    pub(super) worker: WorkerNumber,
    /// The life of the worker that it was sent to.
    pub(super) generation: u64,
    /// `None` if the worker was dead by then, or the prompt is computed elsewhere first.
    pub(super) sequence: Option<SequenceId>,
    pub(super) ticket: PolicyTicket,
    /// Tokens after the first that the policy has heard of.
    pub(super) tokens: u32,
    /// The policy has been told that it is over.
    pub(super) released: bool,
}

/// KV that goes from one worker to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandOver {
    pub(super) from: WorkerNumber,
    pub(super) blocks: u32,
    /// Time of the transfer.
    pub(super) took: Ps,
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEnd {
    Complete,
    /// It found no worker in time, or too many died under it.
    Failed,
}

/// State of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    /// Times of its arrival, its first token, and its end.
    pub(super) arrived: Ps,
    pub(super) first: Option<Ps>,
    pub(super) ended: Option<Ps>,
    pub(super) ending: Option<RequestEnd>,
    /// Time when a worker last got it.
    pub(super) placed: Ps,
    /// Prompt tokens that were reused at its first worker.
    pub(super) cached_tokens: Option<u32>,
    /// Tokens of its answer that count for whose turn it is.
    pub(super) charged: u32,
    /// Tokens that it had when its last worker died.
    pub(super) generated: u32,
    /// Workers that died under it.
    pub(super) migrations: u8,
    /// The edge that places it.
    pub(super) edge: u8,
    /// The KV of its prompt on the way to the worker that answers.
    pub(super) hand_over: Option<HandOver>,
    /// The worker that computes its prompt, until its KV has gone on.
    pub(super) prefill: Option<RequestLeg>,
    /// The worker that answers.
    pub(super) main: Option<RequestLeg>,
}

impl Flight {
    /// From arrival to the first token.
    pub(super) fn ttft(&self) -> Option<Ps> {
        self.first.map(|first| first - self.arrived)
    }

    /// Mean gap between tokens; none for a single one.
    pub(super) fn itl(&self, output_tokens: u32) -> Option<Ps> {
        let gaps = u64::from(output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?);
        Some((self.ended? - self.first?) / gaps)
    }
}
