//! Requests whose prompt one worker computes and another answers.

use super::constraints::with_profiles;
use super::*;
use crate::constraint::{Constraint, Label, Level, Profile, Role, Topology};
use crate::cost::CostModel;
use crate::sessions::{Affinity, SessionSettings};
use crate::split::{Nearness, Split, SplitReason, UncachedThreshold};

/// Workers with these roles, each in a rack of its own number of two.
fn fleet(settings: PlacementSettings, roles: &[Role]) -> Placement {
    let profile = |(number, &role): (usize, &Role)| {
        let topology = Topology {
            host: Some(Label(number as u64)),
            rack: Some(Label(number as u64 % 2)),
            zone: Some(Label(0)),
        };
        Profile { role, topology, ..Profile::default() }
    };
    with_profiles(settings, roles.iter().enumerate().map(profile).collect())
}

const TWO_AND_TWO: [Role; 4] = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode];

fn with_policy(split: Split) -> Placement {
    fleet(PlacementSettings { split, ..PlacementSettings::default() }, &TWO_AND_TWO)
}

#[test]
fn both_legs_are_booked_in_one_step_and_end_apart() {
    let mut placement = with_policy(Split::Always);
    let prompt = sequence(0, 10);
    placement.apply(rank(1), LIFE, &stored(&prompt[..4]));
    let decision = pick(&mut placement, &request(&prompt));
    let leg = decision.prefill.expect("it is split");
    assert_eq!((leg.worker, leg.overlap_blocks, leg.cached_tokens), (rank(1), 4, 64));
    assert!([2, 3].contains(&decision.worker.worker.0));
    assert_eq!((decision.overlap_blocks, decision.split), (0, SplitReason::Policy));
    let prefill = InFlight { requests: 1, prefill_tokens: 96, blocks: 10 };
    assert_eq!(placement.in_flight(leg.worker), prefill);
    let decode = InFlight { requests: 1, prefill_tokens: 0, blocks: 10 };
    assert_eq!(placement.in_flight(decision.worker), decode);
    assert!(placement.prefill_done(leg.booking, Time::default()));
    assert!(placement.release(leg.booking));
    assert_eq!(placement.in_flight(leg.worker), InFlight::default());
    assert_eq!(placement.in_flight(decision.worker), decode);
    assert!(placement.release(decision.booking));
    assert_eq!(placement.stats().bookings, 0);
}

#[test]
fn further_requests_spread_over_both_kinds() {
    let mut placement = with_policy(Split::Always);
    let decisions = [0, 100].map(|from| pick(&mut placement, &request(&sequence(from, 10))));
    let [one, other] = &decisions;
    assert_ne!(one.worker, other.worker);
    assert_ne!(one.prefill.map(|leg| leg.worker), other.prefill.map(|leg| leg.worker));
}

#[track_caller]
fn check(split: Split, cached_blocks: u64, wanted: (bool, SplitReason)) {
    let mut placement = with_policy(split);
    let prompt = sequence(0, 100);
    for number in [2, 3] {
        placement.apply(rank(number), LIFE, &stored(&prompt[..cached_blocks as usize]));
    }
    let decision = pick(&mut placement, &request(&prompt));
    assert_eq!((decision.prefill.is_some(), decision.split), wanted);
}

#[test]
fn policies_decide_by_what_they_name() {
    check(Split::Never, 0, (false, SplitReason::Policy));
    check(Split::Always, 100, (true, SplitReason::Policy));
    let threshold = Split::Uncached(UncachedThreshold::default());
    check(threshold, 0, (true, SplitReason::Uncached));
    check(threshold, 60, (false, SplitReason::Uncached));
    let tokens = Split::Uncached(UncachedThreshold::new(640, 1.0).unwrap());
    check(tokens, 60, (true, SplitReason::Uncached));
    check(tokens, 61, (false, SplitReason::Uncached));
    check(Split::PrefillLoad(0), 0, (true, SplitReason::PrefillLoad));
    // Nothing was measured yet.
    check(Split::Measured, 0, (true, SplitReason::Uncached));
    check(Split::Measured, 60, (false, SplitReason::Uncached));
}

#[test]
fn a_loaded_prefill_fleet_is_passed_by() {
    let mut placement = with_policy(Split::PrefillLoad(1000));
    let picked = [0, 200, 400].map(|from| pick(&mut placement, &request(&sequence(from, 100))));
    assert_eq!(picked.map(|decision| decision.prefill.is_some()), [true, true, false]);
}

#[test]
fn a_request_may_override_the_policy_and_name_the_worker() {
    let mut placement = with_policy(Split::Always);
    let prompt = sequence(0, 10);
    let never = PlacementRequest { split: Some(Split::Never), ..request(&prompt) };
    assert_eq!(pick(&mut placement, &never).prefill, None);
    let named = PlacementRequest { prefill_pinned: Some(rank(1)), ..never };
    assert_eq!(pick(&mut placement, &named).prefill.map(|leg| leg.worker), Some(rank(1)));
    let wrong = PlacementRequest { prefill_pinned: Some(rank(2)), ..never };
    let error = placement.pick(&wrong, Time::default(), 0);
    assert_eq!(error, Err(PickError::PinnedUnavailable { worker: rank(2) }));
}

#[test]
fn without_workers_for_prompts_all_is_done_in_one_place() {
    let roles = [Role::Decode, Role::Aggregated];
    let mut placement =
        fleet(PlacementSettings { split: Split::Always, ..PlacementSettings::default() }, &roles);
    let decision = pick(&mut placement, &request(&sequence(0, 10)));
    assert_eq!((decision.prefill, decision.split), (None, SplitReason::NoPrefillWorkers));
    let mut placement = with_policy(Split::Always);
    let excluded = [rank(0), rank(1)];
    let prompt = sequence(0, 10);
    let asked = PlacementRequest { excluded: &excluded, ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    assert_eq!((decision.prefill, decision.split), (None, SplitReason::NoPrefillWorkers));
}

#[test]
fn only_workers_that_take_the_kv_of_others_are_helped() {
    let roles = [Role::Prefill, Role::Aggregated];
    let mut placement =
        fleet(PlacementSettings { split: Split::Always, ..PlacementSettings::default() }, &roles);
    let decision = pick(&mut placement, &request(&sequence(0, 10)));
    assert_eq!((decision.worker, decision.prefill), (rank(1), None));
    let mut placement = fleet(
        PlacementSettings { split: Split::Always, ..PlacementSettings::default() },
        &[roles[0], roles[1], Role::Decode],
    );
    for from in 0..8 {
        let decision = pick(&mut placement, &request(&sequence(from * 100, 10)));
        assert_eq!((decision.worker, decision.prefill.is_some()), (rank(2), true));
    }
}

#[test]
fn the_two_are_as_near_as_they_must_be() {
    let settings = |nearness| PlacementSettings {
        split: Split::Always,
        nearness,
        ..PlacementSettings::default()
    };
    for nearness in [Nearness::Within(Level::Rack), Nearness::ByCost] {
        let mut placement = fleet(settings(nearness), &TWO_AND_TWO);
        for from in 0..20 {
            let decision = pick(&mut placement, &request(&sequence(from * 100, 10)));
            let prefill = decision.prefill.expect("it is split").worker.worker.0;
            let decode = decision.worker.worker.0;
            let near = prefill % 2 == decode % 2;
            assert!(near || nearness == Nearness::ByCost, "{prefill} and {decode}");
            placement.release_all(&decision);
        }
    }
    // None is on the same machine as another.
    let mut placement = fleet(settings(Nearness::Within(Level::Host)), &TWO_AND_TWO);
    let prompt = sequence(0, 10);
    let decision = pick(&mut placement, &request(&prompt));
    assert_eq!((decision.prefill, decision.split), (None, SplitReason::NoPrefillWorkers));
    let pinned = PlacementRequest { prefill_pinned: Some(rank(0)), ..request(&prompt) };
    let constraint = Constraint::Near(Level::Host);
    let error = placement.pick(&pinned, Time::default(), 0);
    assert_eq!(error, Err(PickError::Unsatisfied { constraint }));
}

/// Teaches that a prompt token takes 0.1 ms, a step 5 ms and 0.1 ms more for each request.
fn teach(placement: &mut Placement) {
    for count in 0..200u64 {
        let start = count * 1000;
        let tokens = 16 * (10 + count % 50);
        let pinned = Some(rank(2 + count % 2));
        let prompt_tokens = tokens as u32;
        let asked = PlacementRequest {
            pinned,
            prompt_tokens,
            split: Some(Split::Never),
            ..PlacementRequest::default()
        };
        let decision = placement.pick(&asked, Time::from_millis(start), 0).unwrap();
        let first = start + tokens / 10;
        assert!(placement.prefill_done(decision.booking, Time::from_millis(first)));
        assert!(placement.output_tokens(decision.booking, 20, Time::from_millis(first + 102)));
        assert!(placement.release(decision.booking));
    }
}

#[test]
fn measured_times_decide_once_there_are_enough() {
    let settings = PlacementSettings { cost: CostModel::Auto, ..PlacementSettings::default() };
    let mut placement = fleet(settings, &TWO_AND_TWO);
    teach(&mut placement);
    let now = Time::from_millis(200_000);
    // Nobody is disturbed: the transfer is not worth it.
    let prompt = sequence(1000, 200);
    let idle = placement.pick(&request(&prompt), now, 0).unwrap();
    assert_eq!((idle.prefill, idle.split), (None, SplitReason::Measured));
    assert!(idle.predicted.is_some_and(|seen| seen.ttft_ms > 100.0 && seen.itl_ms > 1.0));
    placement.release(idle.booking);
    // Where many run, each would stand still for the time of the prompt.
    for from in 0..40u64 {
        let short = sequence(5000 + from * 10, 2);
        let asked = PlacementRequest { split: Some(Split::Never), ..request(&short) };
        let decision = placement.pick(&asked, now, from).unwrap();
        placement.prefill_done(decision.booking, now);
    }
    let busy = placement.pick(&request(&prompt), now, 0).unwrap();
    assert!(busy.prefill.is_some() && busy.split == SplitReason::Measured);
    // And not over a link that takes seconds.
    for from in [0, 1] {
        for to in [2, 3] {
            for _ in 0..40 {
                placement.transferred(rank(from), rank(to), 200, Duration::from_secs(60));
            }
        }
    }
    let slow = placement.pick(&request(&prompt), now, 0).unwrap();
    assert_eq!((slow.prefill, slow.split), (None, SplitReason::Measured));
}

#[test]
fn a_handover_tells_the_way_of_the_kv_and_nothing_of_steps() {
    let settings =
        PlacementSettings { split: Split::Always, min_samples: 10, ..PlacementSettings::default() };
    let mut placement = fleet(settings, &TWO_AND_TWO);
    teach(&mut placement);
    let known = placement.speed(rank(2)).expect("it is known").step(1.0, 0.0);
    let two_seconds = Duration::from_secs(2);
    let mut now = 200_000;
    for from in 0..60 {
        let prompt = sequence(1000 + from * 200, 200);
        let decision = placement.pick(&request(&prompt), Time::from_millis(now), from).unwrap();
        assert_eq!(decision.moved_blocks, 200);
        // The prompt took 400 ms, when its client had a first token, and its KV 2 s.
        let [computed, moved, later] = [400, 2_400, 2_502].map(|ms| Time::from_millis(now + ms));
        for leg in decision.bookings() {
            placement.prefill_done(leg, computed);
        }
        let way = placement.handed_over(&decision, two_seconds, moved).expect("it was moved");
        assert!(way > Duration::from_millis(1_900) && way < two_seconds, "{way:?}");
        placement.output_tokens(decision.booking, 20, later);
        placement.release_all(&decision);
        now += 10_000;
    }
    let prompt = sequence(1, 200);
    let decision = placement.pick(&request(&prompt), Time::from_millis(now), 0).unwrap();
    let seen = decision.predicted.expect("it is known");
    assert!((2_100.0..2_800.0).contains(&seen.ttft_ms), "{seen:?}");
    let step = placement.speed(decision.worker).expect("it is known").step(1.0, 0.0);
    assert!((step / known - 1.0).abs() < 0.2, "{step} s, before {known} s");
    // Without another worker there is no way.
    let asked = PlacementRequest { split: Some(Split::Never), ..request(&prompt) };
    let alone = placement.pick(&asked, Time::from_millis(now), 0).unwrap();
    let learnt = placement.handed_over(&alone, two_seconds, Time::from_millis(now + 1));
    assert_eq!((alone.moved_blocks, learnt), (0, None));
}

#[test]
fn prompts_and_answers_each_go_round() {
    let profiles = TWO_AND_TWO.map(|role| Profile { role, ..Profile::default() });
    let settings = PlacementSettings {
        mode: Mode::RoundRobin,
        split: Split::Always,
        ..PlacementSettings::default()
    };
    let mut placement = with_profiles(settings, profiles.to_vec());
    let mut pairs = || {
        let decision = pick(&mut placement, &request(&[]));
        (decision.prefill.map(|leg| leg.worker), decision.worker)
    };
    let wanted = |prefill, decode| (Some(rank(prefill)), rank(decode));
    assert_eq!([pairs(), pairs(), pairs()], [wanted(0, 2), wanted(1, 3), wanted(0, 2)]);
}

#[test]
fn a_bound_session_stays_with_a_worker_that_takes_no_kv_of_others() {
    let roles = [Role::Prefill, Role::Decode, Role::Aggregated];
    let profiles = roles.map(|role| Profile { role, ..Profile::default() });
    let sessions = SessionSettings::new(Affinity::Hard, Duration::from_secs(60), 9);
    let settings = PlacementSettings {
        split: Split::Always,
        sessions: Some(sessions),
        ..PlacementSettings::default()
    };
    let mut placement = with_profiles(settings, profiles.to_vec());
    let prompt = sequence(0, 10);
    let first =
        PlacementRequest { session: Some(1), split: Some(Split::Never), ..request(&prompt) };
    let began = pick(&mut placement, &PlacementRequest { pinned: Some(rank(2)), ..first });
    let next = pick(&mut placement, &PlacementRequest { split: None, ..first });
    assert_eq!((began.worker, next.worker, next.prefill), (rank(2), rank(2), None));
    let other = pick(&mut placement, &PlacementRequest { session: Some(2), split: None, ..first });
    assert_eq!((other.worker, other.prefill.map(|leg| leg.worker)), (rank(1), Some(rank(0))));
}
