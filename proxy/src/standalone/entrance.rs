//! Entrance of a request to a pool: it gets a place at once, or after it has waited its turn.

use super::place::{Place, PoolGate};
use super::workers::PoolWorkers;
use stator_gate::{Attempt, Grant};
use stator_placement::{Adapter, Constraint, Needs, PickError, PlacementRequest, Split};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use stator_queue::BandPlace;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Inputs to the placement of a request; they wait with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    /// Hashes of the prompt's complete blocks, in order.
    pub(crate) sequence: Vec<SequenceHash>,
    /// Tokens of the prompt.
    pub(crate) tokens: u32,
    /// Most tokens of the answer, if limited.
    pub(crate) max_output_tokens: Option<u32>,
    /// Tokens that the answer is expected to have, if its client says so.
    pub(crate) expected_output_tokens: Option<u32>,
    /// Workers that failed it before: it goes there only where there is no other.
    pub(crate) excluded: Vec<WorkerRank>,
    /// The session that it belongs to.
    pub(crate) session: Option<u64>,
    /// Labels that it wants of its worker.
    pub(crate) needs: Option<Arc<Needs>>,
    /// The worker that is to answer, if that must be this one.
    pub(crate) pinned: Option<WorkerRank>,
    /// The same of the one that computes the prompt, where that is another.
    pub(crate) prefill_pinned: Option<WorkerRank>,
    /// The LoRA adapter that it is for.
    pub(crate) adapter: Option<Adapter>,
    /// Split policy for this request, if it differs from the pool's.
    pub(crate) split: Option<Split>,
    /// Whether the worker that answers must compute the prompt too.
    pub(crate) indivisible: bool,
    /// Whether the decision lists its candidates.
    pub(crate) explain: bool,
    /// Whether the last attempt to place it found no worker that could ever take it; set by the
    /// pool.
    pub(crate) lacks_workers: bool,
}

impl Prompt {
    fn request(&self) -> PlacementRequest<'_> {
        PlacementRequest {
            sequence: &self.sequence,
            prompt_tokens: self.tokens,
            max_output_tokens: self.max_output_tokens,
            expected_output_tokens: self.expected_output_tokens,
            excluded: &self.excluded,
            session: self.session,
            needs: self.needs.as_deref(),
            pinned: self.pinned,
            prefill_pinned: self.prefill_pinned,
            adapter: self.adapter,
            split: self.split,
            indivisible: self.indivisible,
            explain: self.explain,
            ..PlacementRequest::default()
        }
    }

    /// Whether there may be workers that take others and not this one, beside those that failed it.
    fn is_particular(&self) -> bool {
        self.session.is_some()
            || self.needs.is_some()
            || self.pinned.is_some()
            || self.prefill_pinned.is_some()
            || self.adapter.is_some()
            || self.split.is_some()
            || self.indivisible
    }
}

/// Places those whose turn it is.
pub(crate) struct Entrance {
    pub(crate) workers: Arc<PoolWorkers>,
    /// The gate that this entrance is behind.
    pub(crate) gate: Weak<dyn PoolGate>,
    /// Longest wait of requests that come while no worker is there.
    pub(crate) worker_wait: Duration,
}

impl Entrance {
    /// Books a request at workers, and gives it its place there.
    pub(crate) fn place(
        &self,
        gate: &Arc<dyn PoolGate>,
        request: &PlacementRequest<'_>,
    ) -> Result<Place, PickError> {
        let booked = self.workers.book(request)?;
        Ok(Place::new(self.workers.clone(), gate.clone(), booked))
    }
}

impl Grant for Entrance {
    type Request = Prompt;
    type Place = Place;
    type Error = PickError;

    fn try_grant(&self, prompt: &mut Prompt, _: &BandPlace) -> Attempt<Place, PickError> {
        let Some(gate) = self.gate.upgrade() else { return Attempt::Failed(PickError::NoWorkers) };
        let excludes = !prompt.excluded.is_empty();
        let placed = self.place(&gate, &prompt.request());
        prompt.lacks_workers = placed.as_ref().is_err_and(|error| is_absence(*error));
        match placed {
            Ok(place) => Attempt::Granted(place),
            // Others may go where this one may not, or where its session is not.
            Err(PickError::AllBusy { .. }) if excludes || prompt.is_particular() => Attempt::Wait,
            Err(PickError::AllBusy { .. }) => Attempt::Stop,
            Err(error) if !prompt.lacks_workers => Attempt::Failed(error),
            // A worker that failed it is better than none: it may have begun another life, and gets
            // nothing for a moment if it has not.
            Err(_) => {
                let request = PlacementRequest { excluded: &[], ..prompt.request() };
                match self.place(&gate, &request) {
                    Ok(place) => Attempt::Granted(place),
                    Err(_) if prompt.is_particular() => Attempt::Wait,
                    Err(_) => Attempt::Stop,
                }
            }
        }
    }

    fn patience(&self, prompt: &Prompt) -> Option<Duration> {
        (prompt.lacks_workers || self.workers.accepting() == 0).then_some(self.worker_wait)
    }
}

/// Whether workers that could take a request are away, and may come back while it waits.
fn is_absence(error: PickError) -> bool {
    match error {
        PickError::NoWorkers | PickError::Unshared => true,
        // Requests name adapters only of workers that are there, or were until a moment ago.
        PickError::Unsatisfied { constraint } => matches!(constraint, Constraint::Adapter(_)),
        _ => false,
    }
}
