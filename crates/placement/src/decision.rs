//! A request to placement, and the decision on it.

use crate::constraint::{Adapter, Constraint, Needs};
use crate::cost::{Prediction, Score, Weights};
use crate::reuse::Holders;
use crate::sources::PrefixSources;
use crate::split::{Split, SplitReason};
use crate::tracker::{BookingId, InFlight};
use stator_kv_index::{Overlap, Overlaps, Time};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;

/// A request, as far as its placement depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlacementRequest<'a> {
    /// Hashes of the prompt's complete blocks, in order. Empty if unknown: no reuse then.
    pub sequence: &'a [SequenceHash],
    /// Overlaps with the workers, if the caller looked them up with [`crate::Blocks::look_up`]; the
    /// caller then passes the decision to [`crate::Blocks::sent`].
    pub overlaps: Option<&'a Overlaps>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Most tokens of the answer, if limited.
    pub max_output_tokens: Option<u32>,
    /// Tokens that the answer is expected to have, if the client says so.
    pub expected_output_tokens: Option<u32>,
    /// The only worker that may answer the request.
    pub pinned: Option<WorkerRank>,
    /// The only worker that may compute its prompt, if another than the one that answers; it
    /// does so whatever the policy is.
    pub prefill_pinned: Option<WorkerRank>,
    /// Workers that may not take it, because they failed it before.
    pub excluded: &'a [WorkerRank],
    /// Its demands on the workers' labels.
    pub needs: Option<&'a Needs>,
    /// The LoRA adapter that it is for.
    pub adapter: Option<Adapter>,
    /// Identity of the session that it belongs to.
    pub session: Option<u64>,
    /// Whether it has images or other media to be encoded.
    pub encode: bool,
    /// Rule for computing its prompt elsewhere, instead of the settings' rule.
    pub split: Option<Split>,
    /// Whether the worker that answers must compute the prompt too.
    pub indivisible: bool,
    /// Weights for this request alone, see [`Weights::overridden`].
    pub weights: Option<&'a Weights>,
    /// Whether [`Decision::candidates`] is wanted.
    pub explain: bool,
}

/// Workers chosen for a request, and their bookings.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The worker that answers.
    pub worker: WorkerRank,
    /// Another worker that computes the prompt first, if any.
    pub prefill: Option<Leg>,
    /// Another worker that encodes the request's media first, if any.
    pub encode: Option<Leg>,
    /// The request's place at the worker, until it is released.
    pub booking: BookingId,
    /// Leading blocks of the prompt that the worker holds.
    pub overlap_blocks: u32,
    /// Tokens of the prompt that need not be computed, see [`Decision::sources`].
    pub cached_tokens: u32,
    /// Sources of the prompt's leading blocks at the worker that computes the prompt.
    pub sources: PrefixSources,
    /// Other workers that the worker which computes the prompt may fetch leading blocks from. They are
    /// named also where fetching is predicted to be slower: the worker's agent measures, and decides.
    pub holders: Holders,
    /// Until when the worker is taken to hold the prompt; `None` where its events are enough.
    pub holds_until: Option<Time>,
    /// Blocks of the prompt that come to it from the worker that computes it; 0 where it is alone.
    pub moved_blocks: u32,
    /// Why it is this worker.
    pub reason: Reason,
    /// Why the prompt is computed here or elsewhere.
    pub split: SplitReason,
    /// Predicted latency of the request; `None` until enough is learnt.
    pub predicted: Option<Prediction>,
    /// All workers that could have computed and answered the request, in order of their identity,
    /// if asked for.
    pub candidates: Vec<Candidate>,
}

impl PlacementRequest<'_> {
    /// Tokens that the answer has as far as the request says: the expected ones, or else the most.
    pub(crate) fn said_output_tokens(&self) -> Option<u32> {
        let most = self.max_output_tokens.unwrap_or(u32::MAX);
        self.expected_output_tokens.map(|expected| expected.min(most)).or(self.max_output_tokens)
    }
}

impl Decision {
    /// All places that were booked.
    pub fn bookings(&self) -> impl Iterator<Item = BookingId> {
        let legs = self.prefill.iter().chain(&self.encode).map(|leg| leg.booking);
        std::iter::once(self.booking).chain(legs)
    }
}

/// A part of a request's work at another worker than the one that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The other worker.
    pub worker: WorkerRank,
    /// The request's place there, until it is released.
    pub booking: BookingId,
    /// Leading blocks of the prompt that the worker holds.
    pub overlap_blocks: u32,
    /// Tokens of the prompt that it need not compute.
    pub cached_tokens: u32,
    /// Sources of the prompt's leading blocks.
    pub sources: PrefixSources,
    /// As [`Decision::holds_until`].
    pub holds_until: Option<Time>,
}

/// Why a worker was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The caller named it.
    Pinned,
    /// The request's session is bound to it.
    Session,
    /// No other could take the request.
    OnlyOne,
    /// It costs the least, or was drawn by its cost.
    Cost,
    /// Its turn came.
    InTurn,
    /// It was drawn.
    Random,
    /// It has fewer requests in flight.
    LeastLoaded,
}

/// A worker that could take a request, and why it should or should not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerRank,
    /// Blocks of the prompt that it holds.
    pub overlap: Overlap,
    /// Sources that the prompt's leading blocks would have.
    pub sources: PrefixSources,
    /// Leading blocks of the prompt that requests in flight there use now.
    pub active_blocks: u32,
    /// Load in flight there, booked here or by others.
    pub in_flight: InFlight,
    /// The cost of choosing it.
    pub score: Score,
    /// Predicted latency of the request there; `None` until enough is learnt.
    pub predicted: Option<Prediction>,
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
        /// Workers that could take the request.
        workers: usize,
    },
    /// The workers that could answer it compute no prompts, and no other does so for them.
    #[error("no worker does all of the request, and no two can share it")]
    Unshared,
    /// As [`PickError::Unshared`], and two workers may not share this request.
    #[error("no worker does all of the request, and it cannot be shared")]
    Indivisible,
    /// The worker that the request is pinned to does not take it.
    #[error("worker {worker} is not available")]
    PinnedUnavailable {
        /// The pinned worker.
        worker: WorkerRank,
    },
    /// No worker that takes requests has what this one needs.
    #[error("no worker has what the request needs: {constraint}")]
    Unsatisfied {
        /// The demand that no worker meets.
        constraint: Constraint,
    },
    /// There are workers for each thing that the request needs, but not for both.
    #[error("no worker has both {one} and {other}, which the request needs")]
    Contradictory {
        /// One of them.
        one: Constraint,
        /// The other.
        other: Constraint,
    },
}
