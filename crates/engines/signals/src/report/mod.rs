//! All engine metrics on a page, rank by rank and under one vocabulary.
//!
//! [`Poller`] fetches pages, [`read`] reads one from its first line to its last. That suits one
//! engine's page a few times a second; for the pages of hundreds of engines use [`crate::page`].

mod gather;
mod poll;
mod rules;

pub use poll::{Page, PollError, PollSettings, Poller};

use crate::page::Adapters;

/// An engine, by the metric names that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM 0.10 and later: `vllm:...` at `/metrics`.
    Vllm,
    /// SGLang: `sglang:...` at `/metrics`, with `--enable-metrics`.
    Sglang,
    /// TensorRT-LLM: `trtllm_...` at `/prometheus/metrics`, with `return_perf_metrics`. Its
    /// `/metrics` is no page but JSON that is drained by reading.
    TrtLlm,
}

/// Report of one data-parallel rank. Counters count from the start of the process; `None` is a
/// value that the page lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineReport {
    /// The rank, 0 where there is only one.
    pub rank: u16,
    /// Requests in the running batch.
    pub running: Option<u32>,
    /// Requests that wait for room.
    pub waiting: Option<u32>,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// KV blocks of this rank on the device.
    pub total_blocks: Option<u32>,
    /// Counter: prompt tokens looked up in the prefix cache.
    pub prefix_queries: Option<u64>,
    /// Counter: prompt tokens found in the prefix cache.
    pub prefix_hits: Option<u64>,
    /// Counter: prompt tokens taken in, those found in the cache included.
    pub prompt_tokens: Option<u64>,
    /// Counter: tokens produced. For SGLang with several ranks only those of decode steps, without
    /// each request's first token.
    pub generation_tokens: Option<u64>,
    /// Counter: requests that the engine preempted to make room.
    pub preemptions: Option<u64>,
    /// Counter: steps that the engine took.
    pub steps: Option<u64>,
    /// Counter: seconds spent in steps.
    pub steps_s: Option<f64>,
    /// Seconds that the last step took.
    pub last_step_s: Option<f64>,
    /// Counter: gaps between two tokens of a request.
    pub token_gaps: Option<u64>,
    /// Counter: total of these gaps in seconds.
    pub token_gaps_s: Option<f64>,
    /// Whether the engine sleeps.
    pub sleep: Option<Sleep>,
    /// LoRA adapters of the engine, the same for all of its ranks.
    pub adapters: Option<Adapters>,
}

impl EngineReport {
    /// Mean seconds of a step since the report `before`; `None` without a step, or where the engine
    /// does not tell. For an engine that does not time its steps it is the mean gap between two
    /// tokens of a request, since a step gives each request one.
    pub fn step_s(&self, before: &Self) -> Option<f64> {
        let mean = |count: fn(&Self) -> Option<u64>, seconds: fn(&Self) -> Option<f64>| {
            let count = count(self)?.checked_sub(count(before)?).filter(|count| *count > 0)?;
            let seconds = seconds(self)? - seconds(before)?;
            (seconds >= 0.0).then(|| seconds / count as f64)
        };
        self.last_step_s
            .or_else(|| mean(|report| report.steps, |report| report.steps_s))
            .or_else(|| mean(|report| report.token_gaps, |report| report.token_gaps_s))
    }
}

/// Memory that a sleeping engine has given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// None: the engine can answer.
    Awake,
    /// Weights are in host memory, and the KV is gone.
    WeightsOffloaded,
    /// Weights are gone too.
    Discarded,
}

/// Reads a page into `reports`, one for each rank on it, in order.
///
/// Unreadable lines, ranks beyond the first 1024 and other metrics have no effect. A page without
/// metrics of the engine gives no reports.
pub fn read(engine: Engine, page: &[u8], reports: &mut Vec<EngineReport>) {
    reports.clear();
    gather::gather(engine, page).into_reports(engine, reports);
}

#[cfg(test)]
mod tests;
