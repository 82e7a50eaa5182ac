//! `stator plan`: a deployment for a model, a kind of GPU and two latency targets.
//!
//! The closed form of [`step`](StepModel) times thousands of layouts, and the best ten are
//! replayed on a fleet in virtual time (`stator-fleet-model`) under random arrivals. Measured times
//! of operations come from `stator-tables`. Nothing here
//! talks to a cluster or a GPU, and the same flags give the same plan. Start reading at [`run`];
//! [`search()`] is the closed form over all layouts, [`replay()`] the simulation.

mod args;
mod engine;
mod gpu;
mod layout;
mod manifest;
mod model;
mod nearest;
mod operation;
mod precision;
mod replay;
mod report;
mod request;
mod run;
mod search;
mod sources;
mod step;
mod tabled;
mod worker;

pub use args::{InvalidPlan, PlanArgs};
pub use engine::{EngineKind, EngineOverhead, HardwareShares, StepFit};
pub use gpu::{GPUS, Gpu};
pub use layout::{Candidate, Estimate, Layout, WorkerGroup};
pub use manifest::{GraphChoices, STEP_TIMES, graph};
pub use model::{Experts, LatentWidths, ModelError, ModelShape};
pub use precision::Precision;
pub use replay::{ReplayError, ReplayedPlan, replay, replay_at};
pub use request::{Forms, PlanRequest, RecordedTrace, Targets, Traffic};
pub use run::{FoundPlans, find, run};
pub use search::{Reach, SearchOutcome, TradePoint, search};
pub use step::StepModel;
pub use worker::WorkerShape;
