//! Bounds of kept responses.

use std::time::Duration;

/// Bounds of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreLimits {
    /// Bytes of all responses; nothing is kept where it is zero.
    pub bytes: usize,
    /// Number of all responses.
    pub responses: usize,
    /// Longest stay.
    pub ttl: Duration,
}
