//! Which fault a status and a body stand for.

use crate::Fault;
use http::StatusCode;
use serde::Deserialize;
use std::borrow::Cow;

/// Longest message that is passed on, in bytes.
const MAX_MESSAGE_BYTES: usize = 1000;

/// The fault of a token request that the engine refused with `status`.
pub(crate) fn of_request(status: StatusCode, body: &[u8]) -> Fault {
    let message = message(status, body);
    if status == StatusCode::NOT_FOUND && is_no_route(body) {
        return Fault::Unsupported(message);
    }
    of_status(status.as_u16(), message)
}

/// The fault that a status stands for, with the engine's own message.
pub(crate) fn of_status(status: u16, message: String) -> Fault {
    match status {
        400 | 404 | 413 | 422 => Fault::Invalid(message),
        429 | 503 => Fault::Overloaded(message),
        405 | 501 => Fault::Unsupported(message),
        _ => Fault::Failed(message),
    }
}

/// The fault of an operation or a question that was refused with `status`.
pub(crate) fn of_operation(status: StatusCode, body: &[u8]) -> Fault {
    match status.as_u16() {
        // What is not there may be the adapter that was named, not the operation.
        404 if !is_error_object(body) => Fault::Unsupported(message(status, body)),
        _ => of_request(status, body),
    }
}

/// The shapes in which engines report an error.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    error: Option<ErrorField<'a>>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error_message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    detail: Option<Detail<'a>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorField<'a> {
    Object {
        #[serde(borrow)]
        message: Cow<'a, str>,
    },
    Text(#[serde(borrow)] Cow<'a, str>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Detail<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    List(Vec<Complaint>),
}

/// One of the complaints of a body's validation.
#[derive(Deserialize)]
struct Complaint {
    loc: Vec<serde_json::Value>,
    msg: String,
}

fn message(status: StatusCode, body: &[u8]) -> String {
    let said = serde_json::from_slice(body).ok().and_then(said);
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let said = said.trim();
    if said.is_empty() {
        return format!("the engine answers {status}");
    }
    let mut end = said.len().min(MAX_MESSAGE_BYTES);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    said[..end].to_owned()
}

fn said(body: Body<'_>) -> Option<String> {
    let error = body.error.map(|said| match said {
        ErrorField::Object { message } | ErrorField::Text(message) => message.into_owned(),
    });
    let detail = || {
        body.detail.map(|detail| match detail {
            Detail::Text(text) => text.into_owned(),
            Detail::List(complaints) => {
                let lines = complaints.iter().map(|Complaint { loc, msg }| {
                    let path: Vec<_> = loc.iter().map(ToString::to_string).collect();
                    format!("{}: {msg}", path.join(".").replace('"', ""))
                });
                lines.collect::<Vec<_>>().join("; ")
            }
        })
    };
    let message = body.message.or(body.error_message).map(Cow::into_owned);
    error.or(message).or_else(detail)
}

/// Whether the HTTP server itself, not the engine in it, reports that the path is unknown.
fn is_no_route(body: &[u8]) -> bool {
    matches!(
        serde_json::from_slice(body),
        Ok(Body { detail: Some(Detail::Text(text)), .. }) if text == "Not Found"
    )
}

/// Whether the body carries the engine's own error message.
fn is_error_object(body: &[u8]) -> bool {
    matches!(
        serde_json::from_slice(body),
        Ok(Body { error: Some(_), .. } | Body { message: Some(_), .. })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str) -> Fault {
        of_request(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    #[test]
    fn statuses_become_the_callers_choices() {
        let invalid = |text: &str| Fault::Invalid(text.into());
        assert_eq!(
            check(400, r#"{"error":{"message":"too long","code":400}}"#),
            invalid("too long")
        );
        assert_eq!(check(413, ""), invalid("the engine answers 413 Payload Too Large"));
        let list = r#"{"detail":[{"loc":["body","seed",0],"msg":"not an int","type":"x"}]}"#;
        assert_eq!(check(422, list), invalid("body.seed.0: not an int"));
        assert_eq!(check(429, "slow"), Fault::Overloaded("slow".into()));
        assert_eq!(check(503, r#"{"message":"full"}"#), Fault::Overloaded("full".into()));
        assert_eq!(check(501, r#"{"error":"no"}"#), Fault::Unsupported("no".into()));
        assert_eq!(check(500, r#"{"object":"error","message":"x"}"#), Fault::Failed("x".into()));
        assert_eq!(check(401, r#"{"error":"Unauthorized"}"#), Fault::Failed("Unauthorized".into()));
    }

    #[test]
    fn a_missing_model_is_no_missing_route() {
        let model = r#"{"error":{"message":"The model `nope` does not exist."}}"#;
        let route = r#"{"detail":"Not Found"}"#;
        assert!(matches!(check(404, model), Fault::Invalid(_)));
        assert!(matches!(check(404, route), Fault::Unsupported(_)));
        let operation = |body: &str| of_operation(StatusCode::NOT_FOUND, body.as_bytes());
        assert!(matches!(operation(model), Fault::Invalid(_)));
        assert!(matches!(operation(route), Fault::Unsupported(_)));
        assert!(matches!(operation(""), Fault::Unsupported(_)));
    }

    #[test]
    fn messages_are_cut_between_characters() {
        let Fault::Invalid(message) = check(400, &"é".repeat(2000)) else { panic!("not invalid") };
        assert_eq!(message.len(), MAX_MESSAGE_BYTES);
        let Fault::Invalid(message) = check(400, &format!("x{}", "é".repeat(2000))) else {
            panic!("not invalid")
        };
        assert_eq!(message.len(), MAX_MESSAGE_BYTES - 1);
    }
}
