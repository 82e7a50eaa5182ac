//! Faults of what the world drives are found, and fleets that change.

use super::turns::TurnCheck;
use super::{RequestMeasurement, Violation, World};
use crate::policy::{
    Choice, NoPick, PickQuery, Policy, PolicyKind, PolicyTicket, RequestProgress, WorkerNews,
    WorkerNumber,
};
use crate::settings::{Adapters, FaultSettings, FleetSettings, Sides, one_policy_queue};
use crate::time::{MS, Ps, SECOND};
use crate::workload::{Mix, SyntheticWorkload, Workload, WorkloadRequest};
use proptest::{collection::vec, prelude::*};
use stator_placement::{BusyThresholds, Role};
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
        world.finish().map(|observations| observations.requests.len())
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
        world.finish().map(|observations| observations.requests.len())
    };
    assert_eq!(check(Fairness::GlobalStrict), Ok(200));
    let violation = check(Fairness::RoundRobin).expect_err("it promised none");
    assert!(violation.rule.contains("limit 2"), "{violation}");
}

fn chat(rate: f64, requests: u32, adapters: u32) -> Workload {
    let mix = SyntheticWorkload { mix: Mix::Chat, rate, adapters, block_size: 128 };
    Workload::synthetic(mix, requests, 1)
}

#[test]
fn a_worker_that_is_added_takes_requests_once_it_is_up() {
    let (settings, workload) = (settings(1), chat(40.0, 400, 0));
    let mut world = World::new(&settings, &workload, PolicyKind::Stator);
    assert_eq!(world.run_until(2 * SECOND), Ok(true));
    world.resize(Role::Aggregated, 3, 4 * SECOND);
    assert_eq!(world.run_until(5 * SECOND), Ok(true));
    let state = world.state().aggregated;
    assert_eq!((state.starting, state.up, state.draining), (2, 1, 0));
    assert_eq!(world.run_until(8 * SECOND), Ok(true));
    assert_eq!((world.state().now, world.state().aggregated.up), (8 * SECOND, 3));
    let observations = world.finish().expect("no rule is broken");
    assert!(observations.busy.iter().all(|busy| *busy > 0), "{:?}", observations.busy);
}

#[test]
fn a_worker_that_leaves_finishes_what_it_has_and_takes_nothing_new() {
    for kind in <PolicyKind as clap::ValueEnum>::value_variants() {
        let (settings, workload) = (settings(3), chat(40.0, 400, 0));
        let mut world = World::new(&settings, &workload, *kind);
        assert_eq!(world.run_until(4 * SECOND), Ok(true));
        world.resize(Role::Aggregated, 1, SECOND);
        assert_eq!(world.state().aggregated.draining, 2, "{kind:?}");
        while world.state().aggregated.draining > 0 {
            assert_eq!(world.step(), Ok(true), "{kind:?}");
        }
        let (busy, left) = (world.state().aggregated.busy, world.state().now);
        assert_eq!(world.state().aggregated.up, 1);
        let observations = world.finish().expect("no rule is broken");
        assert!(observations.requests.iter().all(|request| request.complete), "{kind:?}");
        assert_eq!(observations.migrations, 0, "{kind:?}");
        // Two of three were held up to then.
        let all = observations.span + 10 * SECOND;
        assert!(observations.worker_time < u128::from(all + 2 * left) && busy > 0, "{kind:?}");
    }
}

#[test]
fn totals_count_every_request_once() {
    let (settings, workload) = (settings(2), chat(20.0, 200, 0));
    let mut world = World::new(&settings, &workload, PolicyKind::LeastLoaded);
    while world.step().expect("no rule is broken") {}
    let totals = world.state().totals;
    let observations = world.finish().expect("no rule is broken");
    let sum = |of: fn(&RequestMeasurement) -> Option<Ps>| {
        observations.requests.iter().filter_map(of).map(u128::from).sum::<u128>()
    };
    assert_eq!((totals.arrived, totals.completed, totals.failed), (200, 200, 0));
    assert_eq!((totals.answered, totals.ttft), (200, sum(|request| request.ttft)));
    let tokens = |of: fn(&WorkloadRequest) -> u32| {
        workload.requests.iter().map(|request| u64::from(of(request))).sum::<u64>()
    };
    assert_eq!(totals.prompt_tokens, tokens(|request| request.prompt_tokens));
    assert_eq!(totals.output_tokens, tokens(|request| request.output_tokens));
    assert_eq!(totals.gaps, totals.output_tokens - 200);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However a fleet grows and shrinks while its workers die, every rule holds and no request
    /// is lost.
    #[test]
    fn a_fleet_that_changes_keeps_the_rules(
        sizes in vec((0_u32..5, 0_u32..5, 0_u64..3_000), 1..30),
        split: bool,
        kind in 0_usize..8,
        seed: u64,
    ) {
        let kind = <PolicyKind as clap::ValueEnum>::value_variants()[kind];
        let sides = match split {
            true => Sides { prefill: 2, decode: 2, aggregated: 0 },
            false => Sides { aggregated: 2, ..Sides::default() },
        };
        let faults = FaultSettings {
            deaths_per_hour: 200.0,
            restart: 3 * SECOND,
            event_loss: 0.02,
            report_loss: 0.1,
            ..FaultSettings::NONE
        };
        let adapters = Adapters { count: 2, copies: 1 };
        let calm = FleetSettings::new(&PRESETS[1], sides);
        let settings = FleetSettings { seed, faults, adapters, migrations_max: 50, ..calm };
        let workload = chat(20.0, 200, 2);
        let mut world = World::new(&settings, &workload, kind);
        let mut end = 0;
        for (first, second, startup) in sizes {
            end += SECOND / 2;
            if !world.run_until(end).map_err(|rule| TestCaseError::fail(rule.to_string()))? {
                break;
            }
            match split {
                true => {
                    world.resize(Role::Prefill, first, startup * MS);
                    world.resize(Role::Decode, second, startup * MS);
                }
                false => world.resize(Role::Aggregated, first, startup * MS),
            }
        }
        if split {
            world.resize(Role::Prefill, 1, 0);
            world.resize(Role::Decode, 2, 0);
        } else {
            world.resize(Role::Aggregated, 2, 0);
        }
        let finished = world.finish().map_err(|rule| TestCaseError::fail(rule.to_string()))?;
        prop_assert_eq!(finished.requests.len(), 200);
    }
}
