//! All that a metrics page tells of an engine, rank by rank and under one vocabulary.
//!
//! [`Poller`] asks for pages, [`read`] reads one. A page is read from its first line to its last,
//! which is for who reads one engine's a few times a second; who reads hundreds of engines' uses
//! [`crate::page`].

mod gather;
mod poll;
mod rules;

pub use poll::{Page, PollError, PollSettings, Poller};

use crate::page::Adapters;

/// An engine by whose names a page is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM 0.10 and later: `vllm:...` at `/metrics`.
    Vllm,
    /// SGLang: `sglang:...` at `/metrics`, with `--enable-metrics`.
    Sglang,
    /// TensorRT-LLM: `trtllm_...` at `/prometheus/metrics`, with `return_perf_metrics`. What it has
    /// at `/metrics` is no page: JSON that is drained by reading.
    TrtLlm,
}

/// What a page tells of one data-parallel rank. Counters count from the start of the process; what
/// is `None` is not told.
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
    /// Counter: prompt tokens that were looked for in the prefix cache.
    pub prefix_queries: Option<u64>,
    /// Counter: prompt tokens that were found there.
    pub prefix_hits: Option<u64>,
    /// Counter: prompt tokens taken in, those found in the cache included.
    pub prompt_tokens: Option<u64>,
    /// Counter: tokens produced. Of SGLang with several ranks, those of decode steps alone: each
    /// request's first token is not among them.
    pub generation_tokens: Option<u64>,
    /// Counter: requests that were put back to make room.
    pub preemptions: Option<u64>,
    /// Counter: steps that the engine took.
    pub steps: Option<u64>,
    /// Counter: seconds spent in steps.
    pub steps_s: Option<f64>,
    /// Seconds that the last step took.
    pub last_step_s: Option<f64>,
    /// Counter: gaps between two tokens of a request.
    pub token_gaps: Option<u64>,
    /// Counter: seconds that these took, all together.
    pub token_gaps_s: Option<f64>,
    /// Whether the engine sleeps.
    pub sleep: Option<Sleep>,
    /// LoRA adapters of the engine, the same for all of its ranks.
    pub adapters: Option<Adapters>,
}

impl EngineReport {
    /// Seconds that a step took since the report `before`, on average; `None` where there was none
    /// or the engine does not tell. Of an engine that does not time its steps it is what its
    /// requests saw from one of their tokens to the next, of which a step gives each one.
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

/// How much of its memory an engine has given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// None: it can answer.
    Awake,
    /// Its weights are in host memory, and its KV is gone.
    WeightsOffloaded,
    /// Its weights are gone too.
    Discarded,
}

/// Reads a page into `reports`, one for each rank that it tells of, in order.
///
/// Lines that cannot be read, ranks beyond the first 1024 and metrics of other names have no
/// effect. A page that tells nothing gives no reports.
pub fn read(engine: Engine, page: &[u8], reports: &mut Vec<EngineReport>) {
    reports.clear();
    gather::gather(engine, page).into_reports(engine, reports);
}

#[cfg(test)]
mod tests;
