//! Decisions on signals that are written down; the issues that each stands for are in the comments.

use super::*;
use crate::capacity::{SlaTargets, WorkerModel};
use crate::law::threshold::Thresholds;
use crate::observation::{LatencySample, RequestSizes, TrafficTotals};
use crate::predict::{LoadPredictor, PredictorSettings};
use crate::settings::GraphSettings;
use crate::warmup::WarmupSettings;
use stator_protos::load::Load;
use stator_timing::Timing;

const TARGETS: SlaTargets = SlaTargets { ttft_s: 0.5, itl_s: 0.05, attainment: 0.96 };

fn workers(aggregated: u32) -> Replicas {
    Replicas { aggregated, ..Replicas::default() }
}

fn by_targets(targets: SlaTargets) -> Law {
    let timing = Timing::preset("h100-llama-8b").expect("a known preset");
    let model =
        WorkerModel { timing, kv_tokens: 400_000.0, batch_max: 256.0, step_tokens: 8_192.0 };
    Law::Sla(SlaLaw { targets, prefill: model, decode: model })
}

fn by_thresholds() -> Law {
    Law::Thresholds(Thresholds::THROUGHPUT)
}

fn settings(law: Law) -> PlannerSettings {
    PlannerSettings {
        graph: GraphSettings {
            name: "m".to_owned(),
            roles: vec![Role::Aggregated],
            min: workers(1),
            max: workers(32),
            gpus: workers(1),
            step_max: 8,
        },
        law,
        predictor: PredictorSettings {
            kind: LoadPredictor::Adaptive,
            log1p: false,
            noise: None,
            season_s: 86_400.0,
        },
        interval_s: 5.0,
        warmup: WarmupSettings { cold_s: 60.0, cached_s: 60.0, cache_life_s: 600.0 },
        pending_s: 200.0,
        pin_s: 300.0,
        idle_s: 300.0,
        cold_s: 10.0,
        output_tokens: 150.0,
    }
}

/// A fleet whose workers are up and share a load.
struct Scene {
    planner: Planner,
    at_s: f64,
    ordered: u32,
    /// Workers that do not come although they are ordered.
    missing: u32,
    /// Workers that there is room for.
    room: u32,
    up_s: f64,
    load: Load,
    held: u32,
    requests: f64,
    latency: Option<LatencySample>,
}

impl Scene {
    fn new(settings: PlannerSettings, ordered: u32) -> Self {
        Self {
            planner: Planner::new(settings),
            at_s: 0.0,
            ordered,
            missing: 0,
            room: u32::MAX,
            up_s: 1_000.0,
            load: Load { total_blocks: 3_125, ..Load::default() },
            held: 0,
            requests: 0.0,
            latency: None,
        }
    }

    /// Five seconds at this rate; what is decided is done at once.
    fn tick(&mut self, rate: f64) -> RoleDecision {
        self.at_s += 5.0;
        self.requests += 5.0 * rate;
        let (requests, load) = (self.requests, self.load);
        let up = self.ordered.saturating_sub(self.missing).min(self.room);
        let worker =
            WorkerSignal { role: Role::Aggregated, up_s: self.up_s, draining: false, load };
        let decision = self.planner.tick(&Observation {
            at_s: self.at_s,
            sizes: RequestSizes { context_tokens: 8_192.0, block_tokens: 128.0 },
            held: self.held,
            workers: vec![worker; up as usize],
            ordered: workers(self.ordered),
            traffic: Some(TrafficTotals {
                requests,
                prompt_tokens: 3_000.0 * requests,
                prompt_squares: 9e6 * requests,
                cached_tokens: 0.0,
                answers: requests,
                output_tokens: 150.0 * requests,
            }),
            latency: self.latency,
        });
        self.ordered = decision.wanted.aggregated;
        decision.roles[0]
    }

    fn ticks(&mut self, count: u32, rate: f64) -> RoleDecision {
        for _ in 1..count {
            self.tick(rate);
        }
        self.tick(rate)
    }
}

/// llm-d-autoscaling issue 380: a worker was added in each tick without load.
#[test]
fn no_demand_is_no_growth() {
    for law in [by_targets(TARGETS), by_thresholds()] {
        let mut scene = Scene::new(settings(law), 2);
        for _ in 0..200 {
            assert!(scene.tick(0.0).wanted <= 2);
        }
        assert_eq!(scene.ordered, 1);
    }
}

/// Dynamo's issue 10528: the estimate knew the service time and not the queue.
#[test]
fn a_queue_is_seen_where_the_rate_is_low() {
    let mut scene = Scene::new(settings(by_targets(TARGETS)), 1);
    let calm = scene.ticks(30, 2.0).need.expect("there were requests");
    assert_eq!((scene.ordered, calm.least), (1, 1));
    scene.load.pending_prefill_tokens = 6_000_000;
    let busy = scene.tick(2.0);
    let need = busy.need.expect("there were requests");
    assert!(busy.wanted >= 3, "{busy:?}");
    // 6 million tokens take 200 s.
    assert!(need.estimate.ttft_s > 100.0, "{need:?}");
}

/// Dynamo's issue 12430: the first samples of new workers made capacity collapse.
#[test]
fn cold_samples_do_not_count() {
    let mut scene = Scene::new(settings(by_thresholds()), 2);
    scene.load.used_blocks = 3_200;
    scene.up_s = 5.0;
    assert_eq!(scene.tick(1.0).wanted, 2);
    scene.up_s = 20.0;
    assert_eq!(scene.tick(1.0).wanted, 3);
    // Latencies of a fleet that grows teach nothing, and those of a calm one teach slowly.
    let mut scene = Scene::new(settings(by_targets(TARGETS)), 4);
    scene.ticks(30, 20.0);
    let late = LatencySample {
        requests: 100.0,
        ttft_p90_s: 9.0,
        itl_p90_s: 1.0,
        ttft_good: 0.0,
        itl_good: 0.0,
    };
    (scene.latency, scene.missing) = (Some(late), 1);
    scene.ticks(10, 20.0);
    assert_eq!(scene.planner.roles[0].trim, 1.0);
    scene.missing = 0;
    let before = scene.ordered;
    scene.ticks(2, 20.0);
    assert!(scene.planner.roles[0].trim <= 1.05 && scene.ordered <= before + 1);
}

/// Dynamo's issue 11624: replicas were held for ever for a latency that no replica repairs.
#[test]
fn a_latency_that_no_worker_can_hold_holds_no_worker() {
    let mut scene = Scene::new(settings(by_targets(SlaTargets { ttft_s: 0.01, ..TARGETS })), 4);
    let busy = scene.ticks(60, 2.0);
    assert!(busy.need.expect("there were requests").infeasible);
    assert_eq!(busy.wanted, 1);
    scene.ticks(200, 0.0);
    assert_eq!(scene.ordered, 1);
}

/// Dynamo's issue 14251: one pending pod froze all scaling for an hour.
#[test]
fn a_worker_that_never_comes_freezes_nothing() {
    let mut scene = Scene::new(settings(by_targets(TARGETS)), 1);
    let calm = scene.ticks(60, 4.0).wanted;
    scene.room = calm;
    let grown = scene.ticks(20, 20.0).wanted;
    assert!(grown > calm, "{grown}");
    // Workers that do not come are not ordered again, however many are needed.
    scene.ticks(60, 20.0);
    let had = scene.ordered;
    let waits = scene.ticks(20, 50.0);
    assert_eq!((waits.reason, waits.wanted), (DecisionReason::PendingExpired, had));
    // A lower target wins whatever is pending, once the jump is no measure of forecasts any more.
    let fallen = scene.ticks(240, 2.0);
    assert!(fallen.wanted < grown, "{fallen:?}");
}

/// Dynamo's issue 4420: a number set by hand was set back at once.
#[test]
fn a_number_set_by_hand_stays_until_its_pin_expires() {
    let mut scene = Scene::new(settings(by_targets(TARGETS)), 1);
    scene.ticks(60, 2.0);
    scene.ordered = 6;
    let pinned = scene.tick(2.0);
    assert_eq!((pinned.wanted, pinned.reason), (6, DecisionReason::Pinned));
    assert_eq!(scene.ticks(50, 2.0).reason, DecisionReason::Pinned);
    assert_eq!(scene.ticks(30, 2.0).wanted, 1);
}

/// Workers that nobody sees are not idle workers.
#[test]
fn silence_never_takes_the_last_worker_away() {
    let graph = GraphSettings { min: workers(0), ..settings(by_thresholds()).graph };
    let mut planner = Planner::new(PlannerSettings { graph, ..settings(by_thresholds()) });
    for tick in 0..1_000 {
        let at_s = 5.0 * f64::from(tick);
        let seen = Observation { at_s, ordered: workers(5), ..Observation::default() };
        assert_eq!(planner.tick(&seen).wanted, workers(5));
    }
}

#[test]
fn an_idle_graph_goes_to_zero_after_a_while_and_comes_back_for_one_request() {
    for law in [by_targets(TARGETS), by_thresholds()] {
        let graph = GraphSettings { min: workers(0), ..settings(law.clone()).graph };
        let mut scene = Scene::new(PlannerSettings { graph, ..settings(law) }, 2);
        scene.ticks(20, 1.0);
        assert!(scene.ticks(50, 0.0).wanted >= 1);
        assert_eq!(scene.ticks(80, 0.0).wanted, 0);
        assert_eq!(scene.ticks(10, 0.0).wanted, 0);
        scene.held = 1;
        assert_eq!(scene.tick(0.2).wanted, 1);
    }
}

#[test]
fn a_decision_moves_few_workers_and_stays_in_bounds() {
    let graph = GraphSettings { max: workers(6), step_max: 2, ..settings(by_thresholds()).graph };
    let mut scene = Scene::new(PlannerSettings { graph, ..settings(by_targets(TARGETS)) }, 1);
    scene.ticks(10, 60.0);
    assert!(scene.ordered <= 6);
    let mut last = 6;
    for _ in 0..200 {
        let wanted = scene.tick(0.1).wanted;
        assert!(last - wanted.min(last) <= 2);
        last = wanted;
    }
    assert_eq!(last, 1);
}
