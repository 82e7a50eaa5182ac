//! Every error a client can get, in the shape of the official API.
//!
//! The official clients choose the exception they raise by the status, so the status is what
//! matters; `type` and `code` follow the official API where it has a value for the case.
//!
//! Source: the "Error codes" guide of the OpenAI API reference.

use super::escape::push_json_str;
use http::StatusCode;
use std::fmt;
use std::time::Duration;

/// The longest piece of a client's own text that an error repeats, in bytes.
const QUOTE_MAX_BYTES: usize = 200;

/// Why a request fails, in the client's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// Description of the fault: names the field, its value and the limit.
    pub message: String,
    /// The class of error, `type` on the wire.
    pub kind: &'static str,
    /// The field of the body that is at fault, as a path such as `messages[0].role`.
    pub param: Option<String>,
    /// A word for programs, for example `model_not_found`.
    pub code: Option<&'static str>,
    /// Wait before another try makes sense; becomes `Retry-After` in whole seconds.
    pub retry_after: Option<Duration>,
    /// The methods that the path takes; becomes `Allow`.
    pub allow: Option<&'static str>,
}

/// Code of a prompt that does not fit the context.
const TOO_LONG: &str = "context_length_exceeded";
const INVALID_REQUEST: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl ApiError {
    /// Any status, type and message, for what no constructor below covers.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            kind,
            param: None,
            code: None,
            retry_after: None,
            allow: None,
        }
    }

    /// The same error with the field at fault.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same error with a word for programs.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same error with a time after which to try again.
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Renames the error's fields for another API; `words` are pairs of an old and a new name. A pair
    /// that begins with a dot is the end of a path.
    pub(crate) fn renamed(mut self, words: &[(&str, &str)]) -> Self {
        let Some(param) = &self.param else { return self };
        let is_meant = |from: &str| match param.strip_prefix(from) {
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '[']),
            None => from.starts_with('.') && param.ends_with(from),
        };
        if let Some((from, to)) = words.iter().find(|(from, _)| is_meant(from)) {
            self.message = self.message.replacen(from, to, 1);
            self.param = Some(param.replacen(from, to, 1));
        }
        self
    }

    /// 400: a field has a value that it cannot have.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
            .with_param(param)
            .with_code("invalid_value")
    }

    /// 400: the request is wrong as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    /// 400: a field without which there is nothing to do.
    pub fn missing(param: &str) -> Self {
        Self::bad_request(format!("missing required parameter: {param}"))
            .with_param(param)
            .with_code("missing_required_parameter")
    }

    /// 400: a field that would change the answer and that is not implemented.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param).with_code("unsupported_parameter")
    }

    /// 400: the body is not JSON; `message` gives the line and column.
    pub fn invalid_json(message: impl Into<String>) -> Self {
        Self::bad_request(message).with_code("invalid_json")
    }

    /// Whether a prompt, alone or with its answer, is longer than the model's context.
    pub fn is_too_long(&self) -> bool {
        self.code == Some(TOO_LONG)
    }

    /// 400: prompt and answer do not fit the model's context, all in tokens.
    pub fn context_length_exceeded(prompt: usize, max_tokens: Option<u32>, context: usize) -> Self {
        let wanted = match max_tokens {
            Some(max) => format!("{prompt} in the prompt and {max} for the answer"),
            None => format!("{prompt} in the prompt, which leaves none for the answer"),
        };
        Self::bad_request(format!(
            "the model's context is {context} tokens; the request has {wanted}"
        ))
        .with_code(TOO_LONG)
    }

    /// 400: what arrived is not an HTTP request.
    pub fn malformed_http() -> Self {
        Self::bad_request("the bytes received are not a valid HTTP request")
            .with_code("malformed_http")
    }

    /// 400: the body broke off or was framed wrongly.
    pub fn unreadable_body(cause: &str) -> Self {
        Self::bad_request(format!("the request body could not be read: {cause}"))
            .with_code("unreadable_body")
    }

    /// 401: no key, or one that is not known.
    pub fn unauthorized() -> Self {
        let message = "missing or incorrect API key: send `authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, INVALID_REQUEST, message).with_code("invalid_api_key")
    }

    /// 404: nobody serves the model.
    pub fn unknown_model(model: &str) -> Self {
        let message = format!("the model {:?} does not exist or is not served here", quote(model));
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message)
            .with_param("model")
            .with_code("model_not_found")
    }

    /// 404: no such path.
    pub fn unknown_route(method: &str, path: &str) -> Self {
        let message = format!("unknown request URL: {} {}", quote(method), quote(path));
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message).with_code("unknown_url")
    }

    /// 405: the path exists, the method does not; `allow` lists those that do.
    pub fn method_not_allowed(method: &str, path: &str, allow: &'static str) -> Self {
        let message =
            format!("{} is not allowed for {}; allowed: {allow}", quote(method), quote(path));
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, message);
        Self { allow: Some(allow), ..error.with_code("method_not_allowed") }
    }

    /// 408: the body did not arrive in time.
    pub fn request_timeout(limit: Duration) -> Self {
        let message = format!("the request body stalled for longer than {} ms", limit.as_millis());
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID_REQUEST, message)
            .with_code("request_timeout")
    }

    /// 408: the body came, but all of it did not come in time.
    pub fn slow_body(limit: Duration) -> Self {
        let message = format!("the request body took longer than {} ms", limit.as_millis());
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID_REQUEST, message)
            .with_code("request_timeout")
    }

    /// 408: the request's head did not arrive in time.
    pub fn slow_head(limit: Duration) -> Self {
        let message = format!("the request's head took longer than {} ms", limit.as_millis());
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID_REQUEST, message)
            .with_code("request_timeout")
    }

    /// 413: the body is larger than allowed, both in bytes.
    pub fn body_too_large(bytes: usize, limit: usize) -> Self {
        let message = format!("the request body has {bytes} bytes or more, the limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, message)
            .with_code("body_too_large")
    }

    /// 431: the headers are larger than allowed, both in bytes.
    pub fn headers_too_large(bytes: usize, limit: usize) -> Self {
        let message = format!("the request headers have {bytes} bytes, the limit is {limit}");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, INVALID_REQUEST, message)
            .with_code("headers_too_large")
    }

    /// 414: the request's target is longer than all headers may be, both in bytes.
    pub fn target_too_long(bytes: usize, limit: usize) -> Self {
        let message = format!("the request's target has {bytes} bytes, the limit is {limit}");
        Self::new(StatusCode::URI_TOO_LONG, INVALID_REQUEST, message).with_code("target_too_long")
    }

    /// 415: the body is not declared as JSON.
    pub fn unsupported_media_type(content_type: Option<&str>) -> Self {
        let got = content_type.map_or("none".to_owned(), |value| format!("{:?}", quote(value)));
        let message = format!("the content type must be application/json, got {got}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, message)
            .with_code("unsupported_media_type")
    }

    /// 422: every field is legal by itself and the combination is impossible.
    ///
    /// A field that is wrong by itself is a 400.
    pub fn impossible(param: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, INVALID_REQUEST, message)
            .with_param(param)
            .with_code("impossible_combination")
    }

    /// 429: too many requests at once.
    pub fn too_many_requests(limit: usize, retry_after: Duration) -> Self {
        let message =
            format!("too many concurrent requests, the limit is {limit}; try again later");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .with_code("rate_limit_exceeded")
            .with_retry_after(retry_after)
    }

    /// 429: a client's limit of a minute is reached; `what` it counts is requests or tokens.
    pub fn rate_exceeded(limit: u64, what: &str, retry_after: Duration) -> Self {
        let seconds = retry_after.as_secs_f64();
        let message = format!(
            "the limit of {limit} {what} in a minute is reached; try again in {seconds:.1} s"
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .with_code("rate_limit_exceeded")
            .with_retry_after(retry_after)
    }

    /// 500: our own fault; the cause is in the log and not in the answer.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            SERVER,
            "the server failed to process the request",
        )
        .with_code("internal_error")
    }

    /// 501: a part of the API that is not here. Clients do not try it again.
    pub fn not_implemented(what: &str) -> Self {
        let message = format!("{what} is not implemented here");
        Self::new(StatusCode::NOT_IMPLEMENTED, INVALID_REQUEST, message)
            .with_code("not_implemented")
    }

    /// 501: no engine of a model does what is asked for.
    pub fn not_served(model: &str, why: &str) -> Self {
        let message = format!("the model {:?} {why}", quote(model));
        Self::new(StatusCode::NOT_IMPLEMENTED, INVALID_REQUEST, message)
            .with_param("model")
            .with_code("not_implemented")
    }

    /// 502: a worker answered with something that cannot be used.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, SERVER, message).with_code("bad_gateway")
    }

    /// 503: nobody can take the request now.
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, message)
            .with_code("service_unavailable")
            .with_retry_after(retry_after)
    }

    /// 504: a worker took too long.
    pub fn gateway_timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER, message).with_code("timeout")
    }

    /// The body: `{"error":{"message","type","param","code"}}`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 128);
        self.write_json(&mut out);
        out
    }

    /// Appends the body to `out`.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"message\":");
        push_json_str(out, &self.message);
        out.extend_from_slice(b",\"type\":");
        push_json_str(out, self.kind);
        out.extend_from_slice(b",\"param\":");
        push_json_opt(out, self.param.as_deref());
        out.extend_from_slice(b",\"code\":");
        push_json_opt(out, self.code);
        out.extend_from_slice(b"}}");
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.as_u16(), self.message)
    }
}

impl std::error::Error for ApiError {}

fn push_json_opt(out: &mut Vec<u8>, value: Option<&str>) {
    match value {
        Some(value) => push_json_str(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

/// The client's own text, cut so that an error cannot be made arbitrarily long.
fn quote(text: &str) -> &str {
    &text[..text.floor_char_boundary(QUOTE_MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_has_the_four_official_fields() {
        let error = ApiError::unknown_model("a\"b");
        let body: serde_json::Value = serde_json::from_slice(&error.to_json()).unwrap();
        assert_eq!(
            body,
            serde_json::json!({"error": {
                "message": "the model \"a\\\"b\" does not exist or is not served here",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            }})
        );
    }

    #[test]
    fn absent_fields_are_null() {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "t", "m");
        assert_eq!(
            error.to_json(),
            br#"{"error":{"message":"m","type":"t","param":null,"code":null}}"#
        );
    }

    #[test]
    fn a_long_model_name_is_cut_between_characters() {
        let error = ApiError::unknown_model(&"é".repeat(10_000));
        assert!(error.message.len() < 300, "{} bytes", error.message.len());
    }
}
