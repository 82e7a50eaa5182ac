//! Deployments that a search compares.

use crate::worker::WorkerShape;
use serde::Serialize;

/// Workers that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerGroup {
    /// Each of them.
    pub worker: WorkerShape,
    /// Sequences that each computes together, at most.
    pub batch_max: u32,
    /// Tokens of KV that each has room for.
    pub kv_tokens: u64,
    /// Their number.
    pub count: u32,
}

/// Roles of a deployment's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Every worker does both.
    Aggregated(WorkerGroup),
    /// Some compute prompts for the others.
    Disaggregated {
        /// Workers that compute prompts.
        prefill: WorkerGroup,
        /// Workers that answer.
        decode: WorkerGroup,
    },
}

/// Times and rate of a layout under its greatest load, by the closed form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Time to the first token, seconds.
    pub ttft_s: f64,
    /// Time between two tokens, seconds.
    pub itl_s: f64,
    /// Requests per second of the whole layout.
    pub rate: f64,
}

/// A layout and its estimate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The workers.
    pub layout: Layout,
    /// Its expected times and rate.
    pub estimate: Estimate,
}

impl WorkerGroup {
    /// GPUs of all of them.
    pub fn gpus(&self) -> u32 {
        self.worker.gpus() * self.count
    }

    /// The group with another number of workers.
    pub(crate) fn of(self, count: u32) -> Self {
        Self { count, ..self }
    }
}

impl Layout {
    /// GPUs of all workers.
    pub fn gpus(&self) -> u32 {
        match self {
            Self::Aggregated(group) => group.gpus(),
            Self::Disaggregated { prefill, decode } => prefill.gpus() + decode.gpus(),
        }
    }

    /// The workers that answer.
    pub fn answering(&self) -> &WorkerGroup {
        match self {
            Self::Aggregated(group) => group,
            Self::Disaggregated { decode, .. } => decode,
        }
    }

    /// The layout in a few words: `4 × tp2`, `2 prefill × tp1 + 1 decode × tp4`.
    pub fn describe(&self) -> String {
        match self {
            Self::Aggregated(group) => format!("{} × {}", group.count, group.worker.parallelism()),
            Self::Disaggregated { prefill, decode } => format!(
                "{} prefill × {} + {} decode × {}",
                prefill.count,
                prefill.worker.parallelism(),
                decode.count,
                decode.worker.parallelism()
            ),
        }
    }
}
