//! For how long an engine has been without progress, or without health.

use super::Progress;
use std::time::{Duration, Instant};

/// Longest time between two looks that counts. Where nobody looked for longer, because this
/// process was stopped or its machine suspended, nothing is known of the time between.
const GAP_MAX: Duration = Duration::from_secs(10);

/// Adds up what was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    looked: Option<Instant>,
    counter: Option<u64>,
    lasted: Duration,
}

impl Watch {
    /// For how long requests have been running while the counter stood still. A look that found
    /// nothing out says nothing of the time since the last that did.
    pub(super) fn progress(&mut self, now: Instant, progress: Option<Progress>) -> Duration {
        let Some(progress) = progress else {
            self.looked = Some(now);
            return self.lasted;
        };
        let stands = progress.running > 0 && self.counter == Some(progress.counter);
        self.counter = (progress.running > 0).then_some(progress.counter);
        self.add(now, stands)
    }

    /// For how long it has been without health, this look included.
    pub(super) fn unhealthy(&mut self, now: Instant) -> Duration {
        self.add(now, true)
    }

    fn add(&mut self, now: Instant, counts: bool) -> Duration {
        let gap = self.looked.map_or(Duration::ZERO, |looked| now.duration_since(looked));
        self.looked = Some(now);
        self.lasted = if counts { self.lasted + gap.min(GAP_MAX) } else { Duration::ZERO };
        self.lasted
    }
}
