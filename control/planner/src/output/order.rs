//! Orders of replicas, and why one was not taken.

use crate::replicas::Replicas;
use std::collections::BTreeMap;

/// Replicas of each model.
pub(crate) type GraphReplicas = BTreeMap<String, Replicas>;

/// Why a receiver did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The file cannot be read or written, or holds something else.
    #[error("replicas-file: {0}")]
    File(String),
    /// The cluster did not do as asked.
    #[error("scale of {object}: {reason}")]
    Scale {
        /// The object.
        object: String,
        /// The answer.
        reason: String,
    },
}
