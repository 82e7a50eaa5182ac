//! Decides when running requests give way, and how many: a pure state machine. The caller tells the
//! time.
//!
//! A saturation lags behind what was done about it, and no one knows what a request takes up. So
//! nothing is revoked before all that was revoked has ended and the saturation shows it.
//!
//! Source: `docs/proposals` of the llm-d router, in-flight request eviction.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most requests that are revoked in one decision.
const REVOCATIONS_MAX: usize = 2;
/// Longest time for a revoked request to end; it counts as ended then.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A waiting request that finds no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Its priority.
    pub priority: i32,
    /// Saturation of the pool; 1 is full.
    pub saturation: f64,
    /// Highest saturation for this priority.
    pub ceiling: f64,
    /// Requests that are in flight in the pool, those that cannot be revoked included.
    pub in_flight: u64,
}

/// Running requests that may be revoked, each with what revokes it.
pub(super) struct Reclaim<H> {
    /// From the end of a revoked request until the saturation shows it.
    grace: Duration,
    /// The lowest priority first, of equal ones the newest.
    running: BTreeMap<(i32, Reverse<u64>), H>,
    revoked: Vec<RevokedRequest>,
    last: u64,
}

/// A request that was revoked.
struct RevokedRequest {
    id: u64,
    /// Saturation that its end is assumed to free.
    credit: f64,
    since: Duration,
    /// The time at which the request ended, or was given up.
    ended: Option<Duration>,
}

/// The answer to a demand for room.
pub(super) struct Reclamation<H> {
    /// Requests to be revoked: their priorities, and what revokes them.
    pub victims: Vec<(i32, H)>,
    /// Revoked requests that were given up.
    pub timed_out: usize,
    /// Saturation above the demand's limit.
    pub deficit: f64,
    /// Room that revoked requests will free and may not have freed yet.
    pub pending: f64,
}

impl<H> Reclaim<H> {
    /// No running requests yet.
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, running: BTreeMap::new(), revoked: Vec::new(), last: 0 }
    }

    /// A request that may be revoked runs from now on; hands back its number.
    pub(super) fn begin(&mut self, priority: i32, handle: H) -> u64 {
        self.last += 1;
        self.running.insert((priority, Reverse(self.last)), handle);
        self.last
    }

    /// A request ended; says how long after its revocation, if it was revoked and not given up.
    pub(super) fn ended(&mut self, priority: i32, id: u64, now: Duration) -> Option<Duration> {
        self.running.remove(&(priority, Reverse(id)));
        let revoked = self.revoked.iter_mut().find(|revoked| revoked.id == id)?;
        if revoked.ended.is_some() {
            return None;
        }
        revoked.ended = Some(now);
        Some(now.saturating_sub(revoked.since))
    }

    /// A request waits that finds no room: who gives way to it?
    pub(super) fn decide(&mut self, demand: Demand, now: Duration) -> Reclamation<H> {
        let timed_out = self.retire(now);
        let deficit = demand.saturation - demand.ceiling;
        let mut decision = Reclamation { victims: Vec::new(), timed_out, deficit, pending: 0.0 };
        decision.pending = self.revoked.iter().map(|revoked| revoked.credit).sum();
        // A band that may never be served is no reason to end what others run.
        let attainable = demand.ceiling > 0.0 && deficit >= 0.0 && deficit.is_finite();
        if !self.revoked.is_empty() || !attainable {
            return decision;
        }
        let credit = demand.saturation / demand.in_flight.max(1) as f64;
        let needed = (deficit / credit).ceil().clamp(1.0, REVOCATIONS_MAX as f64);
        let most = needed as usize;
        while decision.victims.len() < most {
            let Some(first) = self.running.first_entry() else { break };
            let (priority, Reverse(id)) = *first.key();
            // Equal ones would take turns at ending each other.
            if priority >= demand.priority {
                break;
            }
            decision.victims.push((priority, first.remove()));
            self.revoked.push(RevokedRequest { id, credit, since: now, ended: None });
            decision.pending += credit;
        }
        decision
    }

    /// Gives up revoked requests that do not end, and forgets those whose end the saturation shows.
    /// Returns how many were given up.
    fn retire(&mut self, now: Duration) -> usize {
        let mut timed_out = 0;
        for revoked in self.revoked.iter_mut().filter(|revoked| revoked.ended.is_none()) {
            if now.saturating_sub(revoked.since) >= END_TIMEOUT {
                (revoked.ended, timed_out) = (Some(now), timed_out + 1);
            }
        }
        let shown = |ended: Duration| now.saturating_sub(ended) >= self.grace;
        self.revoked.retain(|revoked| !revoked.ended.is_some_and(shown));
        timed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const GRACE: Duration = Duration::from_millis(10);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn demand(priority: i32, saturation: f64) -> Demand {
        Demand { priority, saturation, ceiling: 1.0, in_flight: 4 }
    }

    /// Four requests of these priorities run, named by their numbers.
    fn running(priorities: [i32; 4]) -> Reclaim<u64> {
        let mut reclaim = Reclaim::new(GRACE);
        for (name, priority) in (1..).zip(priorities) {
            assert_eq!(reclaim.begin(priority, name), name);
        }
        reclaim
    }

    fn victims(reclaim: &mut Reclaim<u64>, demand: Demand, at: u64) -> Vec<u64> {
        reclaim.decide(demand, ms(at)).victims.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn the_newest_of_the_lowest_priority_gives_way() {
        let order = |wanted: &[u64]| {
            let (mut reclaim, mut order) = (running([-1, -5, -1, -5]), Vec::new());
            for round in 0..wanted.len() as u64 {
                let gone = victims(&mut reclaim, demand(0, 1.0), round * 100);
                gone.iter().for_each(|name| {
                    reclaim.ended(if name % 2 == 0 { -5 } else { -1 }, *name, ms(round * 100));
                });
                order.extend(gone);
            }
            assert_eq!(order, wanted);
        };
        order(&[4, 2, 3, 1]);
    }

    #[test]
    fn nobody_gives_way_to_its_equal_or_to_who_cannot_be_served() {
        assert!(victims(&mut running([-1; 4]), demand(-1, 1.0), 0).is_empty());
        assert!(victims(&mut running([-1; 4]), demand(-2, 1.0), 0).is_empty());
        let never = Demand { ceiling: 0.0, ..demand(0, 1.0) };
        assert!(victims(&mut running([-1; 4]), never, 0).is_empty());
        assert!(victims(&mut running([-1; 4]), demand(0, 0.9), 0).is_empty(), "there is room");
        assert!(victims(&mut running([-1; 4]), demand(0, f64::INFINITY), 0).is_empty());
    }

    #[test]
    fn as_many_give_way_as_take_up_what_is_too_much_but_few_at_once() {
        assert_eq!(victims(&mut running([-1; 4]), demand(0, 1.0), 0).len(), 1);
        assert_eq!(victims(&mut running([-1; 4]), demand(0, 1.3), 0).len(), 1);
        assert_eq!(victims(&mut running([-1; 4]), demand(0, 1.5), 0).len(), 2);
        assert_eq!(victims(&mut running([-1; 4]), demand(0, 9.0), 0).len(), 2);
    }

    #[test]
    fn nothing_more_is_revoked_before_the_saturation_shows_the_last() {
        let mut reclaim = running([-1; 4]);
        assert_eq!(victims(&mut reclaim, demand(0, 1.0), 0), [4]);
        assert!(victims(&mut reclaim, demand(0, 1.0), 5).is_empty(), "it has not ended");
        assert_eq!(reclaim.ended(-1, 4, ms(8)), Some(ms(8)));
        assert_eq!(reclaim.ended(-1, 4, ms(8)), None, "it is told once");
        assert!(victims(&mut reclaim, demand(0, 1.0), 17).is_empty(), "it may not show yet");
        assert_eq!(victims(&mut reclaim, demand(0, 1.0), 18), [3]);
        // One that does not end is waited for, but not for ever.
        assert!(victims(&mut reclaim, demand(0, 1.0), 10_000).is_empty());
        assert_eq!(reclaim.decide(demand(0, 1.0), ms(10_018)).timed_out, 1);
        assert_eq!(reclaim.ended(-1, 3, ms(10_020)), None, "it was given up");
        assert_eq!(victims(&mut reclaim, demand(0, 1.0), 10_028), [2]);
    }

    #[test]
    fn what_ends_by_itself_is_revoked_no_more() {
        let mut reclaim = running([-1; 4]);
        assert_eq!(reclaim.ended(-1, 4, ms(1)), None);
        assert_eq!(victims(&mut reclaim, demand(0, 1.0), 2), [3]);
    }

    proptest! {
        /// However demands come, no two decisions fall within the grace, and no victim is as
        /// important as the demand.
        #[test]
        fn decisions_are_apart_and_just(
            priorities in vec(-9..0i32, 0..40),
            demands in vec((-9..9i32, 0.5..3.0f64, 0..30u64), 0..60),
        ) {
            let mut reclaim = Reclaim::new(GRACE);
            for priority in priorities {
                reclaim.begin(priority, priority);
            }
            let (mut now, mut last) = (Duration::ZERO, None);
            for (priority, saturation, step) in demands {
                now += ms(step);
                let decision = reclaim.decide(demand(priority, saturation), now);
                prop_assert!(decision.victims.len() <= REVOCATIONS_MAX);
                if !decision.victims.is_empty() {
                    prop_assert!(last.is_none_or(|last| now - last >= GRACE));
                    last = Some(now);
                }
                for (victim, _) in decision.victims {
                    prop_assert!(victim < priority);
                }
                let revoked: Vec<u64> = reclaim.revoked.iter().map(|one| one.id).collect();
                for id in revoked {
                    reclaim.ended(-1, id, now);
                }
            }
        }
    }
}
