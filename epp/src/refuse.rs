//! The one place where a failed decision becomes an answer.
//!
//! Source: status codes, texts and reasons of the llm-d router; two differ. A request without a
//! body gets 503 when the pool is empty, as one with a body does and as the protocol says, not
//! 500; an admission plug-in's refusal is 429, not 500.

use crate::exchange::{Refusal, RequestBody, RequestHead};
use crate::parsed_request::{ParsedRequest, UnreadableRequest, described, path};
use crate::place::PlacementError;
use crate::text;
use http::StatusCode;
use stator_api::anthropic;
use stator_api::openai::ApiError;
use stator_epp_metrics::FlowOutcome;
use stator_epp_scheduler::ScheduleError;
use stator_protos::header::REQUEST_ID;
use std::time::Duration;

/// Time to retry after, if the pool may have room or endpoints soon.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Characters of a coding's name that a refusal repeats.
const CODING_MAX_CHARS: usize = 40;

const SATURATED: &str = "rejected-saturated";
const NO_ENDPOINTS: &str = "rejected-no-endpoints";
const TTL_EXPIRED: &str = "rejected-ttl-expired";
const SHUTTING_DOWN: &str = "rejected-shutting-down";
const CANCELLED: &str = "rejected-context-cancelled";

/// The request cannot be read.
pub(crate) fn unreadable(error: &UnreadableRequest, head: &RequestHead) -> Refusal {
    let message = match error {
        UnreadableRequest::Body(error) => error.to_string(),
        UnreadableRequest::Screening(error) => error.to_string(),
        UnreadableRequest::Kind => return unread_kind(),
        UnreadableRequest::Refused(error) => return refused(error, head),
    };
    Refusal { status: 400, message, reason: None, retry_after: None, body: None }
}

/// A field or a header is refused: in the words of the request's API, as a proxy does it. A call of
/// gRPC has a message in the place of a body.
fn refused(error: &ApiError, head: &RequestHead) -> Refusal {
    let path = path(head).split(['?', '#']).next().unwrap_or_default();
    let (status, body) = match anthropic::error::owns(path) {
        false => (error.status, error.to_json()),
        true => {
            let mut body = Vec::new();
            let id = head.header(REQUEST_ID).unwrap_or_default();
            anthropic::error::push_error(&mut body, error, id);
            (anthropic::error::status(error), body)
        }
    };
    Refusal {
        status: status.as_u16(),
        message: error.message.clone(),
        reason: None,
        retry_after: error.retry_after,
        body: Some(body).filter(|_| !text::is_call(head)),
    }
}

/// Refuses a compressed body, which the picker would have to read.
pub(crate) fn check_coding(head: &RequestHead, length: usize) -> Result<(), Refusal> {
    let shown = match head.body {
        RequestBody::Whole => length > 0,
        RequestBody::Late => true,
        RequestBody::Unseen => false,
    };
    let is_plain = |coding: &str| matches!(coding.trim(), "" | "identity");
    let coding = head.header("content-encoding").filter(|coding| !is_plain(coding));
    let Some(coding) = coding.filter(|_| shown && described(head).is_readable()) else {
        return Ok(());
    };
    let coding: String = coding.chars().take(CODING_MAX_CHARS).collect();
    let message = format!(
        "the body comes as {coding:?}: a body must arrive plain at the endpoint picker, and the \
         gateway can unpack it before"
    );
    let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message);
    Err(refused(&error.with_code("unsupported_content_encoding"), head))
}

/// The body is of a kind that nobody can screen, and the operator wants it screened.
pub(crate) fn unread_kind() -> Refusal {
    let message = "bodies of this type cannot be screened".to_owned();
    Refusal { status: 415, message, reason: None, retry_after: None, body: None }
}

/// The data plane keeps the body to itself, and the operator wants it screened.
pub(crate) fn unseen_body() -> Refusal {
    let message = "the gateway does not show this body to the endpoint picker".to_owned();
    Refusal { status: 403, message, reason: None, retry_after: None, body: None }
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
    Refusal { status, message, reason, retry_after: Some(retry_after), body: None }
}

/// No endpoint was chosen.
fn unplaced(request: &ParsedRequest, refused: &ScheduleError) -> Refusal {
    let (status, reason) = match refused {
        ScheduleError::NothingCached => {
            let message = refused.to_string();
            return Refusal { status: 412, message, reason: None, retry_after: None, body: None };
        }
        ScheduleError::Unmet(error) => {
            let message = request.steering.unpicked(Some(request.target()), *error);
            let (reason, retry_after) = (Some(NO_ENDPOINTS), Some(RETRY_AFTER));
            return Refusal { status: 503, message, reason, retry_after, body: None };
        }
        ScheduleError::NoEndpoints => (503, NO_ENDPOINTS),
        ScheduleError::Saturated
        | ScheduleError::NotAdmitted(_)
        | ScheduleError::NotRouted(_)
        | ScheduleError::TooMany { .. } => (429, SATURATED),
    };
    let (message, retry_after) = (refused.to_string(), Some(RETRY_AFTER));
    Refusal { status, message, reason: Some(reason), retry_after, body: None }
}
