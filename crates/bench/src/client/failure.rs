//! Why a request failed.

use serde::Deserialize;
use stator_http::HttpError;
use thiserror::Error;

/// Why a request failed, in the words under which failures are counted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestFailure {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect,
    /// The connection broke before the answer was whole.
    #[error("connection broken")]
    Broken,
    /// The answer was not whole in time.
    #[error("timeout")]
    Timeout,
    /// The server refused: a status that is no success, and the error's type where it has one.
    #[error("http {status} {kind}")]
    Status {
        /// The status code.
        status: u16,
        /// The error's type, as the server named it; empty where it named none.
        kind: String,
    },
    /// The stream began and carried an error.
    #[error("in stream {kind}")]
    Stream {
        /// The error's type, as the server named it; empty where it named none.
        kind: String,
    },
    /// The stream ended without an end: neither a finish reason nor `[DONE]`.
    #[error("stream cut short")]
    Truncated,
    /// The answer was not what the protocol says.
    #[error("malformed answer")]
    Malformed,
}

impl RequestFailure {
    /// The name under which the failure is counted.
    pub fn name(&self) -> String {
        self.to_string().trim_end().to_owned()
    }
}

/// The failure of a request without a whole answer.
pub(crate) fn of_http(error: HttpError) -> RequestFailure {
    match error {
        HttpError::Connect(_) | HttpError::ServerName { .. } => RequestFailure::Connect,
        HttpError::Unanswered(_) | HttpError::Broken(_) => RequestFailure::Broken,
        HttpError::Malformed(_) | HttpError::TooLarge { .. } => RequestFailure::Malformed,
    }
}

/// The type of the error in an OpenAI error object, cut to 48 plain characters; empty where there
/// is none.
pub(crate) fn error_kind(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Body {
        error: Detail,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Detail {
        Object {
            #[serde(rename = "type")]
            kind: Option<String>,
        },
        Text(String),
    }
    let kind = match serde_json::from_slice(body) {
        Ok(Body { error: Detail::Object { kind } }) => kind.unwrap_or_default(),
        Ok(Body { error: Detail::Text(text) }) => text,
        Err(_) => String::new(),
    };
    kind.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(48).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_status_and_type() {
        let status =
            |kind: &str| RequestFailure::Status { status: 429, kind: kind.to_owned() }.name();
        assert_eq!(status("rate_limit_error"), "http 429 rate_limit_error");
        assert_eq!(status(""), "http 429");
        assert_eq!(
            RequestFailure::Stream { kind: "internal".to_owned() }.name(),
            "in stream internal"
        );
    }

    #[test]
    fn the_type_is_found_in_every_form_of_error() {
        let check = |body: &str, expected: &str| assert_eq!(error_kind(body.as_bytes()), expected);
        check(r#"{"error":{"message":"m","type":"server_error","code":500}}"#, "server_error");
        check(r#"{"error":{"message":"m","type":null}}"#, "");
        check(r#"{"error":"overloaded"}"#, "overloaded");
        check("<html>", "");
        check(&format!(r#"{{"error":{{"type":"{}"}}}}"#, "x".repeat(99)), &"x".repeat(48));
    }
}
