//! Meaning of the client's errors for the tier.

use std::io::ErrorKind;

use object_store::Error;

use crate::tier::TierError;

/// Why a request gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketFailure {
    /// There is no such object.
    Missing,
    /// There is such an object already.
    Present,
    /// The object is not what it should be, for example too short.
    Wrong,
    /// There is no room.
    Full,
    /// The bucket does not answer, or says that it cannot.
    Outage,
}

impl BucketFailure {
    /// The error that the store is told.
    pub(crate) fn tier_error(self) -> TierError {
        match self {
            Self::Missing => TierError::Missing,
            Self::Wrong => TierError::Corrupt,
            Self::Full => TierError::Full,
            Self::Present | Self::Outage => TierError::Failed,
        }
    }
}

impl From<&Error> for BucketFailure {
    fn from(error: &Error) -> Self {
        match error {
            Error::NotFound { .. } => Self::Missing,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Self::Present,
            Error::Generic { source, .. } => of_source(source.as_ref()),
            _ => Self::Outage,
        }
    }
}

/// A full disk is told by the error below; all else that the client does not name is an outage.
fn of_source(source: &(dyn std::error::Error + Send + Sync + 'static)) -> BucketFailure {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(source);
    while let Some(error) = next {
        let kind = error.downcast_ref().map(std::io::Error::kind);
        if let Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) = kind {
            return BucketFailure::Full;
        }
        next = error.source();
    }
    BucketFailure::Outage
}
