//! Moments, as the caller counts them.

use std::time::Duration;

/// A moment: the time since a start that the caller chose and keeps to.
///
/// Moments only ever move forward; one that lies before another already seen counts as that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub Duration);

impl Time {
    /// The moment `ms` milliseconds after the start.
    pub fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// The moment `duration` later, or the last there is.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}
