//! The end of a proxy.

use std::time::Duration;

/// Phases and deadlines of a proxy's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// Time for which the proxy takes requests after it has said that it is not ready.
    pub lame_duck: Duration,
    /// Longest time for which requests may then run on.
    pub drain_timeout: Duration,
}
