//! Scaling by latency targets: the workers that hold them for the demand that is forecast, and for
//! the queue that is there.
//!
//! - The demand counts as long ahead as a worker needs to start: what is ordered later is late.
//! - A queue that outlasts the target is work beside the demand. The part of it that is left when
//!   new workers are up must be gone soon after.
//! - A worker leaves only if the others hold the targets, for a little more than the demand, over
//!   all of the time in which it could not come back.
//! - What "a little more" is, the errors of earlier forecasts say. Where most of them missed, the
//!   workers that the last bursts needed are held.
//! - A request that alone is too slow asks for no worker.

use crate::capacity::{LatencyEstimate, SlaTargets, WorkerModel};
use crate::observation::Observation;
use crate::predict::Forecast;
use crate::traffic::TrafficWindow;
use stator_protos::discovery::Role;

/// Deviations of the forecast that are added to it, for workers that are ordered and for those that
/// stay. Deviations are those that forecasts over this time really had.
const DEVIATIONS: f64 = 0.5;
/// Decisions between a need and the worker: one in which it is ordered, one in which it is seen.
const LEAD_DECISIONS: f64 = 2.0;
/// Times for which the demand is forecast, as parts of the time that a worker takes to come.
const AHEAD: [f64; 4] = [0.0, 0.5, 1.0, 1.5];
/// Utilisation that workers reach while they work off a queue.
const DRAINING: f64 = 0.9;
/// Time in which the rest of a queue is worked off once workers are up: a share of the start-up
/// time, within bounds in seconds.
const DRAIN_SHARE: f64 = 0.5;
const DRAIN_S: std::ops::RangeInclusive<f64> = 10.0..=120.0;

/// A role and all that the law knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoleView<'a> {
    /// The role.
    pub(crate) role: Role,
    /// Its engine.
    pub(crate) model: &'a WorkerModel,
    /// Targets of this role.
    pub(crate) targets: SlaTargets,
    /// The traffic of the graph.
    pub(crate) traffic: &'a TrafficWindow,
    /// The last signals.
    pub(crate) observation: &'a Observation,
    /// Seconds between two decisions.
    pub(crate) interval_s: f64,
    /// Start-up time of the next worker, seconds.
    pub(crate) warmup_s: f64,
    /// Time for which ordered workers have been on their way, seconds.
    pub(crate) waited_s: f64,
    /// Factor on the demand, learnt from the latencies that were measured.
    pub(crate) trim: f64,
}

/// Workers that a role needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlaNeed {
    /// Fewer must be made up for now.
    pub least: u32,
    /// More may leave.
    pub most: u32,
    /// Whether no number of workers holds the targets.
    pub infeasible: bool,
    /// Latencies of the present demand on the workers that are up, the queue in front of them
    /// included.
    pub estimate: LatencyEstimate,
}

impl RoleView<'_> {
    /// The workers that the role needs; none if too little is known of its requests.
    pub(crate) fn need(&self) -> Option<SlaNeed> {
        let up = self.observation.count_up(self.role);
        let present = self.traffic.demand(self.rate(0.0))?;
        let mut estimate = self.model.estimate(self.role, &present, up, &self.targets);
        let mut need = SlaNeed { least: 0, most: 0, infeasible: false, estimate };
        let lead_s = self.warmup_s + LEAD_DECISIONS * self.interval_s;
        for share in AHEAD {
            let forecast = self.traffic.forecast(share * lead_s);
            let expected = self.traffic.demand(self.careful(forecast))?;
            let sizing = self.model.size(self.role, &expected, &self.targets);
            // A worker that is needed later than it takes to start can be ordered later.
            if share <= 1.0 {
                need.least = need.least.max(sizing.workers);
            }
            need.most = need.most.max(sizing.workers);
            need.infeasible |= sizing.infeasible;
        }
        let queue_s = self.queue_s();
        let request_s = self.model.request_s(self.role, &present);
        let spare = f64::from(up) * DRAINING - self.rate(0.0) * request_s;
        let cleared_s = if spare > 0.0 { queue_s / spare } else { f64::INFINITY };
        if queue_s > 0.0 {
            estimate.ttft_s += cleared_s;
        }
        if queue_s > 0.0 && cleared_s > self.targets.ttft_s {
            need.least = need.least.max(self.drain(queue_s, up, request_s));
        }
        need.most = need.most.max(need.least);
        Some(SlaNeed { estimate, ..need })
    }

    /// The rate a while from now.
    fn rate(&self, ahead_s: f64) -> f64 {
        self.traffic.forecast(ahead_s).rate * self.trim
    }

    /// The rate of a forecast and a part of its deviation more; where bursts come that nobody foresees, the
    /// rate that they bring.
    fn careful(&self, forecast: Forecast) -> f64 {
        let more = DEVIATIONS * forecast.deviation;
        (forecast.rate + more.max(forecast.surge)) * self.trim
    }

    /// Seconds of arithmetic that wait.
    fn queue_s(&self) -> f64 {
        let Some(demand) = self.traffic.demand(0.0) else { return 0.0 };
        let held = f64::from(self.observation.held) * self.model.request_s(self.role, &demand);
        if self.role == Role::Decode {
            let workers = self.observation.up(self.role);
            let waiting: u32 = workers.map(|worker| worker.load.waiting).sum();
            return held + f64::from(waiting) * self.model.request_s(self.role, &demand);
        }
        let token_s = self.model.prompt_s(&demand) / demand.computed_tokens.max(1.0);
        held + self.observation.pending_prompt_tokens(self.role) * token_s
    }

    /// Workers that hold the demand and work off the part of a queue that is left when the next
    /// workers are up.
    fn drain(&self, queue_s: f64, up: u32, request_s: f64) -> u32 {
        let wait_s = (self.warmup_s - self.waited_s).max(0.0);
        let meanwhile = self.rate(wait_s / 2.0) * request_s;
        let left_s = queue_s - (f64::from(up) * DRAINING - meanwhile) * wait_s;
        let drain_s = (DRAIN_SHARE * self.warmup_s).clamp(*DRAIN_S.start(), *DRAIN_S.end());
        let work = self.rate(wait_s) * request_s + left_s.max(0.0) / drain_s;
        (work / DRAINING).ceil() as u32
    }
}
