//! `stator planner`: the number of workers that a fleet needs, from its load.
//!
//! The core is pure: [`Planner::tick`] takes an [`Observation`] and gives a [`Decision`], with time
//! as a value. `capacity` says what a worker can do, `law` what that means, `predict` what comes.
//! [`run()`] is the process around it: `signals` come in, `output` asks for workers. [`study`] runs
//! the core on a fleet in virtual time, beside the laws of other planners. Start reading at
//! [`Planner`].

mod args;
mod budget;
mod capacity;
mod config;
mod law;
mod metrics;
mod observation;
mod output;
mod planner;
mod predict;
mod replicas;
mod run;
mod settings;
mod signals;
pub mod study;
mod traffic;
mod warmup;

pub use args::PlannerArgs;
pub use capacity::{Demand, LatencyEstimate, Sizing, SlaTargets, WorkerModel};
pub use config::RunSettings;
pub use law::sla::SlaNeed;
pub use law::threshold::Thresholds;
pub use observation::{LatencySample, Observation, RequestSizes, TrafficTotals, WorkerSignal};
pub use planner::{Decision, DecisionReason, Planner, RoleDecision};
pub use predict::{KalmanNoise, LoadPredictor, PredictorSettings};
pub use replicas::{ROLES, Replicas, role_name};
pub use run::run;
pub use settings::{GraphSettings, Law, PlannerSettings, SlaLaw};
pub use warmup::WarmupSettings;
