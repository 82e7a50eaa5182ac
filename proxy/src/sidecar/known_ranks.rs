//! The number of ranks of engines, remembered for a while.

use crate::upstream::target::Target;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time for which an answer is believed: after a restart there may be other ranks.
const ROUTE_KEPT_FOR: Duration = Duration::from_secs(10);
/// Engines whose ranks are known at once.
const KNOWN_MAX: usize = 4096;

/// Ranks of engines, and when each said so; 1 for an engine that does not say.
#[derive(Debug, Default)]
pub(crate) struct KnownRanks(Mutex<HashMap<Target, (Instant, u16)>>);

impl KnownRanks {
    pub(super) fn get(&self, engine: &Target, now: Instant) -> Option<u16> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, ranks) = known.get(engine)?;
        (now.duration_since(*at) < ROUTE_KEPT_FOR).then_some(*ranks)
    }

    pub(super) fn insert(&self, engine: &Target, now: Instant, ranks: u16) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(engine.clone(), (now, ranks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_forgotten_in_time_and_bounded() {
        let (known, now) = (KnownRanks::default(), Instant::now());
        let engine = |port| Target { host: "h".into(), port };
        known.insert(&engine(1), now, 8);
        assert_eq!(known.get(&engine(1), now), Some(8));
        assert_eq!(known.get(&engine(2), now), None);
        assert_eq!(known.get(&engine(1), now + ROUTE_KEPT_FOR), None);
        for port in 1..=KNOWN_MAX as u16 + 1 {
            known.insert(&engine(port), now, 1);
        }
        assert!(known.0.lock().expect("nobody panicked").len() <= KNOWN_MAX);
    }
}
