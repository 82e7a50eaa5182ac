//! What is asked of placement, and what it answers.

use crate::cost::{Score, Weights};
use crate::overlap::Overlap;
use crate::tracker::{BookingId, InFlight};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;

/// A request, as far as its placement depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Hashes of the prompt's complete blocks, in order. Empty if unknown: no reuse then.
    pub sequence: &'a [SequenceHash],
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Most tokens of the answer, if limited.
    pub max_output_tokens: Option<u32>,
    /// The only worker that may take the request.
    pub pinned: Option<WorkerRank>,
    /// Workers that may not, because they failed it before.
    pub excluded: &'a [WorkerRank],
    /// Weights for this request alone, see [`Weights::overridden`].
    pub weights: Option<&'a Weights>,
    /// Whether [`Decision::candidates`] is wanted.
    pub explain: bool,
}

/// Where a request runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The worker that answers.
    pub worker: WorkerRank,
    /// Another worker that computes the prompt first, if any.
    pub prefill: Option<WorkerRank>,
    /// The request's place at the worker, until it is released.
    pub booking: BookingId,
    /// Leading blocks of the prompt that the worker holds.
    pub overlap_blocks: u32,
    /// Tokens of the prompt in these blocks.
    pub cached_tokens: u32,
    /// All workers that could have taken the request, in order of their identity, if asked for.
    pub candidates: Vec<Candidate>,
}

/// A worker that could take a request, and why it should or should not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerRank,
    /// What it holds of the prompt.
    pub overlap: Overlap,
    /// Leading blocks of the prompt that requests in flight there use now.
    pub active_blocks: u32,
    /// What is in flight there, booked here or by others.
    pub in_flight: InFlight,
    /// The cost of choosing it.
    pub score: Score,
}

/// Why no worker was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No worker takes requests, or each that does has failed this one.
    #[error("no worker can take the request")]
    NoWorkers,
    /// Each worker that could take the request is busy; a later attempt may succeed.
    #[error("all {workers} workers are busy")]
    AllBusy {
        /// How many could.
        workers: usize,
    },
    /// The worker that the request is pinned to does not take it.
    #[error("worker {worker} is not available")]
    PinnedUnavailable {
        /// That worker.
        worker: WorkerRank,
    },
}
