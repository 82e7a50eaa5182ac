//! Signals of one graph at one moment.

use crate::replicas::Replicas;
use stator_protos::discovery::Role;
use stator_protos::load::Load;

/// Signals of a graph at a moment. Times are in seconds since any fixed start.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Time of the observation.
    pub at_s: f64,
    /// Sizes that loads are measured by.
    pub sizes: RequestSizes,
    /// Requests that wait in proxies for a worker.
    pub held: u32,
    /// Workers that take or finish requests.
    pub workers: Vec<WorkerSignal>,
    /// Replicas that the platform was last asked for, as it says itself.
    pub ordered: Replicas,
    /// Counts of requests since their start; none if nobody counts them.
    pub traffic: Option<TrafficTotals>,
    /// Latencies of the last minute or less; none if nobody measures them.
    pub latency: Option<LatencySample>,
}

/// Sizes of a graph's model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestSizes {
    /// Tokens of the longest request; 0 if unknown.
    pub context_tokens: f64,
    /// Tokens of a block; 0 if unknown.
    pub block_tokens: f64,
}

/// One worker that is up.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSignal {
    /// Its role.
    pub role: Role,
    /// Seconds since it came up.
    pub up_s: f64,
    /// Whether it finishes what it has and takes nothing new.
    pub draining: bool,
    /// Its last load report.
    pub load: Load,
}

/// Counts of requests, which never shrink. Restarted counters begin again at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrafficTotals {
    /// Requests that came.
    pub requests: f64,
    /// Tokens of their prompts.
    pub prompt_tokens: f64,
    /// Sum of the squares of prompt lengths.
    pub prompt_squares: f64,
    /// Tokens of prompts that were reused.
    pub cached_tokens: f64,
    /// Answers that ended.
    pub answers: f64,
    /// Tokens of these answers.
    pub output_tokens: f64,
}

/// Latencies of recent requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySample {
    /// Requests of the sample.
    pub requests: f64,
    /// 90th percentile of the time to the first token, seconds.
    pub ttft_p90_s: f64,
    /// 90th percentile of the mean time between tokens, seconds.
    pub itl_p90_s: f64,
    /// Share of requests within the target of the first token.
    pub ttft_good: f64,
    /// Share of requests within the target between tokens.
    pub itl_good: f64,
}

impl Observation {
    /// Workers of a role that take requests.
    pub fn up(&self, role: Role) -> impl Iterator<Item = &WorkerSignal> {
        self.workers.iter().filter(move |worker| worker.role == role && !worker.draining)
    }

    /// Number of workers of a role that take requests.
    pub fn count_up(&self, role: Role) -> u32 {
        self.up(role).count() as u32
    }

    /// Prompt tokens of a role that are still to be computed. KV that waits to be fetched by
    /// decode workers holds blocks and counts no tokens.
    pub fn pending_prompt_tokens(&self, role: Role) -> f64 {
        let workers = self.workers.iter().filter(|worker| worker.role == role);
        workers.map(|worker| worker.load.pending_prefill_tokens as f64).sum()
    }
}

impl TrafficTotals {
    /// Growth since `earlier`; none after a restart of the counters.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let grown = Self {
            requests: self.requests - earlier.requests,
            prompt_tokens: self.prompt_tokens - earlier.prompt_tokens,
            prompt_squares: self.prompt_squares - earlier.prompt_squares,
            cached_tokens: self.cached_tokens - earlier.cached_tokens,
            answers: self.answers - earlier.answers,
            output_tokens: self.output_tokens - earlier.output_tokens,
        };
        (grown.requests >= 0.0 && grown.answers >= 0.0).then_some(grown)
    }
}
