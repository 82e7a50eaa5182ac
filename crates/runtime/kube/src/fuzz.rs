//! Answers of an API server, for fuzz targets.

use crate::api::{ApiError, LineBuffer};
use bytes::Bytes;
use http::StatusCode;

/// The lines of a watch that came in these pieces.
pub fn lines<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Bytes> {
    let mut buffer = LineBuffer::default();
    let mut lines = Vec::new();
    for piece in pieces {
        buffer.bytes.extend_from_slice(piece);
        lines.extend(std::iter::from_fn(|| buffer.next_line()));
    }
    lines
}

/// Translates an answer whose status is not success.
pub fn refusal(status: StatusCode, answer: &[u8]) -> ApiError {
    crate::api::refusal(status, answer)
}
