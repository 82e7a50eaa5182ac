//! Roles, labels, adapters, sessions and pins.

use super::*;
use crate::constraint::{Adapter, Constraint, Label, Needs, Profile, Role};
use crate::decision::Reason;
use crate::sessions::{Affinity, SessionSettings};

fn profiled(profiles: Vec<Profile>) -> Placement {
    with_profiles(PlacementSettings::default(), profiles)
}

pub(super) fn with_profiles(settings: PlacementSettings, profiles: Vec<Profile>) -> Placement {
    let mut placement = placement(settings, profiles.len() as u64);
    for (number, profile) in profiles.into_iter().enumerate() {
        assert!(placement.set_profile(rank(number as u64), profile));
    }
    placement
}

fn labelled(labels: &[&str]) -> Profile {
    let labels = labels.iter().map(|label| Label::new(label)).collect();
    Profile { labels, ..Profile::default() }
}

fn required(labels: &[&str]) -> Needs {
    let required = labels.iter().map(|label| Label::new(label)).collect();
    Needs::new(required, Vec::new()).unwrap()
}

#[track_caller]
fn check_error(placement: &mut Placement, request: &PlacementRequest<'_>, wanted: PickError) {
    assert_eq!(placement.pick(request, Time::default(), 0), Err(wanted));
    assert_eq!(placement.stats().bookings, 0, "nothing is booked");
}

#[test]
fn a_required_label_rules_all_others_out() {
    let mut placement = profiled(vec![labelled(&["a"]), labelled(&["a", "b"]), labelled(&["b"])]);
    for (labels, wanted) in [(&["a", "b"][..], vec![1]), (&["b"], vec![1, 2])] {
        let needs = required(labels);
        let asked = PlacementRequest { needs: Some(&needs), explain: true, ..request(&[]) };
        let decision = pick(&mut placement, &asked);
        let told: Vec<_> = decision.candidates.iter().map(|c| c.worker.worker.0).collect();
        assert_eq!(told, wanted);
    }
}

#[test]
fn what_cannot_be_had_is_named() {
    let mut placement = profiled(vec![labelled(&["a"]), labelled(&["b"])]);
    let label = |text| Constraint::Label(Label::new(text));
    let needs = required(&["a", "c"]);
    let asked = PlacementRequest { needs: Some(&needs), ..request(&[]) };
    check_error(&mut placement, &asked, PickError::Unsatisfied { constraint: label("c") });
    let needs = required(&["b", "a"]);
    let asked = PlacementRequest { needs: Some(&needs), ..request(&[]) };
    let wanted = PickError::Contradictory { one: label("b"), other: label("a") };
    check_error(&mut placement, &asked, wanted);
    let needs = required(&["b"]);
    let pinned = PlacementRequest { needs: Some(&needs), pinned: Some(rank(0)), ..request(&[]) };
    let one = Constraint::Pinned(rank(0));
    check_error(&mut placement, &pinned, PickError::Contradictory { one, other: label("b") });
    // Without anybody it is not the labels' fault.
    let excluded = [rank(0), rank(1)];
    let asked = PlacementRequest { needs: Some(&needs), excluded: &excluded, ..request(&[]) };
    check_error(&mut placement, &asked, PickError::NoWorkers);
}

#[test]
fn each_two_can_be_had_and_all_three_cannot() {
    let sets = [["a", "b"], ["b", "c"], ["a", "c"]];
    let mut placement = profiled(sets.iter().map(|labels| labelled(labels)).collect());
    let needs = required(&["a", "b", "c"]);
    let asked = PlacementRequest { needs: Some(&needs), ..request(&[]) };
    let [one, other] = ["a", "c"].map(|text| Constraint::Label(Label::new(text)));
    check_error(&mut placement, &asked, PickError::Contradictory { one, other });
}

#[test]
fn a_preferred_label_makes_cheaper_as_its_source_says() {
    let mut placement = profiled(vec![labelled(&["a"]), labelled(&[])]);
    let needs = Needs::new(Vec::new(), vec![(Label::new("a"), 0.5)]).unwrap();
    let prompt = sequence(0, 10);
    let asked = PlacementRequest { needs: Some(&needs), explain: true, ..request(&prompt) };
    let decision = pick(&mut placement, &asked);
    assert_eq!(decision.worker, rank(0));
    let [preferred, other] = [0, 1].map(|number: usize| decision.candidates[number].score.total);
    assert!((preferred / other - (-(0.5f64.tanh())).exp()).abs() < 1e-12);
}

#[test]
fn adapters_draw_their_requests_and_full_workers_refuse_others() {
    let with = |adapters: &[u64], max_adapters| {
        let adapters = adapters.iter().copied().map(Adapter).collect();
        Profile { adapters, max_adapters, ..Profile::default() }
    };
    let mut placement = profiled(vec![with(&[1], 1), with(&[2], 1), with(&[3], 2)]);
    let prompt = sequence(0, 4);
    let asked = |adapter| PlacementRequest { adapter: Some(Adapter(adapter)), ..request(&prompt) };
    let full: [u64; 3] = [1, 2, 9].map(|adapter| {
        let decision = pick(&mut placement, &asked(adapter));
        placement.release(decision.booking);
        decision.worker.worker.0
    });
    assert_eq!(full, [0, 1, 2]);
    let excluded = [rank(2)];
    let asked = PlacementRequest { excluded: &excluded, ..asked(9) };
    let wanted = PickError::Unsatisfied { constraint: Constraint::Adapter(Adapter(9)) };
    check_error(&mut placement, &asked, wanted);
    // Loaded now, and by name.
    assert!(placement.set_profile(rank(0), with(&[9], 1)));
    assert_eq!(pick(&mut placement, &asked).worker, rank(0));
    assert!(!placement.set_profile(rank(77), Profile::default()));
}

#[test]
fn room_is_of_no_use_where_nothing_is_loaded_for_a_request() {
    let with = |adapters: &[u64]| {
        let adapters = adapters.iter().copied().map(Adapter).collect();
        Profile { adapters, fixed_adapters: true, ..Profile::default() }
    };
    let mut placement = profiled(vec![with(&[]), with(&[2])]);
    let asked = |adapter| PlacementRequest { adapter: Some(Adapter(adapter)), ..request(&[]) };
    let constraint = Constraint::Adapter(Adapter(9));
    check_error(&mut placement, &asked(9), PickError::Unsatisfied { constraint });
    assert_eq!(picks(&mut placement, &asked(2)), [1, 1]);
}

#[test]
fn workers_for_prompts_and_media_answer_nobody() {
    let role = |role| Profile { role, ..Profile::default() };
    let mut placement = profiled(vec![role(Role::Prefill), role(Role::Encode), role(Role::Decode)]);
    let never = PlacementRequest { split: Some(crate::Split::Never), ..request(&[]) };
    assert_eq!(picks(&mut placement, &never), [2, 2]);
    let pinned = PlacementRequest { pinned: Some(rank(0)), ..never };
    let error = placement.pick(&pinned, Time::default(), 0);
    assert_eq!(error, Err(PickError::PinnedUnavailable { worker: rank(0) }));
}

#[test]
fn media_are_encoded_where_least_is_done() {
    let role = |role| Profile { role, ..Profile::default() };
    let mut placement =
        profiled(vec![role(Role::Aggregated), role(Role::Encode), role(Role::Encode)]);
    let prompt = sequence(0, 4);
    let asked = PlacementRequest { encode: true, ..request(&prompt) };
    let decisions = [0, 1].map(|_| pick(&mut placement, &asked));
    let mut encoders = decisions.each_ref().map(|d| d.encode.unwrap().worker.worker.0);
    encoders.sort_unstable();
    assert_eq!(encoders, [1, 2]);
    assert_eq!(placement.in_flight(rank(1)), InFlight { requests: 1, ..InFlight::default() });
    for decision in &decisions {
        assert_eq!(decision.bookings().count(), 2);
        assert!(decision.bookings().all(|booking| placement.release(booking)));
    }
    assert_eq!(placement.stats().bookings, 0);
    assert_eq!(pick(&mut placement, &request(&prompt)).encode, None);
}

fn in_sessions(affinity: Affinity) -> Placement {
    let sessions = Some(SessionSettings::new(affinity, Duration::from_secs(10), 100));
    placement(PlacementSettings { sessions, ..PlacementSettings::default() }, 3)
}

#[test]
fn a_hard_session_stays_unless_its_worker_is_gone() {
    let mut placement = in_sessions(Affinity::Hard);
    let prompt = sequence(0, 50);
    let asked = PlacementRequest { session: Some(7), ..request(&prompt) };
    let first = pick(&mut placement, &asked);
    for _ in 0..5 {
        let next = pick(&mut placement, &asked);
        assert_eq!((next.worker, next.reason), (first.worker, Reason::Session));
    }
    assert_eq!(placement.stats().sessions, 1);
    let load = Load { used_blocks: 90, total_blocks: 100, ..Load::default() };
    placement.set_busy(BusyThresholds::new(Some(0.5), None).unwrap());
    placement.report_load(first.worker, LIFE, load);
    let busy = placement.pick(&asked, Time::default(), 0);
    assert_eq!(busy, Err(PickError::AllBusy { workers: 1 }));
    let number = first.worker.worker.0;
    placement.worker_up(Worker { accepting: false, ..worker(number) });
    let other = pick(&mut placement, &asked).worker;
    assert_ne!(other, first.worker);
    placement.worker_up(worker(number));
    placement.set_busy(BusyThresholds::default());
    assert_eq!(pick(&mut placement, &asked).worker, other, "it is bound anew");
    placement.expire(Time(Duration::from_secs(11)));
    assert_eq!(placement.stats().sessions, 0);
}

#[test]
fn a_soft_session_goes_where_it_is_much_cheaper() {
    let mut placement = in_sessions(Affinity::Soft(0.5));
    let prompt = sequence(0, 10);
    let asked = PlacementRequest { session: Some(7), ..request(&prompt) };
    let first = pick(&mut placement, &asked).worker;
    placement.worker_down(first);
    placement.worker_up(worker(first.worker.0));
    assert_eq!(pick(&mut placement, &asked).worker, first, "what it costs is less");
    let load = Load { used_blocks: 90, total_blocks: 100, ..Load::default() };
    placement.report_load(first, LIFE, load);
    assert_ne!(pick(&mut placement, &asked).worker, first);
}

#[test]
fn a_share_of_a_full_step_makes_busy_where_it_is_known() {
    let batch = Profile { batch_tokens: 100, ..Profile::default() };
    let mut placement = profiled(vec![batch]);
    let busy = BusyThresholds::default().with_prefill_steps(Some(1.5)).unwrap();
    placement.set_busy(busy);
    let prompt = sequence(0, 9);
    pick(&mut placement, &request(&prompt));
    pick(&mut placement, &request(&[]));
    pick(&mut placement, &request(&sequence(100, 1)));
    let next = placement.pick(&request(&[]), Time::default(), 0);
    assert_eq!(next, Err(PickError::AllBusy { workers: 1 }));
    placement.set_profile(rank(0), Profile::default());
    pick(&mut placement, &request(&[]));
    for steps in [f64::NAN, -1.0] {
        assert!(BusyThresholds::default().with_prefill_steps(Some(steps)).is_err());
    }
}
