//! Headers of answers that are errors.

use http::{HeaderName, HeaderValue, StatusCode, header};
use stator_api::openai::ApiError;
use std::time::Duration;

/// Status of Anthropic's API for a server that is full.
const OVERLOADED: u16 = 529;

/// Headers that tell a client what to do about an error.
pub(crate) fn error_headers(error: &ApiError) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    if let Some(after) = error.retry_after {
        headers.push((header::RETRY_AFTER, retry_after(after)));
    }
    if let Some(allow) = error.allow {
        headers.push((header::ALLOW, HeaderValue::from_static(allow)));
    }
    if error.status == StatusCode::NOT_IMPLEMENTED {
        let never = HeaderValue::from_static("false");
        headers.push((HeaderName::from_static("x-should-retry"), never));
    }
    if error.status == StatusCode::UNAUTHORIZED {
        headers.push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
    }
    headers
}

/// The value of `Retry-After`: whole seconds, rounded up, at least one.
pub(crate) fn retry_after(wait: Duration) -> HeaderValue {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// Whether a status asks a client to come back later: such an answer has `Retry-After`.
pub(crate) fn asks_for_patience(status: StatusCode) -> bool {
    [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status)
        || status.as_u16() == OVERLOADED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_whole_seconds_and_never_nothing() {
        for (milliseconds, seconds) in [(0, "1"), (1000, "1"), (1001, "2"), (59_999, "60")] {
            assert_eq!(retry_after(Duration::from_millis(milliseconds)), seconds);
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let after = Duration::from_secs(7);
        for (error, name, value) in [
            (ApiError::unavailable("full", after), "retry-after", "7"),
            (ApiError::too_many_requests(1, after), "retry-after", "7"),
            (ApiError::unauthorized(), "www-authenticate", "Bearer"),
        ] {
            let headers = error_headers(&error);
            assert_eq!(headers, [(HeaderName::from_static(name), HeaderValue::from_static(value))]);
        }
        let patient = [429, 503, 529].map(|status| StatusCode::from_u16(status).expect("a status"));
        assert!(patient.into_iter().all(asks_for_patience));
        assert!(!asks_for_patience(StatusCode::BAD_GATEWAY));
    }
}
