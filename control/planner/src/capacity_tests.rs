//! Sizes follow demand and targets.

use super::*;
use proptest::prelude::*;

fn model() -> WorkerModel {
    let timing = Timing::preset("h100-llama-8b").expect("a known preset");
    WorkerModel { timing, kv_tokens: 400_000.0, batch_max: 256.0, step_tokens: 8_192.0 }
}

const TARGETS: SlaTargets = SlaTargets { ttft_s: 0.5, itl_s: 0.05, attainment: 0.97 };

fn demand(rate: f64) -> Demand {
    Demand {
        rate,
        computed_tokens: 3_000.0,
        cached_tokens: 0.0,
        prompt_spread: 1.0,
        output_tokens: 150.0,
    }
}

#[test]
fn no_demand_needs_no_worker() {
    assert_eq!(model().size(Role::Aggregated, &demand(0.0), &TARGETS).workers, 0);
}

#[test]
fn a_request_that_alone_is_too_slow_asks_for_no_more_workers() {
    let targets = SlaTargets { ttft_s: 0.05, ..TARGETS };
    let sizing = model().size(Role::Prefill, &demand(2.0), &targets);
    assert_eq!(sizing, Sizing { workers: 1, infeasible: true });
}

#[test]
fn time_between_tokens_is_that_of_a_step_without_load() {
    let estimate = model().estimate(Role::Decode, &demand(1e-6), 1, &TARGETS);
    assert!((estimate.itl_s / model().timing.step_s - 1.0).abs() < 1e-3, "{estimate:?}");
    let idle = model().estimate(Role::Prefill, &demand(1e-6), 1, &TARGETS);
    assert!((0.1..0.15).contains(&idle.ttft_s), "{idle:?}");
}

proptest! {
    #[test]
    fn more_workers_are_never_slower_and_sizes_grow_with_demand(
        rate in 0.1_f64..100.0, workers in 1_u32..40, role in 0_usize..3,
    ) {
        let role = crate::replicas::ROLES[role];
        let (model, demand) = (model(), demand(rate));
        let few = model.estimate(role, &demand, workers, &TARGETS);
        let more = model.estimate(role, &demand, workers + 1, &TARGETS);
        // A smaller spread puts more requests over the target if the mean is too slow already.
        let hopeless = few.itl_s > TARGETS.itl_s;
        prop_assert!(hopeless || more.attained >= few.attained - 1e-9, "{few:?} {more:?}");
        prop_assert!(more.itl_s <= few.itl_s && more.ttft_s <= few.ttft_s + 1e-9);
        let larger = Demand { rate: rate * 1.5, ..demand };
        let sizes = [demand, larger].map(|demand| model.size(role, &demand, &TARGETS).workers);
        prop_assert!(sizes[0] <= sizes[1], "{sizes:?}");
    }
}
