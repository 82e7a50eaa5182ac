use super::*;
use crate::gpu::Gpu;
use crate::model::ModelShape;
use crate::model::tests::{DEEPSEEK, QWEN_32B};
use crate::precision::Precision;
use crate::request::{Forms, Targets};
use proptest::prelude::*;
use stator_timing::EngineProfile;

pub(crate) fn request(config: &str, gpu: &str, gpus: u32) -> PlanRequest {
    PlanRequest {
        model: ModelShape::parse(config).expect("a model"),
        model_name: "model".to_owned(),
        model_path: "/models/model".to_owned(),
        gpu: *Gpu::named(gpu).expect("a GPU"),
        gpus,
        kv: Precision::Bf16,
        engines: vec![EngineKind::Vllm],
        forms: Forms { aggregated: true, disaggregated: true },
        traffic: Traffic { input_tokens: 4_000, cached_tokens: 0, output_tokens: 500, rate: None },
        trace: None,
        profiles: Vec::new(),
        tables: Vec::new(),
        targets: Targets { ttft_s: 2.0, itl_s: 0.05, attainment: 0.95, margin: 0.15 },
        seed: 1,
    }
}

#[test]
fn candidates_are_within_targets_memory_and_gpus() {
    for (config, gpu, gpus) in [(QWEN_32B, "h100-sxm", 16), (DEEPSEEK, "h200-sxm", 32)] {
        let request = request(config, gpu, gpus);
        let found = search(&request);
        assert!(!found.candidates.is_empty(), "{gpu}");
        for Candidate { layout, estimate } in &found.candidates {
            assert!(layout.gpus() <= gpus);
            assert!(estimate.ttft_s <= request.targets.ttft_bound_s() * (1.0 + 1e-9));
            assert!(estimate.itl_s <= request.targets.itl_bound_s());
            let answering = layout.answering();
            let step = StepModel::new(&request.model, &request.gpu, request.kv, answering.worker);
            let share = f64::from(answering.batch_max) / f64::from(answering.worker.data);
            let used = step.weight_bytes() + share * step.kv_bytes(4_500.0);
            assert!(used <= request.gpu.memory, "{} of {gpu}", layout.describe());
        }
    }
}

#[test]
fn both_forms_are_compared() {
    let found = search(&request(QWEN_32B, "h100-sxm", 16));
    let splits = |c: &&Candidate| matches!(c.layout, Layout::Disaggregated { .. });
    let split = found.candidates.iter().filter(splits).count();
    assert!(split > 0 && split < found.candidates.len());
}

#[test]
fn a_rate_takes_the_fewest_gpus_first() {
    let mut request = request(QWEN_32B, "h100-sxm", 64);
    request.traffic.rate = Some(8.0);
    let found = search(&request);
    assert!(found.candidates.iter().map(|c| c.layout.gpus()).is_sorted());
    assert!(found.candidates.iter().all(|c| c.estimate.rate >= 8.0));
}

#[test]
fn a_model_that_fits_nowhere_has_no_reach() {
    let found = search(&request(DEEPSEEK, "l4", 8));
    assert_eq!(found.reach.gpus_min, None);
    assert!(found.candidates.is_empty());
}

#[test]
fn the_front_falls_in_one_figure_as_it_rises_in_the_other() {
    let front = search(&request(QWEN_32B, "h100-sxm", 8)).front;
    assert!(front.len() > 3);
    assert!(front.windows(2).all(|pair| {
        pair[0].user_tokens_s <= pair[1].user_tokens_s
            && pair[0].gpu_tokens_s > pair[1].gpu_tokens_s
    }));
}

proptest! {
    /// The batch that a bisection finds is the largest of all that are within the targets.
    #[test]
    fn the_batch_is_the_largest_that_holds(itl_ms in 12.0_f64..120.0, ttft_ms in 150.0_f64..4_000.0) {
        let mut request = request(QWEN_32B, "h100-sxm", 2);
        request.targets.itl_s = itl_ms / 1e3;
        request.targets.ttft_s = ttft_ms / 1e3;
        let worker = WorkerShape { engine: EngineKind::Vllm, tensor: 2, pipeline: 1, data: 1 };
        let fit = fit(&request, worker).expect("two GPUs hold the model");
        let holds = |batch: u32| {
            let load = fit.load(&request.traffic, batch);
            load.itl_s <= request.targets.itl_bound_s() && load.ttft_s <= request.targets.ttft_bound_s()
        };
        let largest = (1..=fit.batch_max).rev().find(|batch| holds(*batch));
        let found = aggregated(&request, &fit).map(|c| c.layout.answering().batch_max);
        prop_assert_eq!(found, largest);
    }
}

#[test]
fn measured_times_stand_in_the_place_of_the_coefficients() {
    let mut request = request(QWEN_32B, "h100-sxm", 8);
    let timing = stator_timing::Timing {
        step_s: 0.02,
        token_s: 1e-4,
        prefill_pair_s: 0.0,
        decode_kv_token_s: 0.0,
    };
    request.profiles = vec![EngineProfile {
        version: stator_timing::PROFILE_VERSION,
        model: "m".to_owned(),
        gpus: 2,
        step_tokens: 8_192,
        prefill: Vec::new(),
        decode: Vec::new(),
        timing,
        overhead_s: 0.0,
        mean_error: 0.0,
        max_error: 0.0,
    }];
    let found = search(&request);
    assert!(!found.candidates.is_empty());
    for Candidate { layout, estimate } in &found.candidates {
        let group = layout.answering();
        assert_eq!((group.worker.tensor, group.worker.gpus()), (2, 2), "{layout:?}");
        assert!(estimate.itl_s >= 0.02 && estimate.ttft_s >= 0.42, "{estimate:?}");
    }
}
