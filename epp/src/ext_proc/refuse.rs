//! The answer that a client gets in place of the endpoint's.

use super::message::Immediate;
use super::settings::ErrorFormat;
use crate::exchange::Refusal;
use serde_json::json;
use stator_protos::header::DROPPED_REASON;
use std::time::Duration;

/// The answer for a refusal.
///
/// Source: for the text and the reason, the errors of the llm-d router
/// (`pkg/common/error/error.go`); for the object, the OpenAI API. `Retry-After` in whole seconds:
/// RFC 9110, section 10.2.3.
pub(crate) fn immediate(refusal: &Refusal, format: ErrorFormat) -> Immediate {
    let mut set = Vec::new();
    if let Some(reason) = refusal.reason {
        set.push((DROPPED_REASON, reason.to_owned()));
    }
    // Every status that asks for patience says for how long.
    let least = [429, 503].contains(&refusal.status).then_some(Duration::ZERO);
    if let Some(after) = refusal.retry_after.or(least) {
        // Rounded up, and never "at once": a client that comes back too early is refused again.
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        set.push(("retry-after", seconds.max(1).to_string()));
    }
    let (content_type, body) = match (&refusal.body, format) {
        (Some(body), _) => ("application/json", body.clone()),
        (None, ErrorFormat::Plain) => {
            let text = format!("inference error: {} - {}", code(refusal.status), refusal.message);
            ("text/plain", text.into_bytes())
        }
        (None, ErrorFormat::OpenAi) => {
            let (kind, code) = (kind(refusal.status), refusal.reason);
            let object = json!({"error": {
                "message": refusal.message, "type": kind, "param": null, "code": code,
            }});
            ("application/json", object.to_string().into_bytes())
        }
    };
    set.push(("content-type", content_type.to_owned()));
    Immediate { status: refusal.status, set, body }
}

/// A request whose head is too large.
pub(crate) fn head_too_large(what: &str, value: usize, limit: usize) -> Refusal {
    refusal(431, format!("the request head has {value} {what}, the limit is {limit}"))
}

/// A request whose body is too large.
pub(crate) fn body_too_large(bytes: usize, limit: usize) -> Refusal {
    let message = format!("the request body has {bytes} bytes or more, the limit is {limit}");
    refusal(413, message)
}

/// A request whose body finds no room beside those of others.
pub(crate) fn bodies_too_large(limit: usize) -> Refusal {
    let message = format!("request bodies that are being read have {limit} bytes, the limit");
    Refusal { retry_after: Some(Duration::from_secs(1)), ..refusal(503, message) }
}

/// A streamed body that ends in trailers where it was to be changed.
pub(crate) fn body_with_trailers() -> Refusal {
    refusal(400, "a streamed request body with trailers cannot be rewritten".to_owned())
}

fn refusal(status: u16, message: String) -> Refusal {
    Refusal { status, message, reason: None, retry_after: None, body: None }
}

fn code(status: u16) -> &'static str {
    match status {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        412 => "PreconditionFailed",
        413 => "PayloadTooLarge",
        429 => "ResourceExhausted",
        431 => "RequestHeaderFieldsTooLarge",
        503 => "ServiceUnavailable",
        400..=499 => "BadRequest",
        _ => "Internal",
    }
}

fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn check(refusal: &Refusal, format: ErrorFormat, set: &[(&'static str, &str)], body: &str) {
        let answer = immediate(refusal, format);
        let found: Vec<_> =
            answer.set.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(answer.status, refusal.status);
        assert_eq!(found, set);
        assert_eq!(String::from_utf8_lossy(&answer.body), body);
    }

    #[test]
    fn a_plain_refusal_reads_as_clients_expect() {
        let message = "failed to find endpoint candidates for serving the request".to_owned();
        let reason = Some("rejected-no-endpoints");
        check(
            &Refusal { status: 503, message, reason, retry_after: None, body: None },
            ErrorFormat::Plain,
            &[
                ("x-llm-d-request-dropped-reason", "rejected-no-endpoints"),
                ("retry-after", "1"),
                ("content-type", "text/plain"),
            ],
            "inference error: ServiceUnavailable - failed to find endpoint candidates for serving \
             the request",
        );
    }

    #[test]
    fn a_refusal_can_be_an_object() {
        let retry_after = Some(Duration::from_millis(1001));
        check(
            &Refusal { retry_after, ..refusal(429, "full \"up\"".to_owned()) },
            ErrorFormat::OpenAi,
            &[("retry-after", "2"), ("content-type", "application/json")],
            r#"{"error":{"message":"full \"up\"","type":"rate_limit_error","param":null,"code":null}}"#,
        );
    }

    #[test]
    fn a_refused_field_is_told_in_the_words_of_its_api_whatever_the_format() {
        let body = Some(b"{\"error\":{\"param\":\"rid\"}}".to_vec());
        let refusal = Refusal { body, ..refusal(400, "rid is refused".to_owned()) };
        for format in [ErrorFormat::Plain, ErrorFormat::OpenAi] {
            let set = [("content-type", "application/json")];
            check(&refusal, format, &set, r#"{"error":{"param":"rid"}}"#);
        }
    }

    #[test]
    fn whatever_asks_for_patience_says_for_how_long() {
        for (status, is_told) in
            [(400, false), (412, false), (413, false), (429, true), (500, false), (503, true)]
        {
            let answer = immediate(&refusal(status, String::new()), ErrorFormat::OpenAi);
            let told = answer.set.iter().any(|(name, _)| *name == "retry-after");
            assert_eq!(told, is_told, "{status}");
        }
    }

    #[test]
    fn retry_after_is_never_at_once() {
        let refusal = Refusal { retry_after: Some(Duration::ZERO), ..refusal(429, String::new()) };
        let answer = immediate(&refusal, ErrorFormat::Plain);
        assert_eq!(answer.set[0], ("retry-after", "1".to_owned()));
    }

    #[test]
    fn every_status_has_a_code() {
        let named = [(400, "BadRequest"), (412, "PreconditionFailed"), (429, "ResourceExhausted")];
        let rest = [(418, "BadRequest"), (500, "Internal"), (504, "Internal")];
        for (status, name) in named.into_iter().chain(rest) {
            assert_eq!(code(status), name);
        }
    }
}
