//! Worker of each session's last request.

use crate::Time;
use rustc_hash::FxHashMap;
use stator_protos::WorkerRank;
use std::collections::BTreeMap;
use std::time::Duration;

/// Strength of a session's binding to the worker of its last request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Affinity {
    /// It goes to no other worker unless that one is gone.
    Hard,
    /// The session's worker is cheaper, as if it had a preferred label of this weight.
    Soft(f64),
}

/// Session affinity of a model. Construct it with [`SessionSettings::new`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionSettings {
    affinity: Affinity,
    ttl: Duration,
    max: usize,
}

impl SessionSettings {
    /// A session is forgotten `ttl` after its last request; of more than `max` sessions those
    /// unused for longest are. A soft weight that is not a number from 0 up counts as 0.
    pub fn new(affinity: Affinity, ttl: Duration, max: usize) -> Self {
        let affinity = match affinity {
            Affinity::Soft(weight) if weight.is_nan() || weight < 0.0 => Affinity::Soft(0.0),
            other => other,
        };
        Self { affinity, ttl, max }
    }

    /// Strength of the sessions' binding.
    pub fn affinity(&self) -> Affinity {
        self.affinity
    }
}

struct Session {
    worker: WorkerRank,
    until: Time,
    /// Number of its last use; smaller ones were used before.
    used: u64,
}

/// The sessions that are known.
#[derive(Default)]
pub(crate) struct Sessions {
    by_key: FxHashMap<u64, Session>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn worker(&self, key: u64, now: Time) -> Option<WorkerRank> {
        let session = self.by_key.get(&key)?;
        (session.until > now).then_some(session.worker)
    }

    /// The session's last request went to `worker`.
    pub(crate) fn bind(
        &mut self,
        key: u64,
        worker: WorkerRank,
        now: Time,
        settings: &SessionSettings,
    ) {
        self.uses += 1;
        let session = Session { worker, until: now.after(settings.ttl), used: self.uses };
        if let Some(old) = self.by_key.insert(key, session) {
            self.by_use.remove(&old.used);
        }
        self.by_use.insert(self.uses, key);
        while self.by_key.len() > settings.max {
            self.forget_oldest();
        }
    }

    /// Sessions by the time of their last use, at most `most` uses from position `from` on, and where
    /// they are bound; `None` at the end.
    pub(crate) fn part(&self, from: usize, most: usize) -> Option<Vec<(u64, WorkerRank)>> {
        let (first, last) = self.by_use.first_key_value().zip(self.by_use.last_key_value())?;
        let start = first.0 + from as u64;
        let keys = (start <= *last.0).then(|| self.by_use.range(start..start + most as u64))?;
        Some(keys.filter_map(|(_, key)| Some((*key, self.by_key.get(key)?.worker))).collect())
    }

    /// Forgets sessions that are over at `now`. All last equally long, so that those used first
    /// end first.
    pub(crate) fn expire(&mut self, now: Time) {
        while let Some(key) = self.by_use.first_entry().map(|entry| *entry.get()) {
            if self.by_key.get(&key).is_some_and(|session| session.until > now) {
                return;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.by_use.pop_first() {
            self.by_key.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::WorkerId;

    fn rank(number: u64) -> WorkerRank {
        WorkerRank { worker: WorkerId(number), rank: 0 }
    }

    fn settings(max: usize) -> SessionSettings {
        SessionSettings::new(Affinity::Hard, Duration::from_millis(100), max)
    }

    #[test]
    fn parts_are_all_sessions_once_each() {
        let (mut sessions, now) = (Sessions::default(), Time::default());
        for key in [1, 2, 3, 1, 4, 2, 2] {
            sessions.bind(key, rank(key), now, &settings(9));
        }
        let parts = (0..).step_by(2).map_while(|from| sessions.part(from, 2));
        let told: Vec<_> = parts.flatten().collect();
        assert_eq!(told, [3, 1, 4, 2].map(|key| (key, rank(key))));
        assert_eq!(Sessions::default().part(0, 2), None);
    }

    #[test]
    fn a_session_lasts_until_it_is_unused_for_too_long() {
        let (mut sessions, at) = (Sessions::default(), Time::from_millis);
        sessions.bind(1, rank(1), at(0), &settings(9));
        sessions.bind(1, rank(2), at(60), &settings(9));
        sessions.bind(2, rank(3), at(70), &settings(9));
        assert_eq!(sessions.worker(1, at(159)), Some(rank(2)));
        assert_eq!(sessions.worker(1, at(160)), None);
        sessions.expire(at(160));
        assert_eq!((sessions.len(), sessions.by_use.len()), (1, 1));
        sessions.expire(at(170));
        assert_eq!((sessions.len(), sessions.by_use.len()), (0, 0));
    }

    #[test]
    fn those_unused_for_longest_make_room() {
        let (mut sessions, now) = (Sessions::default(), Time::default());
        for key in [1, 2, 1, 3] {
            sessions.bind(key, rank(key), now, &settings(2));
        }
        assert_eq!([1, 2, 3].map(|key| sessions.worker(key, now).is_some()), [true, false, true]);
        sessions.bind(4, rank(4), now, &settings(0));
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn a_weight_that_is_none_counts_as_none() {
        for weight in [f64::NAN, -1.0] {
            let settings = SessionSettings::new(Affinity::Soft(weight), Duration::ZERO, 1);
            assert_eq!(settings.affinity(), Affinity::Soft(0.0));
        }
    }
}
