use super::*;
use crate::model::tests::QWEN_32B;
use crate::search::search;
use crate::search::tests::request;

fn best(request: &PlanRequest) -> Candidate {
    search(request).candidates[0]
}

#[test]
fn a_light_load_sees_the_times_of_the_closed_form() {
    let request = request(QWEN_32B, "h100-sxm", 2);
    let candidate = best(&request);
    let plan = replay_at(&request, &candidate, 0.02).expect("no rule is broken");
    let step = step_model(&request, candidate.layout.answering());
    let close = |ms: f64, seconds: f64| (ms / (seconds * 1e3) - 1.0).abs() < 0.2;
    assert!(close(plan.ttft_ms.p50, step.prefill_s(4_000.0, 0.0)), "{:?}", plan.ttft_ms);
    assert!(close(plan.itl_ms.p50, step.decode_s(1.0, 4_250.0)), "{:?}", plan.itl_ms);
    assert_eq!(plan.attainment, 1.0);
}

#[test]
fn the_highest_rate_holds_and_half_as_much_again_does_not() {
    let request = request(QWEN_32B, "h100-sxm", 4);
    let candidate = best(&request);
    let plan = replay(&request, &candidate).expect("no rule is broken").expect("a rate");
    assert!(plan.attainment >= request.targets.attainment);
    let beyond = replay_at(&request, &candidate, plan.rate * 1.5).expect("no rule is broken");
    assert!(beyond.attainment < request.targets.attainment, "{}", beyond.attainment);
}

#[test]
fn a_rate_gets_the_fewest_workers_that_hold() {
    let mut request = request(QWEN_32B, "h100-sxm", 64);
    request.traffic.rate = Some(6.0);
    let candidate = best(&request);
    let plan = replay(&request, &candidate).expect("no rule is broken").expect("a plan");
    assert!(plan.attainment >= request.targets.attainment);
    let fewer = resized(&request, &plan, false).expect("more than one worker");
    let fewer = Candidate { layout: fewer, ..candidate };
    let fewer = replay_at(&request, &fewer, 6.0).expect("no rule is broken");
    assert!(fewer.attainment < request.targets.attainment, "{}", fewer.attainment);
}

#[test]
fn the_same_request_gives_the_same_plan() {
    let request = request(QWEN_32B, "h100-sxm", 4);
    let plan = || format!("{:?}", replay(&request, &best(&request)).expect("no rule is broken"));
    assert_eq!(plan(), plan());
}
