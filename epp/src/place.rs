//! A request that is ready to be placed, and what becomes of the attempt.

use crate::exchange::RequestHead;
use crate::parsed_request::ParsedRequest;
use crate::pool::Pool;
use crate::prompt::MeasuredPrompt;
use crate::text;
use stator_epp_metrics::FlowOutcome;
use stator_epp_plugins::settings::InFlightLoad;
use stator_epp_scheduler::{Decision, ScheduleError};
use stator_placement::Adapter;
use stator_runtime::trace;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Span;

/// All that a decision rests on.
pub(crate) struct Ready {
    pub head: RequestHead,
    pub request: ParsedRequest,
    pub measured: MeasuredPrompt,
    /// Whether the request is watched to its end.
    pub watched: bool,
    /// The request's span.
    pub span: Span,
}

/// Places requests: chooses and books.
#[derive(Clone)]
pub(crate) struct Placer {
    pub pool: Arc<Pool>,
    /// Whether a plug-in reads prompts as text.
    pub reads_text: bool,
    /// Whether all candidates' scores are wanted.
    pub scores: bool,
    /// Load that a request adds while it is in flight.
    pub in_flight: InFlightLoad,
}

/// A request's place. Dropping the guard gives the place back.
pub(crate) struct PlaceGuard {
    pool: Arc<Pool>,
    decision: Option<Decision>,
    /// Time that the decision took.
    pub took: Duration,
}

/// Reason for which a request has no place.
#[derive(Debug)]
pub(crate) enum PlacementError {
    /// The scheduler found none, after `took`.
    Unplaced { refused: ScheduleError, took: Duration },
    /// The request was not let through to the scheduler.
    Dropped { outcome: FlowOutcome, retry_after: Duration },
}

impl Placer {
    /// Chooses an endpoint and books the request there, in one step; `None` if the pool's
    /// saturation is more than `most` by then.
    ///
    /// # Errors
    ///
    /// [`PlacementError::Unplaced`].
    pub(crate) fn place_below(
        &self,
        ready: &Ready,
        most: f64,
    ) -> Option<Result<PlaceGuard, PlacementError>> {
        let Ready { head, request, measured, watched, span } = ready;
        let headers = text::readable(head);
        let parsed = request.parsed.as_ref().filter(|_| self.reads_text);
        let text: Vec<&[u8]> =
            parsed.map(|parsed| parsed.prompt_bytes(&request.body).collect()).unwrap_or_default();
        let mut request = request.for_scheduler(head, measured, &headers, &text);
        let adapter = Some(request.model).filter(|model| self.pool.is_adapter(model));
        request.adapter = adapter.map(Adapter::new);
        request.expected_output_tokens = self.in_flight.output_tokens(&request);
        let orchestration = tracing::info_span!(
            target: trace::TARGET, parent: span, "gateway.request_orchestration",
        );
        let started = Instant::now();
        let schedule = || self.pool.schedule(&request, *watched, self.scores, most);
        let scheduled = orchestration.in_scope(schedule)?;
        let took = started.elapsed();
        let pool = self.pool.clone();
        let placed = scheduled.map(|decision| PlaceGuard { pool, decision: Some(decision), took });
        Some(placed.map_err(|refused| PlacementError::Unplaced { refused, took }))
    }

    /// Places a request however full the pool is.
    pub(crate) fn place(&self, ready: &Ready) -> Result<PlaceGuard, PlacementError> {
        self.place_below(ready, f64::INFINITY).expect("nothing is fuller than that")
    }
}

impl PlaceGuard {
    /// The decision, which the caller gives back from now on.
    pub(crate) fn keep(mut self) -> Decision {
        self.decision.take().expect("it is taken but once")
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.pool.give_back(&decision);
        }
    }
}
