//! The end of a request that got no whole answer.

use crate::exchange::HangUp;
use stator_api::openai::ApiError;

/// Why a request got no whole answer.
pub(crate) enum Failure {
    /// The client gets this error.
    Error(ApiError),
    /// There is no client any more.
    Gone,
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

impl From<HangUp> for Failure {
    fn from(_: HangUp) -> Self {
        Self::Gone
    }
}
