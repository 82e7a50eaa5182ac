//! For how long an engine has been without progress, or without health.

use super::Progress;
use std::time::{Duration, Instant};

/// Longest time between two looks that counts. Where nobody looked for longer, because this
/// process was stopped or its machine suspended, nothing is known of the time between.
const GAP_MAX: Duration = Duration::from_secs(10);

/// Adds up for how long the ranks of an engine had requests and took no step, each by itself: one
/// that hangs is not made well by others that work.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    looked: Option<Instant>,
    ranks: Vec<Rank>,
}

/// A rank that had requests the last time.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    counter: Option<u64>,
    lasted: Duration,
}

/// A rank that has requests and takes no step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Its requests.
    pub running: u32,
    /// For how long.
    pub lasted: Duration,
}

impl Stalls {
    /// The longest stall, this look at all ranks included. A look that found nothing out says
    /// nothing of the time since the last that did.
    pub fn longest(&mut self, now: Instant, ranks: &[Progress]) -> Option<Stall> {
        let gap = gap(&mut self.looked, now);
        if ranks.is_empty() {
            return None;
        }
        self.ranks.resize(ranks.len(), Rank::default());
        let seen = self.ranks.iter_mut().zip(ranks);
        let stalls = seen.filter_map(|(rank, progress)| {
            let lasted = rank.add(gap, *progress);
            (!lasted.is_zero()).then_some(Stall { running: progress.running, lasted })
        });
        stalls.max_by_key(|stall| stall.lasted)
    }
}

impl Rank {
    fn add(&mut self, gap: Duration, progress: Progress) -> Duration {
        let stands = progress.running > 0 && self.counter == Some(progress.counter);
        self.counter = (progress.running > 0).then_some(progress.counter);
        self.lasted = if stands { self.lasted + gap } else { Duration::ZERO };
        self.lasted
    }
}

/// For how long an engine has been without health, each look included.
#[derive(Clone, Debug, Default)]
pub(super) struct Illness {
    looked: Option<Instant>,
    lasted: Duration,
}

impl Illness {
    pub(super) fn lasted(&mut self, now: Instant) -> Duration {
        self.lasted += gap(&mut self.looked, now);
        self.lasted
    }
}

/// The time since the last look, as far as it counts.
fn gap(looked: &mut Option<Instant>, now: Instant) -> Duration {
    let gap = looked.replace(now).map_or(Duration::ZERO, |looked| now.duration_since(looked));
    gap.min(GAP_MAX)
}
