//! Faults of what the world drives are found.

use super::turns::TurnCheck;
use super::{Violation, World};
use crate::policy::{
    Choice, NoPick, PickQuery, Policy, PolicyKind, PolicyTicket, RequestProgress, WorkerNews,
    WorkerNumber,
};
use crate::settings::{FleetSettings, Sides, one_policy_queue};
use crate::time::Ps;
use crate::workload::{Mix, SyntheticWorkload, Workload};
use stator_placement::BusyThresholds;
use stator_queue::{Fairness, Ordering};
use stator_timing::PRESETS;
use std::ops::RangeInclusive;

/// A calm fleet of workers that do all.
fn settings(workers: u32) -> FleetSettings {
    FleetSettings::new(&PRESETS[0], Sides { aggregated: workers, ..Sides::default() })
}

/// A policy that gets one thing wrong.
struct Forgetful {
    policy: Box<dyn Policy>,
    forgets: RequestProgress,
    left: u32,
}

impl Policy for Forgetful {
    fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>, now: Ps) {
        self.policy.hear(worker, news, now);
    }

    fn pick(&mut self, query: &PickQuery<'_>, now: Ps) -> Result<Choice, NoPick> {
        self.policy.pick(query, now)
    }

    fn progress(&mut self, ticket: PolicyTicket, progress: RequestProgress, now: Ps) {
        if progress == self.forgets && self.left > 0 {
            self.left -= 1;
        } else {
            self.policy.progress(ticket, progress, now);
        }
    }

    fn in_flight(&self) -> RangeInclusive<usize> {
        self.policy.in_flight()
    }
}

#[test]
fn a_booking_that_is_not_given_back_is_found() {
    let check = |left| -> Result<usize, Violation> {
        let settings = settings(3);
        let mix = SyntheticWorkload { mix: Mix::Chat, rate: 10.0, adapters: 0, block_size: 128 };
        let workload = Workload::synthetic(mix, 50, 1);
        let mut world = World::new(&settings, &workload, PolicyKind::LeastLoaded);
        let policy = PolicyKind::LeastLoaded.build(&settings.common());
        let policy = std::mem::replace(&mut world.edges[0].policy, policy);
        world.edges[0].policy = Box::new(Forgetful { policy, forgets: RequestProgress::End, left });
        world.run().map(|observations| observations.requests.len())
    };
    assert_eq!(check(0), Ok(50));
    let violation = check(1).expect_err("one booking is left");
    assert!(violation.rule.contains("booked"), "{violation}");
}

#[test]
fn a_queue_that_serves_some_before_others_is_found() {
    let check = |promised| -> Result<usize, Violation> {
        let ordering = Ordering::ShortestPrompt { ageing_tokens_per_s: 4_096 };
        let queue = one_policy_queue(1_000, Fairness::GlobalStrict, ordering);
        let busy = BusyThresholds::new(None, Some(4_000)).expect("a good threshold");
        let settings = FleetSettings { queue, busy, ..settings(2) };
        let mix = SyntheticWorkload { mix: Mix::Mixed, rate: 40.0, adapters: 0, block_size: 128 };
        let workload = Workload::synthetic(mix, 200, 1);
        let mut world = World::new(&settings, &workload, PolicyKind::Stator);
        world.edges[0].turns = TurnCheck::new(promised);
        world.run().map(|observations| observations.requests.len())
    };
    assert_eq!(check(Fairness::GlobalStrict), Ok(200));
    let violation = check(Fairness::RoundRobin).expect_err("it promised none");
    assert!(violation.rule.contains("limit 2"), "{violation}");
}
