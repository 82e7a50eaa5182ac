use crate::testing::{Fleet, check_errors, check_scores, made, matched};
use serde_json::{Value, json};
use stator_epp_scheduler::{InFlight, PredictedLatency, Request};
use std::time::Duration;

fn predicted(ttft_ms: f64, tpot_ms: f64) -> Option<PredictedLatency> {
    Some(PredictedLatency { ttft_ms, tpot_ms })
}

fn check(parameters: Value, predictions: &[(f64, f64)], wanted: &[f64]) {
    let mut fleet = Fleet::of(predictions.len() as u8);
    fleet.in_flight.fill(InFlight { requests: 1, tokens: 0 });
    let mut candidates = fleet.candidates();
    for (candidate, (ttft, tpot)) in candidates.iter_mut().zip(predictions) {
        candidate.findings().latency = predicted(*ttft, *tpot);
    }
    let request = Request {
        slo_ttft: Some(Duration::from_millis(100)),
        slo_tpot: Some(Duration::from_millis(20)),
        ..Request::default()
    };
    let scorer = made("latency-scorer", parameters).scorer.expect("it is a scorer");
    check_scores(&*scorer, &request, &candidates, wanted);
}

#[test]
fn the_least_headroom_is_used_up_first() {
    check(json!({}), &[(90.0, 10.0), (50.0, 10.0), (10.0, 10.0)], &[1.0, 0.5, 0.0]);
    let most = json!({"headroomSelectionStrategy": "most"});
    check(most, &[(90.0, 10.0), (50.0, 10.0), (10.0, 10.0)], &[0.0, 0.5, 1.0]);
}

#[test]
fn both_headrooms_count_by_their_weights() {
    check(json!({}), &[(90.0, 0.0), (10.0, 20.0)], &[0.8, 0.2]);
    check(json!({"ttftWeight": 1, "tpotWeight": 1}), &[(90.0, 0.0), (10.0, 20.0)], &[0.5; 2]);
    check(json!({}), &[(50.0, 10.0), (50.0, 10.0)], &[0.5; 2]);
}

#[test]
fn endpoints_that_break_objectives_score_only_if_all_do() {
    check(json!({}), &[(50.0, 10.0), (200.0, 10.0)], &[0.5, 0.0]);
    // The first breaks both, the next two the first token's, the last two only tokens'.
    let broken = [(200.0, 40.0), (150.0, 1.0), (110.0, 1.0), (50.0, 30.0), (50.0, 40.0)];
    check(json!({}), &broken, &[0.0, 0.0, 0.0, 1.0, 0.0]);
    check(json!({}), &broken[..3], &[0.0, 0.0, 1.0]);
    // Where objectives are broken the least excess is best, whatever the strategy.
    check(json!({"headroomSelectionStrategy": "most"}), &broken[..3], &[0.0, 0.0, 1.0]);
}

#[test]
fn idle_endpoints_come_before_busy_ones_that_break_objectives() {
    let mut fleet = Fleet::of(2);
    fleet.in_flight[0].requests = 3;
    let mut candidates = fleet.candidates();
    candidates[0].findings().latency = predicted(10.0, 10.0);
    candidates[1].findings().latency = predicted(90.0, 90.0);
    let scorer = made("latency-scorer", Value::Null).scorer.expect("it is a scorer");
    check_scores(&*scorer, &Request::default(), &candidates, &[0.0, 0.5]);
}

#[test]
fn without_predictions_load_and_cache_decide() {
    let mut fleet = Fleet::of(2);
    fleet.loads[0].kv_usage = 0.5;
    fleet.loads[0].waiting = 4;
    fleet.loads[1].waiting = 1;
    let mut candidates = fleet.candidates();
    candidates[0].approximate = Some(matched(4, 4));
    let scorer = made("latency-scorer", Value::Null).scorer.expect("it is a scorer");
    check_scores(&*scorer, &Request::default(), &candidates, &[0.5, 1.75 / 3.0]);
}

#[test]
fn weights_and_strategies_are_checked() {
    check_errors(
        "latency-scorer",
        json!({"ttftWeight": -1, "headroomSelectionStrategy": "some"}),
        &[
            "ttftWeight: -1 is less than 0",
            "headroomSelectionStrategy: \"some\" is none of least, most",
        ],
    );
}
