//! Why a form has no guide.

/// The reason why a form has no guide, with the keyword or the place at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuideError(pub(crate) String);
