//! Clocks of an engine's time without progress, or without health.

use super::Progress;
use std::time::{Duration, Instant};

/// Longest gap between two observations that counts. After a longer one, because this process was
/// stopped or its machine suspended, the time between is unknown.
const GAP_MAX: Duration = Duration::from_secs(10);

/// Adds up each rank's time with requests and without a step. Ranks count separately: working ones
/// do not make up for one that hangs.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    looked: Option<Instant>,
    ranks: Vec<Rank>,
}

/// A rank that had requests at the last observation.
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
    /// Time without a step.
    pub lasted: Duration,
}

impl Stalls {
    /// The longest stall, this observation included. An empty one leaves the time since the last
    /// useful one uncounted.
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

/// Time without health, each observation included.
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

/// The time since the last observation, up to [`GAP_MAX`].
fn gap(looked: &mut Option<Instant>, now: Instant) -> Duration {
    let gap = looked.replace(now).map_or(Duration::ZERO, |looked| now.duration_since(looked));
    gap.min(GAP_MAX)
}
