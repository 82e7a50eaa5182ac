//! Surveys: what all workers would cost, for callers that choose by themselves.

use super::constraints::with_profiles;
use super::timing::{TAUGHT, teach};
use super::*;
use crate::constraint::{Adapter, Label, Needs, Profile};
use crate::cost::CostModel;
use crate::sessions::{Affinity, SessionSettings};
use stator_kv_index::Overlap;
use std::collections::BTreeMap;

/// Each worker that may take a request, what it costs, and what it holds of the prompt.
type Told = Vec<(WorkerRank, (f64, Overlap))>;

/// What a survey finds, of each worker that may take the request.
pub(super) fn surveyed(
    placement: &mut Placement,
    request: &PlacementRequest<'_>,
    now: Time,
) -> Told {
    let workers: Vec<_> = placement.fleet().workers().map(|state| state.worker.worker).collect();
    let survey = placement.survey(request, now);
    let held: BTreeMap<_, _> = survey.held().collect();
    let holds = |worker| held.get(&worker).copied().unwrap_or_default();
    let told = workers.into_iter().zip(survey.costs());
    let told = told.filter(|(_, cost)| *cost < f64::INFINITY);
    told.map(|(worker, cost)| (worker, (cost, holds(worker)))).collect()
}

#[test]
fn a_survey_books_nothing_and_a_booking_follows_the_callers_choice() {
    let mut placement = in_mode(Mode::Kv, 3);
    let blocks = sequence(1, 4);
    placement.apply(rank(1), LIFE, &stored(&blocks));
    let asked = request(&blocks);
    let told = surveyed(&mut placement, &asked, Time::default());
    let blocks: Vec<_> = told.iter().map(|(worker, (_, held))| (*worker, held.blocks())).collect();
    assert_eq!(blocks, [(rank(0), 0), (rank(1), 4), (rank(2), 0)]);
    assert!(told[1].1.0 < told[0].1.0);
    assert_eq!(placement.stats().bookings, 0);

    let decision = placement.book(&asked, rank(1)).expect("the worker is known");
    assert_eq!((decision.worker, decision.overlap_blocks), (rank(1), 4));
    assert_eq!(placement.in_flight(rank(1)).requests, 1);
    assert_eq!(placement.book(&asked, rank(9)), None);
}

/// What a survey says, and what an explanation of the same moment does.
fn both(placement: &mut Placement, asked: &PlacementRequest<'_>) -> [Told; 2] {
    let surveyed = surveyed(placement, asked, TAUGHT);
    let mut explained = Vec::new();
    if placement.find_eligible(asked, Stage::Whole).is_ok() {
        placement.explain(asked, Stage::Whole);
        let told = placement.scratch.candidates.iter();
        let told = told.map(|c| (c.worker, (c.score.total, c.overlap)));
        explained.extend(told);
    }
    [surveyed, explained]
}

proptest! {
    /// Whatever is asked of a fleet in whatever state, a survey has the costs of an explanation, to
    /// the bit.
    #[test]
    fn a_survey_says_what_an_explanation_does(
        calls in vec(any_call(), 0..60),
        cost in select(&CostModel::ALL[..]),
        affinity in select(vec![None, Some(Affinity::Hard), Some(Affinity::Soft(0.5))]),
        busy in any::<bool>(),
    ) {
        let sessions =
            affinity.map(|affinity| SessionSettings::new(affinity, Duration::from_secs(9999), 10));
        let profile = |number: u64| Profile {
            labels: vec![Label(number % 2)],
            adapters: vec![Adapter(number % 3)],
            max_adapters: 1,
            ..Profile::default()
        };
        let settings = PlacementSettings { cost, sessions, ..PlacementSettings::default() };
        let mut placement = with_profiles(settings, (0..6).map(profile).collect());
        teach(&mut placement, 6);
        if busy {
            placement.set_busy(BusyThresholds::new(Some(0.3), Some(300)).unwrap());
        }
        let decaying = WeightSettings { overlap_score_credit_decay: 0.5, ..Default::default() };
        let decaying = Weights::new(decaying).unwrap();
        let needs = Needs::new(vec![Label(1)], Vec::new()).unwrap();
        for each in &calls {
            call(&mut placement, each);
            let Call::Pick { from, blocks, tokens, excluded, seed } = each else { continue };
            let (prompt, excluded) = (sequence(*from, *blocks), excluded.iter().copied().map(rank));
            let excluded: Vec<_> = excluded.collect();
            let prompt_tokens = *blocks as u32 * BLOCK_SIZE + tokens;
            let plain = PlacementRequest { prompt_tokens, ..request(&prompt) };
            for asked in [
                plain,
                PlacementRequest { excluded: &excluded, ..plain },
                PlacementRequest { pinned: Some(rank(seed % 8)), ..plain },
                PlacementRequest { session: Some(seed % 3), ..plain },
                PlacementRequest { needs: Some(&needs), ..plain },
                PlacementRequest { adapter: Some(Adapter(seed % 3)), ..plain },
                PlacementRequest { weights: Some(&decaying), ..plain },
            ] {
                let [surveyed, explained] = both(&mut placement, &asked);
                prop_assert_eq!(surveyed, explained);
                // Binds the session, where it has one.
                let _ = placement.pick(&asked, TAUGHT, *seed);
            }
        }
    }
}
