//! Requests to the API server, each with a limit on its time and on the size of its answer.

use crate::resource::escape;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use std::time::Duration;

/// Largest answer to one request; a page of 500 pods has about 10 MiB.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Largest event of a watch; an object has 1.5 MiB at most.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Longest part of an answer that an error repeats.
const MESSAGE_BYTES_MAX: usize = 512;

/// Why the API server did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// There is no such object, or no such kind of object.
    #[error("not found: {0}")]
    Absent(String),
    /// The version of the objects that was asked for has been forgotten.
    #[error("too old: {0}")]
    Gone(String),
    /// Somebody else changed the object first.
    #[error("conflict: {0}")]
    Conflict(String),
    /// It refused otherwise.
    #[error("status {status}: {message}")]
    Refused {
        /// Its status.
        status: u16,
        /// Its words.
        message: String,
    },
    /// No answer came within the limit.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection failed.
    #[error("{0}")]
    Unreachable(String),
    /// The answer is not of the form that was asked for.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// More came than is read.
    #[error("answer has more than {0} bytes")]
    TooLarge(usize),
}

/// A client of one API server. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    timeout: Duration,
}

impl Api {
    /// `timeout` limits every request but for the events of a watch.
    pub(crate) fn new(client: kube::Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// Sends a request, a patch being a server-side apply, and reads the whole answer.
    ///
    /// # Errors
    ///
    /// [`ApiError`] unless the server did as asked.
    pub async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, ApiError> {
        let call = async {
            let answer = self.send(method, path, body).await?;
            let status = answer.status();
            let answer = read(answer.into_body(), ANSWER_BYTES_MAX).await?;
            if status.is_success() { Ok(answer) } else { Err(refusal(status, &answer)) }
        };
        self.within(call).await
    }

    /// Creates the object at `path` or changes it to be like `object`, JSON, by server-side apply:
    /// fields that `manager` set before and that are missing now are removed, those of others stay.
    ///
    /// # Errors
    ///
    /// [`ApiError`] unless the server did as asked.
    pub async fn apply(
        &self,
        path: &str,
        manager: &str,
        object: Vec<u8>,
    ) -> Result<Bytes, ApiError> {
        let mut path = format!("{path}?force=true&fieldManager=");
        escape(manager, &mut path);
        self.call(Method::PATCH, &path, object).await
    }

    /// Opens a watch.
    ///
    /// # Errors
    ///
    /// [`ApiError`] unless the server began one.
    pub async fn watch(&self, path: &str) -> Result<Lines, ApiError> {
        let open = async {
            let answer = self.send(Method::GET, path, Vec::new()).await?;
            let (status, body) = (answer.status(), answer.into_body());
            if status.is_success() {
                return Ok(Lines { body, buffer: LineBuffer::default() });
            }
            Err(refusal(status, &read(body, ANSWER_BYTES_MAX).await?))
        };
        self.within(open).await
    }

    /// The `date` of an answer of the server, which tells its clock.
    ///
    /// # Errors
    ///
    /// [`ApiError`] if no answer came, or one without a date.
    pub async fn date(&self) -> Result<String, ApiError> {
        let ask = async {
            let answer = self.send(Method::GET, "/version", Vec::new()).await?;
            let date = answer.headers().get(http::header::DATE).and_then(|of| of.to_str().ok());
            date.map(str::to_owned).ok_or_else(|| ApiError::Malformed("it has no date".into()))
        };
        self.within(ask).await
    }

    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let answer = tokio::time::timeout(self.timeout, call).await;
        answer.unwrap_or(Err(ApiError::TimedOut(self.timeout)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Body>, ApiError> {
        // JSON is YAML.
        let media = match method {
            Method::PATCH => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, media)
            .body(Body::from(body))
            .map_err(|error| ApiError::Malformed(error.to_string()))?;
        self.client.send(request).await.map_err(|error| unreachable_by(&error))
    }
}

/// The lines of an answer that does not end by itself.
pub struct Lines {
    body: Body,
    buffer: LineBuffer,
}

impl Lines {
    /// The next line without its end; `None` when the server has ended. A last line that was cut
    /// off is not given.
    ///
    /// # Errors
    ///
    /// [`ApiError`] when the connection breaks or a line is too long.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(line) = self.buffer.next_line() {
                return Ok(Some(line));
            }
            if self.buffer.bytes.len() > LINE_BYTES_MAX {
                return Err(ApiError::TooLarge(LINE_BYTES_MAX));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.bytes.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(unreachable_by(&error)),
                None => return Ok(None),
            }
        }
    }
}

/// Bytes that came and were not yet given as lines.
#[derive(Default)]
pub(crate) struct LineBuffer {
    pub(crate) bytes: BytesMut,
    /// Leading bytes that are known to hold no end of line.
    searched: usize,
}

impl LineBuffer {
    /// The next whole line, without its end.
    pub(crate) fn next_line(&mut self) -> Option<Bytes> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            self.searched = self.bytes.len();
            return None;
        };
        let line = self.bytes.split_to(self.searched + end + 1).freeze();
        self.searched = 0;
        Some(line.slice(..line.len() - 1))
    }
}

async fn read(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| unreachable_by(&error))?.into_data() {
            whole.extend_from_slice(&data);
        }
        if whole.len() > limit {
            return Err(ApiError::TooLarge(limit));
        }
    }
    Ok(whole.freeze())
}

/// The error for a status other than success.
pub(crate) fn refusal(status: StatusCode, answer: &[u8]) -> ApiError {
    #[derive(serde::Deserialize)]
    struct Status {
        message: String,
    }
    let said = serde_json::from_slice(answer).map(|status: Status| status.message);
    let mut message = said.unwrap_or_else(|_| String::from_utf8_lossy(answer).trim().to_owned());
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    }
    match status {
        StatusCode::NOT_FOUND => ApiError::Absent(message),
        StatusCode::GONE => ApiError::Gone(message),
        StatusCode::CONFLICT => ApiError::Conflict(message),
        status => ApiError::Refused { status: status.as_u16(), message },
    }
}

/// A failed connection, with all its causes: the outermost rarely says what is wrong.
fn unreachable_by(error: &dyn std::error::Error) -> ApiError {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    ApiError::Unreachable(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn check(status: u16, answer: &str, expected: &str) {
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(refusal(status, answer.as_bytes()).to_string(), expected);
    }

    #[test]
    fn a_refusal_repeats_the_servers_words() {
        check(404, r#"{"message": "no such pod"}"#, "not found: no such pod");
        check(410, r#"{"message": "old"}"#, "too old: old");
        check(409, r#"{"message": "changed"}"#, "conflict: changed");
        check(503, " overloaded\n", "status 503: overloaded");
        check(500, &"é".repeat(500), &format!("status 500: {}", "é".repeat(256)));
    }

    proptest! {
        /// However the bytes are cut into pieces, the lines are the same.
        #[test]
        fn lines_do_not_depend_on_the_pieces(pieces in vec("[a\n]{0,6}", 0..12)) {
            let mut buffer = LineBuffer::default();
            let mut lines = Vec::new();
            for piece in &pieces {
                buffer.bytes.extend_from_slice(piece.as_bytes());
                while let Some(line) = buffer.next_line() {
                    lines.push(line.to_vec());
                }
            }
            let whole = pieces.concat();
            let mut expected: Vec<_> = whole.split('\n').map(Vec::from).collect();
            expected.pop(); // What follows the last end of line is not a line yet.
            prop_assert_eq!(lines, expected);
        }
    }
}
