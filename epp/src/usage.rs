//! Where an answer says how many tokens it took.

use crate::headers::Headers;
use stator_body::{GrpcUsage, Usage, UsageTail};

/// Where the counts of an answer stand: in JSON or events, or in the messages of a gRPC call.
pub(crate) enum Counts {
    Text(UsageTail),
    Grpc(GrpcUsage),
}

impl Default for Counts {
    fn default() -> Self {
        Self::Text(UsageTail::new())
    }
}

impl Counts {
    /// Those of an answer with this head.
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

    /// What the whole says; `None` if it does not.
    pub(crate) fn finish(&self) -> Option<Usage> {
        match self {
            Self::Text(tail) => tail.finish(),
            Self::Grpc(frames) => frames.finish(),
        }
    }
}
