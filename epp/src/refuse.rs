//! The one place where a failed decision becomes an answer.
//!
//! Source: status codes, texts and reasons of the llm-d router; two differ. A request without a
//! body gets 503 when the pool is empty, as one with a body does and as the protocol says, not
//! 500; an admission plug-in's refusal is 429, not 500.

use crate::exchange::Refusal;
use crate::parsed_request::{ParsedRequest, UnreadableRequest};
use crate::place::PlacementError;
use stator_epp_metrics::FlowOutcome;
use stator_epp_scheduler::ScheduleError;
use std::time::Duration;

/// Time to retry after, if the pool may have room or endpoints soon.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const SATURATED: &str = "rejected-saturated";
const NO_ENDPOINTS: &str = "rejected-no-endpoints";
const TTL_EXPIRED: &str = "rejected-ttl-expired";
const SHUTTING_DOWN: &str = "rejected-shutting-down";
const CANCELLED: &str = "rejected-context-cancelled";

/// The request cannot be read.
pub(crate) fn unreadable(error: &UnreadableRequest) -> Refusal {
    let (status, message) = match error {
        UnreadableRequest::Body(error) => (400, error.to_string()),
        UnreadableRequest::Screening(error) => (400, error.to_string()),
        UnreadableRequest::Kind => return unread_kind(),
        UnreadableRequest::Steering(error) => (error.status.as_u16(), error.message.clone()),
    };
    Refusal { status, message, reason: None, retry_after: None }
}

/// The body is of a kind that nobody can screen, and the operator wants it screened.
pub(crate) fn unread_kind() -> Refusal {
    let message = "bodies of this type cannot be screened".to_owned();
    Refusal { status: 415, message, reason: None, retry_after: None }
}

/// The data plane keeps the body to itself, and the operator wants it screened.
pub(crate) fn unseen_body() -> Refusal {
    let message = "the gateway does not show this body to the endpoint picker".to_owned();
    Refusal { status: 403, message, reason: None, retry_after: None }
}

/// A request has no place.
pub(crate) fn denied(request: &ParsedRequest, denied: &PlacementError) -> Refusal {
    match denied {
        PlacementError::Unplaced { refused, .. } => unplaced(request, refused),
        PlacementError::Dropped { outcome, retry_after } => dropped(*outcome, *retry_after),
    }
}

/// Flow control did not let it through.
fn dropped(outcome: FlowOutcome, retry_after: Duration) -> Refusal {
    use FlowOutcome as O;
    let (status, reason, message) = match outcome {
        O::RejectedCapacity => (429, Some(SATURATED), "as many requests wait as may"),
        O::EvictedTtl => (429, Some(TTL_EXPIRED), "the request waited as long as it may"),
        O::RejectedNoEndpoints | O::EvictedNoEndpoints => {
            (503, Some(NO_ENDPOINTS), "the pool has no endpoints")
        }
        O::RejectedOther => (503, Some(SHUTTING_DOWN), "the picker ends"),
        O::EvictedContextCancelled => (503, Some(CANCELLED), "the client is gone"),
        O::EvictedOther | O::Dispatched => (503, None, "the picker ended while the request waited"),
    };
    let message = format!("request dropped by flow control: {message}");
    Refusal { status, message, reason, retry_after: Some(retry_after) }
}

/// No endpoint was chosen.
fn unplaced(request: &ParsedRequest, refused: &ScheduleError) -> Refusal {
    let (status, reason) = match refused {
        ScheduleError::NothingCached => {
            let message = refused.to_string();
            return Refusal { status: 412, message, reason: None, retry_after: None };
        }
        ScheduleError::Unmet(error) => {
            let message = request.steering.unpicked(Some(request.target()), *error);
            let (reason, retry_after) = (Some(NO_ENDPOINTS), Some(RETRY_AFTER));
            return Refusal { status: 503, message, reason, retry_after };
        }
        ScheduleError::NoEndpoints => (503, NO_ENDPOINTS),
        ScheduleError::Saturated
        | ScheduleError::NotAdmitted(_)
        | ScheduleError::NotRouted(_)
        | ScheduleError::TooMany { .. } => (429, SATURATED),
    };
    let (message, retry_after) = (refused.to_string(), Some(RETRY_AFTER));
    Refusal { status, message, reason: Some(reason), retry_after }
}
