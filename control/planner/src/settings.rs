//! Checked settings of the planner.

use crate::capacity::{SlaTargets, WorkerModel};
use crate::law::threshold::Thresholds;
use crate::predict::PredictorSettings;
use crate::replicas::Replicas;
use crate::warmup::WarmupSettings;
use stator_protos::discovery::Role;

/// Settings of one graph's planner.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerSettings {
    /// Roles of the graph, and its limits.
    pub graph: GraphSettings,
    /// The law.
    pub law: Law,
    /// Forecasts of the rate.
    pub predictor: PredictorSettings,
    /// Seconds between two decisions.
    pub interval_s: f64,
    /// Start-up times, until the fleet shows its own.
    pub warmup: WarmupSettings,
    /// Time after which an ordered worker that did not come is not counted on, seconds.
    pub pending_s: f64,
    /// Time for which a number that somebody else set stays as it is, seconds.
    pub pin_s: f64,
    /// Time without requests after which a graph may go to zero, seconds.
    pub idle_s: f64,
    /// Time for which signals of a new worker do not count, seconds.
    pub cold_s: f64,
    /// Tokens of an answer until one has ended.
    pub output_tokens: f64,
}

/// Roles of a graph, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphSettings {
    /// Name in logs, metrics and files.
    pub name: String,
    /// Roles that are scaled.
    pub roles: Vec<Role>,
    /// Fewest workers of each role; 0 lets an idle graph go to zero.
    pub min: Replicas,
    /// Most workers of each role.
    pub max: Replicas,
    /// GPUs of one worker of each role.
    pub gpus: Replicas,
    /// Most workers that come or go in one decision.
    pub step_max: u32,
}

/// Law by which workers are counted.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// One worker at a time, by loads.
    Thresholds(Thresholds),
    /// By latency targets.
    Sla(SlaLaw),
}

/// Targets and engines of the law of latency targets.
#[derive(Clone, Debug, PartialEq)]
pub struct SlaLaw {
    /// Latency targets.
    pub targets: SlaTargets,
    /// The engine of prefill workers, if the graph has them.
    pub prefill: WorkerModel,
    /// The engine of other workers.
    pub decode: WorkerModel,
}

impl SlaLaw {
    /// The engine of a role.
    pub fn model(&self, role: Role) -> &WorkerModel {
        if role == Role::Prefill { &self.prefill } else { &self.decode }
    }

    /// Targets of one role: prefill and decode workers each may miss half of what may be missed.
    pub fn targets_of(&self, role: Role) -> SlaTargets {
        let missed = 1.0 - self.targets.attainment;
        let share = if role == Role::Aggregated { 1.0 } else { 0.5 };
        SlaTargets { attainment: 1.0 - missed * share, ..self.targets }
    }
}
