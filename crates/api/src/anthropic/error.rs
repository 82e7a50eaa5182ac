//! The shape of errors under the paths of the Messages API.

use crate::openai::ApiError;
use crate::openai::escape::push_json_str;
use http::StatusCode;

/// Status of a server that is full; the official API has it in the place of 503.
const OVERLOADED: u16 = 529;

/// Whether errors of a path have this shape.
pub fn owns(path: &str) -> bool {
    path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The status of an error under these paths.
pub fn status(error: &ApiError) -> StatusCode {
    match error.status {
        StatusCode::SERVICE_UNAVAILABLE => {
            StatusCode::from_u16(OVERLOADED).expect("it has three digits")
        }
        // The combination of fields is as wrong as a field alone: the official API has no 422.
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

/// The class of an error, by its status.
///
/// Source: the "Errors" page of Anthropic's API reference.
fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 | 405 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        OVERLOADED => "overloaded_error",
        504 => "timeout_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Words by which clients of this API know that a conversation must be made shorter.
const TOO_LONG: &str = "prompt is too long: ";

/// Appends an error: `{"type":"error","error":{"type","message"},"request_id"}`.
pub fn push_error(out: &mut Vec<u8>, error: &ApiError, request_id: &str) {
    out.extend_from_slice(b"{\"type\":\"error\",\"error\":{\"type\":\"");
    out.extend_from_slice(kind(status(error)).as_bytes());
    out.extend_from_slice(b"\",\"message\":");
    match error.is_too_long() {
        true => push_json_str(out, &[TOO_LONG, &error.message].concat()),
        false => push_json_str(out, &error.message),
    }
    out.extend_from_slice(b"},\"request_id\":");
    push_json_str(out, request_id);
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    #[test]
    fn errors_have_the_classes_of_their_status() {
        let check = |error: &ApiError, expected: u16, kind: &str| {
            let mut out = Vec::new();
            push_error(&mut out, error, "r");
            let body: Value = serde_json::from_slice(&out).expect("JSON");
            let inner = json!({"type": kind, "message": error.message});
            assert_eq!(body, json!({"type": "error", "error": inner, "request_id": "r"}));
            assert_eq!(status(error).as_u16(), expected);
        };
        check(&ApiError::unknown_model("m\""), 404, "not_found_error");
        check(&ApiError::unavailable("full", Duration::from_secs(1)), 529, "overloaded_error");
        check(&ApiError::impossible("a", "b"), 400, "invalid_request_error");
        check(&ApiError::unauthorized(), 401, "authentication_error");
        check(&ApiError::internal(), 500, "api_error");
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for() {
        let mut out = Vec::new();
        push_error(&mut out, &ApiError::context_length_exceeded(9, None, 8), "r");
        let body: Value = serde_json::from_slice(&out).expect("JSON");
        let message = body["error"]["message"].as_str().expect("text");
        assert!(message.starts_with("prompt is too long: the model's context is 8"), "{message}");
    }
}
