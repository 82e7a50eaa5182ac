//! The counts of tokens in an answer.

use crate::headers::Headers;
use stator_body::{GrpcUsage, Usage, UsageTail};

/// Reader of an answer's counts: in JSON or events, or in the messages of a gRPC call.
pub(crate) enum TokenCounts {
    Text(UsageTail),
    Grpc(GrpcUsage),
}

impl Default for TokenCounts {
    fn default() -> Self {
        Self::Text(UsageTail::new())
    }
}

impl TokenCounts {
    /// The counts of an answer with this head.
    pub(crate) fn of(head: &Headers) -> Self {
        match head.get("content-type") {
            Some(kind) if kind.starts_with("application/grpc") => Self::Grpc(GrpcUsage::new()),
            _ => Self::default(),
        }
    }

    /// A piece of the body came.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        match self {
            Self::Text(tail) => tail.push(piece),
            Self::Grpc(frames) => frames.push(piece),
        }
    }

    /// The counts of the whole answer; `None` if it has none.
    pub(crate) fn finish(&self) -> Option<Usage> {
        match self {
            Self::Text(tail) => tail.finish(),
            Self::Grpc(frames) => frames.finish(),
        }
    }
}
