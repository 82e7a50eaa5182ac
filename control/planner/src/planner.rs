//! The planner of one graph: signals in, wanted replicas out. It reads no clock and does no I/O.
//!
//! A planner never waits for a change to be over: every decision looks at the workers that are up
//! and at those that are ordered. Start reading at [`Planner::tick`].

use crate::capacity::WorkerModel;
use crate::law::sla::{RoleView, SlaNeed};
use crate::law::threshold::{self, ThresholdStep};
use crate::observation::{Observation, WorkerSignal};
use crate::replicas::Replicas;
use crate::settings::{Law, PlannerSettings, SlaLaw};
use crate::traffic::TrafficWindow;
use crate::warmup::Warmups;
use serde::Serialize;
use stator_protos::discovery::Role;
use std::collections::VecDeque;

/// Time over which the largest need keeps a worker: a part of the start-up time, and at least so many
/// seconds.
const SETTLE_SHARE: f64 = 0.33;
const SETTLE_MIN_S: f64 = 15.0;
/// Time without changes after which latencies say something of the engine, seconds.
const CALM_S: f64 = 60.0;
/// Requests of a latency sample that says something.
const SAMPLE_MIN: f64 = 20.0;
/// Limits of the factor on the demand, and its largest growth and shrinkage in one decision.
const TRIM: std::ops::RangeInclusive<f64> = 0.85..=1.25;
const TRIM_UP: f64 = 0.02;
const TRIM_DOWN: f64 = 0.005;

/// Reason of a decision for one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// The workers are those that are needed.
    NoChange,
    /// More are needed.
    ScaleUp,
    /// Fewer are needed.
    ScaleDown,
    /// The workers that stay could not take the load.
    ScaleDownRefused,
    /// Too few requests came to know what they need.
    InsufficientData,
    /// Ordered workers are on their way, or every worker is new.
    ScalingInProgress,
    /// Ordered workers did not come: no more are ordered.
    PendingExpired,
    /// Somebody else set the number.
    Pinned,
    /// The budget allows no other number.
    Budget,
}

impl DecisionReason {
    /// Its name in logs, metrics and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoChange => "no_change",
            Self::ScaleUp => "scale_up",
            Self::ScaleDown => "scale_down",
            Self::ScaleDownRefused => "scale_down_refused",
            Self::InsufficientData => "insufficient_data",
            Self::ScalingInProgress => "scaling_in_progress",
            Self::PendingExpired => "pending_expired",
            Self::Pinned => "pinned",
            Self::Budget => "budget",
        }
    }
}

/// A decision for one graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Wanted replicas.
    pub wanted: Replicas,
    /// The graph's roles, each with its reason.
    pub roles: Vec<RoleDecision>,
}

/// Decision for one role.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoleDecision {
    /// The role.
    pub role: Role,
    /// Its wanted workers.
    pub wanted: u32,
    /// The reason.
    pub reason: DecisionReason,
    /// Need by latency targets; none with other laws, or if too little is known.
    #[serde(skip)]
    pub need: Option<SlaNeed>,
}

/// The planner of one graph.
#[derive(Clone, Debug)]
pub struct Planner {
    settings: PlannerSettings,
    traffic: TrafficWindow,
    roles: Vec<RolePlan>,
    /// The replicas that were asked for last.
    asked: Option<Replicas>,
    /// End of a pin, seconds.
    pinned_until_s: f64,
    /// Time of the last sign of a request, seconds.
    active_s: Option<f64>,
}

/// State of one role.
#[derive(Clone, Debug)]
struct RolePlan {
    role: Role,
    warmups: Warmups,
    up: Option<u32>,
    ordered: Option<u32>,
    trim: f64,
    /// Share of requests within the targets that the model told last.
    predicted: Option<f64>,
    /// Recent upper needs, with their times.
    recent: VecDeque<(f64, u32)>,
    /// Times of the last change, and of the last growth, seconds.
    changed_s: f64,
    grown_s: f64,
}

impl Planner {
    /// A planner that has seen nothing.
    pub fn new(settings: PlannerSettings) -> Self {
        let role = |role: &Role| RolePlan {
            role: *role,
            warmups: Warmups::new(settings.warmup),
            up: None,
            ordered: None,
            trim: 1.0,
            predicted: None,
            recent: VecDeque::new(),
            changed_s: f64::NEG_INFINITY,
            grown_s: f64::NEG_INFINITY,
        };
        Self {
            roles: settings.graph.roles.iter().map(role).collect(),
            traffic: TrafficWindow::new(
                settings.interval_s,
                settings.predictor.clone(),
                settings.output_tokens,
            ),
            settings,
            asked: None,
            pinned_until_s: f64::NEG_INFINITY,
            active_s: None,
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &PlannerSettings {
        &self.settings
    }

    /// Teaches the seasonal predictor an earlier season, by the times of its arrivals in seconds.
    pub fn warm_up(&mut self, arrivals_s: impl IntoIterator<Item = f64>) {
        self.traffic.warm_up(arrivals_s);
    }

    /// Takes signals in and decides.
    pub fn tick(&mut self, observation: &Observation) -> Decision {
        let at_s = observation.at_s;
        self.read(observation);
        let pinned = self.settings.pin_s > 0.0 && at_s < self.pinned_until_s;
        let idle = self.active_s.is_none_or(|active| at_s - active >= self.settings.idle_s);
        let mut roles = Vec::with_capacity(self.roles.len());
        for plan in &mut self.roles {
            let ordered = observation.ordered.of(plan.role);
            let mut decision = match &self.settings.law {
                _ if pinned => plan.keeps(ordered, DecisionReason::Pinned),
                Law::Thresholds(thresholds) => {
                    let cold_s = self.settings.cold_s;
                    let warm = |worker: &&WorkerSignal| worker.up_s >= cold_s;
                    let workers = observation.up(plan.role).filter(warm);
                    let step = threshold::decide(plan.role, thresholds, observation.sizes, workers);
                    plan.by_step(step, observation, self.settings.pending_s)
                }
                Law::Sla(law) => plan.by_need(law, &self.settings, &self.traffic, observation),
            };
            if !pinned {
                decision = bounded(&self.settings, decision, observation, idle);
            }
            if decision.wanted != ordered {
                plan.changed_s = at_s;
            }
            if decision.wanted > ordered {
                plan.grown_s = at_s;
            }
            roles.push(decision);
        }
        let mut wanted = observation.ordered;
        roles.iter().for_each(|decision| wanted.set(decision.role, decision.wanted));
        self.asked = Some(wanted);
        Decision { wanted, roles }
    }

    /// The budget left these replicas of the last decision.
    pub fn granted(&mut self, replicas: Replicas) {
        self.asked = Some(replicas);
    }

    /// Takes signals in.
    fn read(&mut self, observation: &Observation) {
        let at_s = observation.at_s;
        // A number that is neither the last one asked for nor the one before it came by hand.
        let before = Replicas::from_fn(|role| {
            let plan = self.roles.iter().find(|plan| plan.role == role);
            plan.and_then(|plan| plan.ordered).unwrap_or(observation.ordered.of(role))
        });
        let by_hand =
            |asked: Replicas| asked != observation.ordered && before != observation.ordered;
        if self.asked.is_some_and(by_hand) {
            self.pinned_until_s = at_s + self.settings.pin_s;
        }
        // A graph whose workers cannot be seen is not idle.
        let blind = observation.workers.is_empty()
            && observation.ordered != Replicas::default()
            && observation.traffic.is_none();
        let busy = blind || observation.held > 0 || !observation.workers.iter().all(is_idle);
        let counted = self.traffic.requests();
        let came =
            observation.traffic.zip(counted).is_some_and(|(now, before)| now.requests != before);
        // A planner that has just begun knows of no silence.
        if busy || came || self.active_s.is_none() {
            self.active_s = Some(at_s);
        }
        if let Some(totals) = observation.traffic {
            self.traffic.observe(at_s, totals);
        }
        for plan in &mut self.roles {
            plan.read(observation);
            if let Law::Sla(law) = &self.settings.law {
                plan.learn(law, observation);
            }
        }
    }
}

impl RolePlan {
    /// Takes in the workers that are up and those that are ordered.
    fn read(&mut self, observation: &Observation) {
        let at_s = observation.at_s;
        let (up, ordered) = (observation.count_up(self.role), observation.ordered.of(self.role));
        if let Some(before) = self.ordered.replace(ordered) {
            self.warmups.resized(before, ordered, at_s);
        }
        if let Some(before) = self.up.replace(up) {
            self.warmups.came(up.saturating_sub(before), at_s);
        }
    }

    /// Learns from measured latencies whether the engine is slower or faster than its model says.
    /// While workers come, go or are new, latencies say something about that instead.
    fn learn(&mut self, law: &SlaLaw, observation: &Observation) {
        let Some(sample) = observation.latency else { return };
        let ordered = observation.ordered.of(self.role);
        let settled = observation.at_s - self.changed_s > CALM_S
            && observation.count_up(self.role) == ordered;
        if !settled || sample.requests < SAMPLE_MIN {
            return;
        }
        let good = match self.role {
            Role::Prefill => sample.ttft_good,
            Role::Decode => sample.itl_good,
            _ => sample.ttft_good * sample.itl_good,
        };
        let Some(predicted) = self.predicted else { return };
        let target = law.targets_of(self.role).attainment;
        let factor = match (predicted >= target, good >= target) {
            (true, false) => 1.0 + TRIM_UP * ((target - good) / (1.0 - target)).min(1.0),
            (false, true) => 1.0 - TRIM_DOWN,
            // The model is right, as far as this load can tell.
            _ => 1.0,
        };
        self.trim = (self.trim * factor).clamp(*TRIM.start(), *TRIM.end());
    }

    fn keeps(&self, workers: u32, reason: DecisionReason) -> RoleDecision {
        RoleDecision { role: self.role, wanted: workers, reason, need: None }
    }

    /// Whether ordered workers have been on their way for too long to count on them.
    fn expired(&self, at_s: f64, pending_s: f64) -> bool {
        self.warmups.waited_s(at_s) > pending_s
    }

    fn by_step(
        &self,
        step: ThresholdStep,
        observation: &Observation,
        pending_s: f64,
    ) -> RoleDecision {
        let ordered = observation.ordered.of(self.role);
        let starting = observation.count_up(self.role) < ordered;
        let reason = match step {
            ThresholdStep::Up if self.expired(observation.at_s, pending_s) => {
                DecisionReason::PendingExpired
            }
            ThresholdStep::Up if starting => DecisionReason::ScalingInProgress,
            ThresholdStep::Up => DecisionReason::ScaleUp,
            ThresholdStep::Down => DecisionReason::ScaleDown,
            ThresholdStep::Refused => DecisionReason::ScaleDownRefused,
            ThresholdStep::Hold => DecisionReason::NoChange,
        };
        let wanted = match reason {
            DecisionReason::ScaleUp => ordered + 1,
            DecisionReason::ScaleDown => ordered.saturating_sub(1),
            _ => ordered,
        };
        self.keeps(wanted, reason)
    }

    fn by_need(
        &mut self,
        law: &SlaLaw,
        settings: &PlannerSettings,
        traffic: &TrafficWindow,
        observation: &Observation,
    ) -> RoleDecision {
        let (at_s, ordered) = (observation.at_s, observation.ordered.of(self.role));
        let warmup_s = self.warmups.expected_s(at_s);
        // Workers say themselves how much KV they have room for.
        let blocks = observation.up(self.role).map(|worker| worker.load.total_blocks).max();
        let room = f64::from(blocks.unwrap_or(0)) * observation.sizes.block_tokens;
        let known = law.model(self.role);
        let kv_tokens = if room > 0.0 { room } else { known.kv_tokens };
        let model = WorkerModel { kv_tokens, ..*known };
        let view = RoleView {
            role: self.role,
            model: &model,
            targets: law.targets_of(self.role),
            traffic,
            observation,
            interval_s: settings.interval_s,
            warmup_s,
            waited_s: self.warmups.waited_s(at_s),
            trim: self.trim,
        };
        let need = view.need();
        self.predicted = need.map(|need| need.estimate.attained);
        let Some(SlaNeed { least, most, .. }) = need else {
            // Without requests there is nothing to know, and nothing to do.
            let idle = observation.held == 0 && observation.workers.iter().all(is_idle);
            let quiet = idle && traffic.is_quiet();
            let workers = if quiet { 0 } else { ordered };
            let reason = match workers < ordered {
                true => DecisionReason::ScaleDown,
                false => DecisionReason::InsufficientData,
            };
            return self.keeps(workers, reason);
        };
        let settle_s = SETTLE_MIN_S.max(SETTLE_SHARE * warmup_s);
        self.recent.push_back((at_s, most));
        while self.recent.front().is_some_and(|(then, _)| at_s - then > settle_s) {
            self.recent.pop_front();
        }
        let kept = self.recent.iter().map(|(_, most)| *most).max().unwrap_or(most);
        let (wanted, reason) = match ordered {
            _ if least > ordered && self.expired(at_s, settings.pending_s) => {
                (ordered, DecisionReason::PendingExpired)
            }
            _ if least > ordered => (least, DecisionReason::ScaleUp),
            // A worker that has just been ordered is not sent away again.
            _ if kept < ordered && at_s - self.grown_s <= warmup_s => {
                (ordered, DecisionReason::ScalingInProgress)
            }
            _ if kept < ordered => match fits(self.role, observation, kept) {
                true => (kept, DecisionReason::ScaleDown),
                false => (ordered, DecisionReason::ScaleDownRefused),
            },
            _ => (ordered, DecisionReason::NoChange),
        };
        RoleDecision { role: self.role, wanted, reason, need }
    }
}

/// A decision within the graph's limits.
fn bounded(
    settings: &PlannerSettings,
    decision: RoleDecision,
    observation: &Observation,
    idle: bool,
) -> RoleDecision {
    let (role, graph) = (decision.role, &settings.graph);
    let ordered = observation.ordered.of(role);
    let step = graph.step_max;
    // The last worker goes only after a long silence, and a request that waits calls one back.
    let rests = graph.min.of(role) == 0 && observation.held == 0 && (idle || ordered == 0);
    let least = if rests { 0 } else { graph.min.of(role).max(1) };
    let law = if rests && idle { 0 } else { decision.wanted };
    let wanted = law.clamp(ordered.saturating_sub(step), ordered + step);
    let wanted = wanted.clamp(least, graph.max.of(role).max(least));
    let reason = match wanted.cmp(&ordered) {
        std::cmp::Ordering::Greater => DecisionReason::ScaleUp,
        std::cmp::Ordering::Less => DecisionReason::ScaleDown,
        // A limit stands against what the law wants.
        std::cmp::Ordering::Equal if decision.wanted != ordered => DecisionReason::NoChange,
        std::cmp::Ordering::Equal => decision.reason,
    };
    RoleDecision { wanted, reason, ..decision }
}

fn is_idle(worker: &WorkerSignal) -> bool {
    worker.load.running == 0 && worker.load.waiting == 0
}

/// Whether so many workers of a role could hold the KV of all that the role's workers hold now.
fn fits(role: Role, observation: &Observation, workers: u32) -> bool {
    let (mut used, mut total, mut count) = (0.0, 0.0, 0.0);
    for worker in observation.up(role) {
        used += f64::from(worker.load.used_blocks);
        total += f64::from(worker.load.total_blocks);
        count += 1.0;
    }
    // Workers that are not up yet hold nothing and are no reason to stay.
    let after = f64::from(workers).min(count);
    used == 0.0 || used <= 0.9 * total * after / f64::max(count, 1.0)
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
