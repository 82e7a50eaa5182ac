//! Reasons for which a request is not handed over.

use crate::upstream::engines::{Leg, LegError};
use http::StatusCode;
use stator_handover::MissingParameters;

/// Why a hand-over did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("prefill failed: {0}")]
    Prefill(#[source] LegError),
    #[error("prefill did not end within {limit_ms} ms")]
    TimedOut { limit_ms: u128 },
    #[error("no token from what prefill handed over within {limit_ms} ms")]
    NotArrived { limit_ms: u128 },
    #[error("prefill answered with status {status}")]
    Status { status: StatusCode, answer: Box<Leg> },
    #[error(transparent)]
    Missing(#[from] MissingParameters),
    #[error("the bootstrap server of {prefiller} names no engine")]
    NoEngine { prefiller: String },
    #[error("{host} has no address")]
    NoAddress { host: String },
    #[error("one hand-over serves one sequence, and the request asks for several")]
    Several,
    #[error("the request is no JSON object")]
    NotAnObject,
    #[error("decode failed with what was handed over: {0}")]
    Decode(#[source] LegError),
    #[error("decode answered what was handed over with status {status}")]
    DecodeStatus { status: StatusCode, answer: Box<Leg> },
}

impl Unusable {
    /// The reason's name in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Prefill(LegError::Connect { .. }) => "prefill_unreachable",
            Self::Prefill(_) => "prefill_broken",
            Self::TimedOut { .. } => "prefill_timeout",
            Self::NotArrived { .. } => "transfer_timeout",
            Self::Status { .. } => "prefill_status",
            Self::Missing(_) => "no_parameters",
            Self::NoEngine { .. } => "no_engine",
            Self::NoAddress { .. } => "no_address",
            Self::Several => "several_sequences",
            Self::NotAnObject => "no_object",
            Self::Decode(_) | Self::DecodeStatus { .. } => "decode_failed",
        }
    }

    /// Whether another attempt may find prefill well.
    pub(super) fn is_passing(&self) -> bool {
        const PASSING: [StatusCode; 3] =
            [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        match self {
            Self::Prefill(LegError::Connect { .. }) => true,
            Self::Status { status, .. } => PASSING.contains(status),
            _ => false,
        }
    }

    /// Whether nothing has failed: the request is one that is better not handed over.
    pub(super) fn is_choice(&self) -> bool {
        matches!(self, Self::Several | Self::NotAnObject)
    }
}
