//! A checked request for a plan.

use crate::engine::EngineKind;
use crate::gpu::Gpu;
use crate::model::ModelShape;
use crate::precision::Precision;
use crate::step::StepModel;
use crate::worker::WorkerShape;
use stator_tables::EngineTables;
use stator_timing::EngineProfile;
use std::path::PathBuf;
use std::sync::Arc;

/// A checked request for a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The model.
    pub model: ModelShape,
    /// Its name for clients and in commands.
    pub model_name: String,
    /// Path of its folder, for commands.
    pub model_path: String,
    /// The hardware.
    pub gpu: Gpu,
    /// GPUs that there are.
    pub gpus: u32,
    /// Format of the KV.
    pub kv: Precision,
    /// Engines to choose from, at least one.
    pub engines: Vec<EngineKind>,
    /// Forms to choose from.
    pub forms: Forms,
    /// The requests.
    pub traffic: Traffic,
    /// Recorded requests that are replayed instead of random ones of that length.
    pub trace: Option<RecordedTrace>,
    /// Latency targets of each request.
    pub targets: Targets,
    /// Measured times. With some, only workers with as many GPUs as one of them are compared.
    pub profiles: Vec<EngineProfile>,
    /// Measured times of operations, of engines that have some on this GPU.
    pub tables: Vec<(EngineKind, Arc<EngineTables>)>,
    /// Seed of the arrivals.
    pub seed: u64,
}

impl PlanRequest {
    /// The model on a worker; none if times were measured, but not those of such a worker.
    pub(crate) fn step_model(&self, worker: WorkerShape) -> Option<StepModel<'_>> {
        let tables = self.tables.iter().find(|(engine, _)| *engine == worker.engine);
        let step = StepModel::new(&self.model, &self.gpu, self.kv, worker)
            .tabled(tables.map(|(_, tables)| &**tables));
        if self.profiles.is_empty() {
            return Some(step);
        }
        let is_whole = worker.tensor == worker.gpus();
        let of = |profile: &&EngineProfile| is_whole && profile.gpus == worker.gpus();
        let profile = self.profiles.iter().find(of)?;
        Some(step.measured(Some(profile.timing)))
    }
}

/// Forms of layouts to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms {
    /// Workers that do both.
    pub aggregated: bool,
    /// Separate workers for prompts.
    pub disaggregated: bool,
}

/// Requests that a fleet gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Tokens of a prompt.
    pub input_tokens: u32,
    /// Leading tokens of it that a worker holds already.
    pub cached_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
    /// Requests per second; `None` asks for the most that the GPUs can do.
    pub rate: Option<f64>,
}

/// A recorded trace.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTrace {
    /// Its file.
    pub path: PathBuf,
    /// Requests per second as they were recorded.
    pub rate: f64,
}

/// Latency targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Targets {
    /// Time to the first token, seconds.
    pub ttft_s: f64,
    /// Mean time between two tokens of a request, seconds.
    pub itl_s: f64,
    /// Share of requests that must be within both, 0.5 to 1.
    pub attainment: f64,
    /// Part of each target that the closed form keeps free for its own error, 0 to 1.
    pub margin: f64,
}

impl Targets {
    /// The longest time to the first token that a candidate may be estimated at.
    pub(crate) fn ttft_bound_s(&self) -> f64 {
        self.ttft_s / (1.0 + self.margin)
    }

    /// The longest time between tokens that a candidate may be estimated at.
    pub(crate) fn itl_bound_s(&self) -> f64 {
        self.itl_s / (1.0 + self.margin)
    }
}
