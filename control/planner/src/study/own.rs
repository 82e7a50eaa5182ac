//! Our planner in the study.

use super::replay::{INTERVAL_S, ScalingLaw, StudyCase};
use crate::observation::Observation;
use crate::planner::Planner;
use crate::predict::{LoadPredictor, PredictorSettings};
use crate::replicas::Replicas;
use crate::settings::{GraphSettings, Law, PlannerSettings, SlaLaw};
use crate::warmup::WarmupSettings;

/// Most workers of a role in the study.
pub(super) const WORKERS_MAX: u32 = 64;

/// Our planner.
#[derive(Debug)]
pub struct Own {
    planner: Planner,
    name: &'static str,
}

impl Own {
    /// The planner with these settings.
    pub fn new(name: &'static str, settings: PlannerSettings) -> Self {
        Self { planner: Planner::new(settings), name }
    }
}

impl ScalingLaw for Own {
    fn name(&self) -> &str {
        self.name
    }

    fn wanted(&mut self, observation: &Observation) -> Replicas {
        self.planner.tick(observation).wanted
    }
}

/// Settings of our planner for a case, with the defaults of `stator planner` but for targets and
/// engine.
pub fn study_settings(case: &StudyCase) -> PlannerSettings {
    let model = case.model();
    PlannerSettings {
        graph: GraphSettings {
            name: case.name.clone(),
            roles: case.roles.clone(),
            min: Replicas::from_fn(|role| u32::from(case.roles.contains(&role))),
            max: Replicas::from_fn(|_| WORKERS_MAX),
            gpus: Replicas::from_fn(|_| case.gpus),
            step_max: 8,
        },
        law: Law::Sla(SlaLaw { targets: case.targets, prefill: model, decode: model }),
        predictor: PredictorSettings {
            kind: LoadPredictor::Adaptive,
            log1p: false,
            noise: None,
            season_s: 86_400.0,
        },
        interval_s: INTERVAL_S,
        warmup: WarmupSettings {
            cold_s: case.warmup_s,
            cached_s: case.warmup_s,
            cache_life_s: 3_600.0,
        },
        pending_s: 4.0 * case.warmup_s + 60.0,
        pin_s: 600.0,
        idle_s: 300.0,
        cold_s: 10.0,
        output_tokens: 150.0,
    }
}

/// Our planner with the seasonal predictor, for loads that come back after so many seconds.
pub fn seasonal_settings(case: &StudyCase, season_s: f64) -> PlannerSettings {
    let settings = study_settings(case);
    let predictor =
        PredictorSettings { kind: LoadPredictor::Seasonal, season_s, ..settings.predictor };
    PlannerSettings { predictor, ..settings }
}
