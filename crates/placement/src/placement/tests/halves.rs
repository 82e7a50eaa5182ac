//! Workers that answer only from prompts that others compute.

use super::constraints::with_profiles;
use super::*;
use crate::constraint::{Constraint, Label, Needs, Profile, Role};
use crate::sessions::{Affinity, SessionSettings};
use crate::split::{Split, SplitReason};

fn fleet(settings: PlacementSettings, roles: &[Role]) -> Placement {
    let profiles = roles.iter().map(|&role| Profile { role, ..Profile::default() });
    with_profiles(settings, profiles.collect())
}

fn with_halves(split: Split, roles: &[Role]) -> Placement {
    fleet(PlacementSettings { split, ..PlacementSettings::default() }, roles)
}

const PREFILL: Role = Role::Prefill;
const HALF: Role = Role::DecodeOnly;
const WHOLE: Role = Role::Aggregated;

#[track_caller]
fn check_shared(
    placement: &mut Placement,
    asked: &PlacementRequest<'_>,
    wanted: Result<(u64, Option<u64>, SplitReason), PickError>,
) {
    let got = placement.pick(asked, Time::default(), 0);
    let number = |worker: WorkerRank| worker.worker.0;
    let seen = got.as_ref().map(|decision| {
        let prefill = decision.prefill.map(|leg| number(leg.worker));
        (number(decision.worker), prefill, decision.split)
    });
    assert_eq!(seen.map_err(|error| *error), wanted);
    got.iter().for_each(|decision| placement.release_all(decision));
    assert_eq!(placement.stats().bookings, 0);
}

#[test]
fn a_worker_that_computes_no_prompts_has_none_to_itself() {
    let prompt = sequence(0, 10);
    let asked = request(&prompt);
    for split in [Split::Never, Split::Always, Split::Measured, Split::PrefillLoad(0)] {
        // Where nobody does all of it, it is shared whatever the policy.
        let wanted = Ok((1, Some(0), SplitReason::NobodyAlone));
        check_shared(&mut with_halves(split, &[PREFILL, HALF]), &asked, wanted);
        let nobody = Err(PickError::Unshared);
        check_shared(&mut with_halves(split, &[HALF]), &asked, nobody);
    }
    let mut placement = with_halves(Split::Never, &[PREFILL, HALF, WHOLE]);
    check_shared(&mut placement, &asked, Ok((2, None, SplitReason::Policy)));
    let mut placement = with_halves(Split::Always, &[PREFILL, HALF, WHOLE]);
    check_shared(&mut placement, &asked, Ok((1, Some(0), SplitReason::Policy)));
    let excluded = [rank(0)];
    let again = PlacementRequest { excluded: &excluded, ..asked };
    check_shared(&mut placement, &again, Ok((2, None, SplitReason::NoPrefillWorkers)));
    // Named as the only one that may answer, it has help all the same.
    let pinned = PlacementRequest { pinned: Some(rank(1)), ..asked };
    check_shared(&mut placement, &pinned, Ok((1, Some(0), SplitReason::NobodyAlone)));
}

#[test]
fn what_two_cannot_share_goes_to_one_that_does_all_of_it() {
    let prompt = sequence(0, 10);
    let asked = PlacementRequest { indivisible: true, ..request(&prompt) };
    let mut placement = with_halves(Split::Always, &[PREFILL, HALF, WHOLE]);
    check_shared(&mut placement, &asked, Ok((2, None, SplitReason::Policy)));
    let mut placement = with_halves(Split::Always, &[PREFILL, HALF]);
    check_shared(&mut placement, &asked, Err(PickError::Indivisible));
    let label = Constraint::Label(Label(9));
    let needs = Needs::new(vec![Label(9)], Vec::new()).unwrap();
    let particular = PlacementRequest { needs: Some(&needs), ..asked };
    let mut placement = with_halves(Split::Always, &[PREFILL, HALF, WHOLE]);
    check_shared(&mut placement, &particular, Err(PickError::Unsatisfied { constraint: label }));
}

#[test]
fn a_busy_worker_for_all_is_waited_for_only_where_nothing_may_be_shared() {
    let prompt = sequence(0, 10);
    for (split, wanted) in [
        (Split::Never, Err(PickError::AllBusy { workers: 1 })),
        (Split::Always, Ok((1, Some(0), SplitReason::NobodyAlone))),
    ] {
        let busy = BusyThresholds::default().with_requests(Some(1));
        let settings = PlacementSettings { split, busy, ..PlacementSettings::default() };
        let mut placement = fleet(settings, &[PREFILL, HALF, WHOLE]);
        let alone = PlacementRequest { pinned: Some(rank(2)), ..request(&prompt) };
        let held = pick(&mut placement, &PlacementRequest { split: Some(Split::Never), ..alone });
        let got = placement.pick(&request(&prompt), Time::default(), 0);
        let got = got.map(|got| {
            placement.release_all(&got);
            (got.worker.worker.0, got.prefill.map(|leg| leg.worker.worker.0), got.split)
        });
        assert_eq!(got, wanted);
        let asked = PlacementRequest { indivisible: true, ..request(&prompt) };
        let waits = placement.pick(&asked, Time::default(), 0);
        assert_eq!(waits, Err(PickError::AllBusy { workers: 1 }));
        placement.release_all(&held);
    }
}

#[test]
fn a_session_stays_with_a_worker_that_computes_no_prompts() {
    let profiles = [PREFILL, HALF, HALF, WHOLE].map(|role| Profile { role, ..Profile::default() });
    let sessions = SessionSettings::new(Affinity::Hard, Duration::from_secs(60), 9);
    let settings = PlacementSettings {
        split: Split::Always,
        sessions: Some(sessions),
        ..PlacementSettings::default()
    };
    let mut placement = with_profiles(settings, profiles.to_vec());
    let prompt = sequence(0, 10);
    let asked = PlacementRequest { session: Some(1), ..request(&prompt) };
    let first = pick(&mut placement, &PlacementRequest { pinned: Some(rank(2)), ..asked });
    for _ in 0..4 {
        let next = pick(&mut placement, &asked);
        assert_eq!((next.worker, next.prefill.is_some()), (first.worker, true));
    }
}
