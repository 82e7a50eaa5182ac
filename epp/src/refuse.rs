//! The one place where a failed decision becomes an answer.
//!
//! Source: status codes, texts and reasons of the llm-d router; two differ. A request without a
//! body gets 503 when the pool is empty, as one with a body does and as the protocol says, not
//! 500; an admission plug-in's refusal is 429, not 500.

use crate::exchange::Refusal;
use stator_epp_body::ParseError;
use stator_epp_scheduler::Refused;
use std::time::Duration;

/// When to come back where the pool may have room or endpoints soon.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const SATURATED: &str = "rejected-saturated";
const NO_ENDPOINTS: &str = "rejected-no-endpoints";

/// The body cannot be read.
pub(crate) fn unread(error: &ParseError) -> Refusal {
    Refusal { status: 400, message: error.to_string(), reason: None, retry_after: None }
}

/// No endpoint was chosen.
pub(crate) fn unplaced(refused: &Refused) -> Refusal {
    let (status, reason) = match refused {
        Refused::NoEndpoints => (503, NO_ENDPOINTS),
        Refused::Saturated
        | Refused::NotAdmitted(_)
        | Refused::NotRouted(_)
        | Refused::TooMany { .. } => (429, SATURATED),
    };
    let (message, retry_after) = (refused.to_string(), Some(RETRY_AFTER));
    Refusal { status, message, reason: Some(reason), retry_after }
}

/// The client wants an endpoint that holds a part of its prompt, and there is none.
pub(crate) fn nothing_cached() -> Refusal {
    let message = "no decode worker has the requested KV cache".to_owned();
    Refusal { status: 412, message, reason: None, retry_after: None }
}
