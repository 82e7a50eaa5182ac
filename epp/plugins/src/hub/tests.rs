//! Latencies of endpoints, learnt from their answers, and the scores that they give.

use super::curve::{Anchor, Anchors};
use crate::testing::{Fleet, check_errors, routed, scores};
use crate::{BuildContext, build};
use serde_json::{Value, json};
use stator_epp_scheduler::plugin::{Moment, PlacedRequest, PluginParts, RequestProgress};
use stator_epp_scheduler::{InFlight, Random, Request, Time};
use std::time::Duration;

const OBSERVER: &str = "latency-observer-producer-hub";
const SCORER: &str = "latency-observation-scorer-hub";

/// An observer and a scorer that goes by it.
fn hub(observer: Value, mut scorer: Value) -> (PluginParts, PluginParts) {
    let mut context = BuildContext::new(vec!["default".to_owned()]);
    let observer = build(OBSERVER, "seen", &observer, &mut context).expect("it is sound");
    scorer["ttftPercentilesProducerName"] = "seen".into();
    let scorer = build(SCORER, "ttft", &scorer, &mut context).expect("it is sound");
    (observer, scorer)
}

fn at(ms: u64) -> Time {
    Time(Duration::from_millis(ms))
}

/// Endpoints of a fleet answer, each `count` times: with so many requests in flight, the first
/// piece after so many milliseconds.
fn observe(observer: &PluginParts, fleet: &Fleet, seen: &[(usize, u64, u64)], count: u64) {
    let observer = observer.observer.as_ref().expect("it observes");
    for round in 0..count {
        for (number, &(endpoint, requests, ms)) in (0..).zip(seen) {
            let mut candidates = fleet.candidates();
            candidates[endpoint].in_flight = InFlight { requests, tokens: 0 };
            let (ticket, routing) = (round * 100 + number, routed(&candidates[endpoint]));
            let request = Request { stream: true, ..Request::default() };
            observer.placed(&request, &PlacedRequest { ticket, routing: &routing }, at(0));
            let progress = RequestProgress {
                ticket,
                output_tokens: None,
                cached_tokens: None,
                answered: true,
                served: None,
            };
            observer.first_token(&progress, at(ms));
        }
    }
}

/// The scores of a fleet whose endpoints have so many requests in flight now, ten seconds on.
fn scored(scorer: &PluginParts, fleet: &mut Fleet, in_flight: &[u64]) -> Vec<f64> {
    let sent = |requests: &u64| InFlight { requests: *requests, tokens: 0 };
    fleet.in_flight = in_flight.iter().map(sent).collect();
    let candidates = fleet.candidates();
    let mut scores = vec![f64::NAN; candidates.len()];
    let (all, random): (Vec<_>, _) = (candidates.iter().collect(), &mut Random::new(1));
    let now = Moment { time: at(10_000), random };
    let scorer = scorer.scorer.as_ref().expect("it scores");
    scorer.score(&Request::default(), &all, &mut scores, now);
    scores
}

#[test]
fn the_curve_follows_its_anchors() {
    let anchor = |in_flight, ttft| Anchor { in_flight, ttft };
    let (low, typical) = (anchor(2.0, 0.2), anchor(6.0, 1.0));
    let curve = Anchors { floor: 0.1, low, typical, calibrated: true };
    let check = |curve: Anchors, in_flight, wanted: f64| {
        let found = curve.predict(in_flight, 2.0);
        assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
    };
    for (in_flight, wanted) in [(0.0, 0.1), (1.0, 0.15), (2.0, 0.2), (4.0, 0.6), (8.0, 1.4)] {
        check(curve, in_flight, wanted);
    }
    // Anchors that lie together, or in the wrong order, leave the chord from the floor.
    check(Anchors { low: anchor(5.0, 0.2), ..curve }, 3.0, 0.55);
    check(Anchors { low: anchor(2.0, 1.5), ..curve }, 3.0, 0.55);
    check(Anchors { low: anchor(2.0, 0.05), ..curve }, 3.0, 0.55);
    check(Anchors { calibrated: false, ..curve }, 9.0, 0.1);
}

#[test]
fn the_endpoint_that_answers_soonest_at_its_load_is_preferred() {
    let (observer, scorer) = hub(json!({"minRequests": 3}), json!({"explorationRate": 0}));
    let mut fleet = Fleet::of(2);
    // The first is quick and slows down soon, the other is slow and does not care.
    let seen = [(0, 0, 100), (0, 4, 900), (0, 8, 1800), (1, 0, 400), (1, 4, 500), (1, 8, 600)];
    observe(&observer, &fleet, &seen, 20);
    assert_eq!(scored(&scorer, &mut fleet, &[0, 0]), [1.0, 0.0]);
    assert_eq!(scored(&scorer, &mut fleet, &[8, 8]), [0.0, 1.0]);
    // Its load is what counts.
    assert_eq!(scored(&scorer, &mut fleet, &[0, 8]), [1.0, 0.0]);
}

#[test]
fn an_endpoint_that_is_hardly_known_is_tried_now_and_then() {
    let fleet = || Fleet::of(2);
    let seen = [(0, 1, 100), (0, 5, 900)];
    for (rate, wanted) in [(0.0, [1.0, 0.0]), (1.0, [1.0, 1.0])] {
        let (observer, scorer) = hub(json!({"minRequests": 3}), json!({"explorationRate": rate}));
        observe(&observer, &fleet(), &seen, 20);
        assert_eq!(scored(&scorer, &mut fleet(), &[1, 0]), wanted);
    }
    // Where nothing is known of anyone, all are alike.
    let (_, scorer) = hub(json!({}), json!({"explorationRate": 0}));
    assert_eq!(scored(&scorer, &mut fleet(), &[9, 0]), [1.0, 1.0]);
}

#[test]
fn an_endpoint_that_left_is_not_remembered() {
    let (observer, scorer) = hub(json!({"minRequests": 3}), json!({"explorationRate": 0}));
    let mut fleet = Fleet::of(2);
    observe(&observer, &fleet, &[(0, 1, 100), (0, 5, 900)], 20);
    observer.observer.as_ref().expect("it observes").left(fleet.endpoints[0].worker);
    assert_eq!(scored(&scorer, &mut fleet, &[1, 0]), [1.0, 1.0]);
}

#[test]
fn a_scorer_without_an_observer_ties_all() {
    let scorer = crate::testing::made(SCORER, json!({})).scorer.expect("it scores");
    let fleet = Fleet::of(2);
    assert_eq!(scores(&*scorer, &Request::default(), &fleet.candidates()), [1.0, 1.0]);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    check_errors(
        OBSERVER,
        json!({"maxRequests": 20, "windowSize": 10, "lowPercentile": 60}),
        &[
            "maxRequests: 20 is more than windowSize, 10",
            "lowPercentile: 60 is not below typicalPercentile, 50",
        ],
    );
    let wanted = "ttftPercentilesProducerName: no latency observer is called \"x\"";
    check_errors(SCORER, json!({"ttftPercentilesProducerName": "x"}), &[wanted]);
}
