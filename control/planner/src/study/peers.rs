//! Laws of other planners, written from their documents.
//!
//! | law | of |
//! | --- | --- |
//! | [`DynamoSla`] | NVIDIA Dynamo 1.6's planner with `optimization_target: sla`: a forecast each 180 s, a correction each 5 s |
//! | [`KedaLaw`] | llm-d's guide: KEDA on the larger of two 90th percentiles over their targets |
//! | [`PercentLaw`] | llm-d's autoscaler, its default analyzer by percentages |
//! | [`HpaLaw`] | Kubernetes' HorizontalPodAutoscaler on requests in flight |

use super::own::WORKERS_MAX;
use super::replay::{ScalingLaw, StudyCase};
use crate::capacity::{Demand, WorkerModel};
use crate::observation::{Observation, WorkerSignal};
use crate::predict::{LoadPredictor, PredictorSettings};
use crate::replicas::Replicas;
use crate::traffic::TrafficWindow;
use stator_protos::discovery::Role;
use std::collections::VecDeque;

/// Seconds between two forecasts of Dynamo's planner.
const THROUGHPUT_INTERVAL_S: f64 = 180.0;
/// Share of a target that may be used after a worker has left. Source: its default
/// `load_scaling_down_sensitivity`.
const DOWN_SENSITIVITY: f64 = 0.8;

/// Dynamo's planner for latency targets.
#[derive(Debug)]
pub struct DynamoSla {
    roles: Vec<Role>,
    model: WorkerModel,
    targets: crate::capacity::SlaTargets,
    traffic: TrafficWindow,
    next_forecast_s: f64,
    /// Workers below which corrections do not go.
    floor: Replicas,
}

impl DynamoSla {
    /// Its planner with its defaults, and an engine model without error.
    pub fn new(case: &StudyCase) -> Self {
        Self {
            roles: case.roles.clone(),
            model: case.model(),
            targets: case.targets,
            traffic: TrafficWindow::new(
                THROUGHPUT_INTERVAL_S,
                PredictorSettings {
                    kind: LoadPredictor::Arima,
                    log1p: false,
                    noise: None,
                    season_s: 86_400.0,
                },
                150.0,
            ),
            next_forecast_s: 0.0,
            floor: Replicas::from_fn(|role| u32::from(case.roles.contains(&role))),
        }
    }

    /// Workers for the forecast demand.
    fn forecast(&mut self, observation: &Observation) {
        if let Some(totals) = observation.traffic {
            self.traffic.observe(observation.at_s, totals);
        }
        let rate = self.traffic.forecast(THROUGHPUT_INTERVAL_S).rate;
        let Some(demand) = self.traffic.demand(rate) else { return };
        for role in &self.roles {
            let workers = (rate / self.engine_rate(*role, &demand)).ceil() as u32;
            let had = self.floor.of(*role);
            let workers = workers.clamp(had.saturating_sub(8), had + 8);
            self.floor.set(*role, workers.clamp(1, WORKERS_MAX));
        }
    }

    /// Requests a second of one worker at the best batch that holds the target.
    fn engine_rate(&self, role: Role, demand: &Demand) -> f64 {
        let timing = &self.model.timing;
        let prompt_s = self.model.prompt_s(demand);
        let context = demand.computed_tokens + demand.cached_tokens + demand.output_tokens / 2.0;
        let mut best = f64::MIN_POSITIVE;
        for batch in (1..=128).map(|step| self.model.batch_max * f64::from(step) / 128.0) {
            let rate = match role {
                Role::Prefill => {
                    let tokens = batch * demand.computed_tokens;
                    let ttft_s = timing.step_s + batch * prompt_s;
                    let fits = tokens <= self.model.step_tokens || batch <= 1.0;
                    let holds = ttft_s <= self.targets.ttft_s;
                    if fits && holds { batch / ttft_s } else { 0.0 }
                }
                _ => {
                    // Workers that do both compute their share of prompts in every step.
                    let prompts = match role {
                        Role::Decode => 0.0,
                        _ => batch / demand.output_tokens * prompt_s,
                    };
                    let sequence_s = timing.token_s + timing.decode_kv_token_s * context;
                    let itl_s = timing.step_s + batch * sequence_s + prompts;
                    let fits = batch * context <= self.model.kv_tokens;
                    let holds = itl_s <= self.targets.itl_s;
                    if fits && holds { batch / (demand.output_tokens * itl_s) } else { 0.0 }
                }
            };
            best = best.max(rate);
        }
        best
    }

    /// The step of one role by the latencies that its workers' queues and batches make.
    fn correct(&self, role: Role, observation: &Observation) -> u32 {
        let ordered = observation.ordered.of(role);
        let workers: Vec<&WorkerSignal> = observation.up(role).collect();
        let Some(demand) = self.traffic.demand(0.0) else { return ordered };
        if workers.is_empty() || workers.len() as u32 != ordered {
            return ordered;
        }
        let own_s = self.model.prompt_s(&demand) + self.model.timing.step_s;
        let token_s = self.model.prompt_s(&demand) / demand.computed_tokens.max(1.0);
        let queue_s = |worker: &WorkerSignal| worker.load.pending_prefill_tokens as f64 * token_s;
        let itl_s = |worker: &WorkerSignal, factor: f64| {
            let blocks = f64::from(worker.load.used_blocks);
            let kv = blocks * self.model.kv_tokens / f64::from(worker.load.total_blocks.max(1));
            let timing = &self.model.timing;
            let batch = f64::from(worker.load.running) * factor;
            timing.step_s + timing.token_s * batch + timing.decode_kv_token_s * kv * factor
        };
        let (first, gaps) = (role != Role::Decode, role != Role::Prefill);
        let late_first = workers.iter().all(|worker| own_s + queue_s(worker) > self.targets.ttft_s);
        let late_gaps = workers.iter().all(|worker| itl_s(worker, 1.0) > self.targets.itl_s);
        if (first && late_first) || (gaps && late_gaps) {
            return ordered + 1;
        }
        if ordered < 2 {
            return ordered;
        }
        let factor = f64::from(ordered) / f64::from(ordered - 1);
        let safe = workers.iter().all(|worker| {
            let room_s = (self.targets.ttft_s - own_s) * DOWN_SENSITIVITY;
            let first_safe = !first || queue_s(worker) * factor < room_s;
            let used = f64::from(worker.load.used_blocks) * factor;
            let gaps_safe = !gaps
                || (itl_s(worker, factor) < self.targets.itl_s * DOWN_SENSITIVITY
                    && used < f64::from(worker.load.total_blocks));
            first_safe && gaps_safe
        });
        if safe { ordered - 1 } else { ordered }
    }
}

impl ScalingLaw for DynamoSla {
    fn name(&self) -> &str {
        "Dynamo sla"
    }

    fn wanted(&mut self, observation: &Observation) -> Replicas {
        if observation.at_s >= self.next_forecast_s {
            self.next_forecast_s = observation.at_s + THROUGHPUT_INTERVAL_S;
            self.forecast(observation);
        }
        let mut wanted = observation.ordered;
        // No decision is made while workers are on their way.
        let starting = self
            .roles
            .iter()
            .any(|role| observation.count_up(*role) != observation.ordered.of(*role));
        if !starting {
            for role in &self.roles {
                let workers = self.correct(*role, observation);
                wanted.set(*role, workers.max(self.floor.of(*role)).min(WORKERS_MAX));
            }
        }
        wanted
    }
}

/// A number that a controller wants, held back by its window and its policies.
#[derive(Debug, Default)]
struct Stabilised {
    recent: VecDeque<(f64, u32)>,
    changed_up_s: Option<f64>,
    changed_down_s: Option<f64>,
}

/// Behaviour of a HorizontalPodAutoscaler.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    up_window_s: f64,
    up_period_s: f64,
    down_window_s: f64,
    down_period_s: f64,
    /// Most workers that leave at a time; none for all.
    down_most: Option<u32>,
}

impl Stabilised {
    fn next(&mut self, at_s: f64, has: u32, wants: u32, behaviour: Behaviour) -> u32 {
        self.recent.push_back((at_s, wants));
        let longest = behaviour.up_window_s.max(behaviour.down_window_s);
        while self.recent.front().is_some_and(|(then, _)| at_s - then > longest) {
            self.recent.pop_front();
        }
        let within = |window_s: f64| {
            let recent = self.recent.iter().filter(move |(then, _)| at_s - then <= window_s);
            recent.map(|(_, wants)| *wants)
        };
        // Up by the least, down by the most that was wanted in the window.
        let up = within(behaviour.up_window_s).min().unwrap_or(wants);
        let down = within(behaviour.down_window_s).max().unwrap_or(wants);
        let ready =
            |then: Option<f64>, period_s: f64| then.is_none_or(|then| at_s - then >= period_s);
        if up > has && ready(self.changed_up_s, behaviour.up_period_s) {
            self.changed_up_s = Some(at_s);
            return up.min((2 * has).max(has + 4)).min(WORKERS_MAX);
        }
        if down < has && ready(self.changed_down_s, behaviour.down_period_s) {
            self.changed_down_s = Some(at_s);
            let most = behaviour.down_most.unwrap_or(has);
            return down.max(has.saturating_sub(most)).max(1);
        }
        has
    }
}

/// llm-d's law with stock KEDA.
#[derive(Debug)]
pub struct KedaLaw {
    roles: Vec<Role>,
    targets: crate::capacity::SlaTargets,
    next_s: f64,
    pods: Vec<Stabilised>,
}

impl KedaLaw {
    const BEHAVIOUR: Behaviour = Behaviour {
        up_window_s: 30.0,
        up_period_s: 60.0,
        down_window_s: 180.0,
        down_period_s: 120.0,
        down_most: Some(1),
    };

    /// The guide's thresholds.
    pub fn new(case: &StudyCase) -> Self {
        let pods = case.roles.iter().map(|_| Stabilised::default()).collect();
        Self { roles: case.roles.clone(), targets: case.targets, next_s: 0.0, pods }
    }
}

impl ScalingLaw for KedaLaw {
    fn name(&self) -> &str {
        "KEDA (llm-d)"
    }

    fn wanted(&mut self, observation: &Observation) -> Replicas {
        let mut wanted = observation.ordered;
        if observation.at_s < self.next_s {
            return wanted;
        }
        self.next_s = observation.at_s + 15.0;
        for (role, pods) in self.roles.iter().zip(&mut self.pods) {
            let share = observation.latency.map_or(0.0, |sample| {
                let first = sample.ttft_p90_s / self.targets.ttft_s;
                let gaps = sample.itl_p90_s / self.targets.itl_s;
                let both = match role {
                    Role::Prefill => first,
                    Role::Decode => gaps,
                    _ => first.max(gaps),
                };
                both.min(2.0)
            });
            let has = observation.ordered.of(*role);
            let (n, ready) = (f64::from(has), f64::from(observation.count_up(*role)));
            let wants = if share > 0.55 {
                n + (n * (share * ready / n / 0.55 - 1.0)).ceil().max(0.0)
            } else if share < 0.40 {
                n - (n * (1.0 - share / 0.40)).floor()
            } else {
                n
            };
            let wants = (wants as u32).clamp(1, WORKERS_MAX);
            wanted.set(*role, pods.next(observation.at_s, has, wants, Self::BEHAVIOUR));
        }
        wanted
    }
}

/// llm-d's autoscaler with its default analyzer.
#[derive(Debug)]
pub struct PercentLaw {
    roles: Vec<Role>,
    next_s: f64,
}

impl PercentLaw {
    /// The defaults.
    pub fn new(case: &StudyCase) -> Self {
        Self { roles: case.roles.clone(), next_s: 0.0 }
    }

    /// Mean spare KV and queue of the workers that are not saturated, if their load grew so.
    fn spare(workers: &[&WorkerSignal], factor: f64) -> Option<(f64, f64)> {
        let each = workers.iter().map(|worker| {
            let used = f64::from(worker.load.used_blocks);
            let kv = used / f64::from(worker.load.total_blocks.max(1)) * factor;
            (kv, f64::from(worker.load.waiting) * factor)
        });
        let free: Vec<_> = each.filter(|(kv, queue)| *kv < 0.8 && *queue < 5.0).collect();
        let count = free.len() as f64;
        let sum = free
            .iter()
            .fold((0.0, 0.0), |(kv, queue), one| (kv + 0.8 - one.0, queue + 5.0 - one.1));
        (count > 0.0).then_some((sum.0 / count, sum.1 / count))
    }
}

impl ScalingLaw for PercentLaw {
    fn name(&self) -> &str {
        "llm-d percent"
    }

    fn wanted(&mut self, observation: &Observation) -> Replicas {
        let mut wanted = observation.ordered;
        if observation.at_s < self.next_s {
            return wanted;
        }
        self.next_s = observation.at_s + 30.0;
        for role in &self.roles {
            let workers: Vec<&WorkerSignal> = observation.up(*role).collect();
            let has = observation.ordered.of(*role);
            if workers.len() as u32 != has {
                continue;
            }
            let enough = |spare: Option<(f64, f64)>| {
                spare.is_some_and(|(kv, queue)| kv >= 0.10 && queue >= 3.0)
            };
            let after = f64::from(has) / f64::from(has.saturating_sub(1).max(1));
            if !enough(Self::spare(&workers, 1.0)) {
                wanted.set(*role, (has + 1).min(WORKERS_MAX));
            } else if has >= 2 && enough(Self::spare(&workers, after)) {
                wanted.set(*role, has - 1);
            }
        }
        wanted
    }
}

/// A HorizontalPodAutoscaler on requests in flight.
#[derive(Debug)]
pub struct HpaLaw {
    roles: Vec<Role>,
    /// Requests in flight of one worker, by role.
    targets: Vec<f64>,
    next_s: f64,
    pods: Vec<Stabilised>,
}

impl HpaLaw {
    const BEHAVIOUR: Behaviour = Behaviour {
        up_window_s: 0.0,
        up_period_s: 15.0,
        down_window_s: 300.0,
        down_period_s: 15.0,
        down_most: None,
    };

    /// The default behaviour; its target is what a worker has in flight at the demand that it just
    /// holds, as the engine model says.
    pub fn new(case: &StudyCase, demand: &Demand) -> Self {
        let target = |role: &Role| {
            let model = case.model();
            let per_worker = |rate: f64| Demand { rate, ..*demand };
            let rates = (1..=400).map(|step| f64::from(step) * 0.05);
            let holds = |rate: &f64| {
                let estimate = model.estimate(*role, &per_worker(*rate), 1, &case.targets);
                estimate.attained >= case.targets.attainment
            };
            let rate = rates.take_while(holds).last().unwrap_or(0.05);
            let estimate = model.estimate(*role, &per_worker(rate), 1, &case.targets);
            let held_s = estimate.ttft_s + estimate.itl_s * demand.output_tokens;
            // Little's law.
            (rate * held_s).max(1.0)
        };
        Self {
            targets: case.roles.iter().map(target).collect(),
            pods: case.roles.iter().map(|_| Stabilised::default()).collect(),
            roles: case.roles.clone(),
            next_s: 0.0,
        }
    }
}

impl ScalingLaw for HpaLaw {
    fn name(&self) -> &str {
        "HPA"
    }

    fn wanted(&mut self, observation: &Observation) -> Replicas {
        let mut wanted = observation.ordered;
        if observation.at_s < self.next_s {
            return wanted;
        }
        self.next_s = observation.at_s + 15.0;
        for ((role, target), pods) in self.roles.iter().zip(&self.targets).zip(&mut self.pods) {
            let workers = observation.up(*role);
            let flight: u32 = workers.map(|of| of.load.running + of.load.waiting).sum();
            let has = observation.ordered.of(*role);
            let ready = f64::from(observation.count_up(*role).max(1));
            let ratio = f64::from(flight) / ready / target;
            let wants = match ratio {
                ratio if (0.9..=1.1).contains(&ratio) => has,
                ratio => (ready * ratio).ceil() as u32,
            };
            let wants = wants.clamp(1, WORKERS_MAX);
            wanted.set(*role, pods.next(observation.at_s, has, wants, Self::BEHAVIOUR));
        }
        wanted
    }
}
