//! The command line of `stator simulate`. Every flag is also an environment variable,
//! `STATOR_SIMULATE_` and the flag's name in capitals.

mod check;
mod edges;
mod split;
mod surroundings;
#[cfg(test)]
pub(crate) mod tests;
mod tiers;

pub use check::InvalidArgs;
pub(crate) use edges::EdgeArgs;
pub(crate) use split::SplitArgs;
pub(crate) use tiers::TierArgs;

use clap::Args;
use serde::Serialize;
use stator_fleet_model::{Mix, PolicyKind};
use std::path::PathBuf;

/// Try placement policies on a fleet that is not there: workers in virtual time, the real
/// placement core, recorded or made-up requests, and faults. The same seed gives the same answer,
/// to the byte.
///
/// Examples:
///
///   stator simulate --mix chat --workers 8 --rate 20 --policy round-robin,stator
///
///   stator simulate --trace conversation.jsonl --workers 8 --speed 4 --html report.html
///
///   stator simulate --mix mixed --workers 1000 --requests 1000000 --rate 900
///
///   stator simulate --mix agents --deaths-per-hour 2 --event-loss 0.01 --seeds 100
///
///   stator simulate --mix summarise --prefill 4 --decode 4 --rate 8
///
///   stator simulate --mix agents --edges 3 --peer-interval-ms 10
///
///   stator simulate --mix agents --host-kv-tokens 2000000 --disk-kv-tokens 20000000 --peer-kv
#[derive(Args, Clone, Debug, Serialize)]
#[command(verbatim_doc_comment)]
pub struct SimulateArgs {
    /// Policies to compare, in the order of the table.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        env = "STATOR_SIMULATE_POLICY",
        default_value = "round-robin,least-loaded,prefix-hash,llm-d,dynamo,stator"
    )]
    pub(crate) policy: Vec<PolicyKind>,
    /// Seed of everything that is random.
    #[arg(long, default_value = "1", env = "STATOR_SIMULATE_SEED")]
    pub(crate) seed: u64,
    /// Number of seeds to run, from --seed on, one after the other; the table shows each policy's
    /// median over them. A seed that breaks a rule ends the sweep with the command that shows it.
    #[arg(long, default_value = "1", env = "STATOR_SIMULATE_SEEDS")]
    pub(crate) seeds: u32,
    /// Requests to the fleet.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// The workers.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) fleet: FleetArgs,
    /// KV tiers of the workers.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) tiers: TierArgs,
    /// Disaggregation.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) split: SplitArgs,
    /// Edges, which place requests.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) edges: EdgeArgs,
    /// Faults to inject.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) faults: FaultArgs,
    /// Objectives and reports.
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) output: OutputArgs,
}

/// Requests to the fleet.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// A recorded trace instead of a mix: Mooncake's JSON lines, or Azure's CSV (lengths and
    /// arrivals only). Not compressed.
    #[arg(long, value_name = "FILE", env = "STATOR_SIMULATE_TRACE")]
    pub(crate) trace: Option<PathBuf>,
    /// Speed of the trace, 0.001 to 1000000 times the recorded one.
    #[arg(long, default_value = "1", env = "STATOR_SIMULATE_SPEED")]
    pub(crate) speed: f64,
    /// Number of times that the trace is played in a row, each time with other prompts, 1 to
    /// 10000.
    #[arg(long, default_value = "1", env = "STATOR_SIMULATE_REPEAT")]
    pub(crate) repeat: u32,
    /// A made-up workload.
    #[arg(long, value_enum, default_value = "mixed", env = "STATOR_SIMULATE_MIX")]
    pub(crate) mix: Mix,
    /// Requests of a made-up workload, and most requests of a trace, 1 to 100000000. Default
    /// 20000 of a mix, all of a trace.
    #[arg(long, env = "STATOR_SIMULATE_REQUESTS")]
    pub(crate) requests: Option<u32>,
    /// Requests per second of a made-up workload, all workers together, 0.001 to 1000000.
    #[arg(long, default_value = "8", env = "STATOR_SIMULATE_RATE")]
    pub(crate) rate: f64,
}

/// The workers.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct FleetArgs {
    /// Workers that do all, 1 to 100000. Default 8, and 0 with --prefill.
    #[arg(long, env = "STATOR_SIMULATE_WORKERS")]
    pub(crate) workers: Option<u32>,
    /// Workers that only compute prompts for those of --decode; needs --decode.
    #[arg(long, requires = "decode", env = "STATOR_SIMULATE_PREFILL")]
    pub(crate) prefill: Option<u32>,
    /// Workers that answer, and compute prompts too where nobody does it for them; needs --prefill.
    #[arg(long, requires = "prefill", env = "STATOR_SIMULATE_DECODE")]
    pub(crate) decode: Option<u32>,
    /// Model and hardware: a100-llama-8b, h100-llama-8b, h200-llama-8b, h100-llama-70b-tp4,
    /// h200-llama-70b-tp4 or b200-qwen-32b.
    #[arg(long, default_value = "h100-llama-8b", env = "STATOR_SIMULATE_TIMING")]
    pub(crate) timing: String,
    /// Tokens per KV block, 1 to 65536; must divide 512 for a Mooncake trace.
    #[arg(long, default_value = "128", env = "STATOR_SIMULATE_BLOCK_SIZE")]
    pub(crate) block_size: u32,
    /// Tokens of KV that a worker's device holds.
    #[arg(long, default_value = "400000", env = "STATOR_SIMULATE_KV_TOKENS")]
    pub(crate) kv_tokens: u32,
    /// Sequences that a worker computes together, 1 to 65536.
    #[arg(long, default_value = "256", env = "STATOR_SIMULATE_MAX_RUNNING")]
    pub(crate) max_running: u32,
    /// Tokens that a worker computes in one step, at least --max-running.
    #[arg(long, default_value = "8192", env = "STATOR_SIMULATE_MAX_BATCHED_TOKENS")]
    pub(crate) max_batched_tokens: u32,
    /// Moving KV between workers of one host, gigabytes per second; a worker sends one after the
    /// other.
    #[arg(long, default_value = "200", env = "STATOR_SIMULATE_LOCAL_GB_S")]
    pub(crate) local_gb_s: f64,
    /// Moving KV between hosts, gigabytes per second.
    #[arg(long, default_value = "40", env = "STATOR_SIMULATE_REMOTE_GB_S")]
    pub(crate) remote_gb_s: f64,
    /// Workers on one host.
    #[arg(long, default_value = "8", env = "STATOR_SIMULATE_HOST_WORKERS")]
    pub(crate) host_workers: u32,
    /// Time between two load reports of a worker, 1 to 60000 ms.
    #[arg(long, default_value = "100", env = "STATOR_SIMULATE_REPORT_INTERVAL_MS")]
    pub(crate) report_interval_ms: f64,
    /// Delay of load reports and KV events, 0 to 60000 ms.
    #[arg(long, default_value = "2", env = "STATOR_SIMULATE_EVENT_DELAY_MS")]
    pub(crate) event_delay_ms: f64,
    /// A worker takes no more requests above this share of KV blocks in use, 0 to 1; for the
    /// policies of this project's placement. Default none.
    #[arg(long, env = "STATOR_SIMULATE_ACTIVE_DECODE_BLOCKS_THRESHOLD")]
    pub(crate) active_decode_blocks_threshold: Option<f64>,
    /// A worker takes no more requests above this many prompt tokens to be computed.
    #[arg(long, env = "STATOR_SIMULATE_ACTIVE_PREFILL_TOKENS_THRESHOLD")]
    pub(crate) active_prefill_tokens_threshold: Option<u64>,
    /// Policy that chooses the next tenant among the requests that wait.
    #[arg(long, value_enum, default_value = "global-strict", env = "STATOR_SIMULATE_FAIRNESS")]
    pub(crate) fairness: FairnessArg,
    /// Policy that chooses the next request of a tenant.
    #[arg(long, value_enum, default_value = "fcfs", env = "STATOR_SIMULATE_ORDERING")]
    pub(crate) ordering: OrderingArg,
    /// Requests that may wait while no worker takes any, 1 to 1000000.
    #[arg(long, default_value = "100000", env = "STATOR_SIMULATE_QUEUE_MAX")]
    pub(crate) queue_max: u32,
    /// Longest wait of such a request, 1 to 86400000 ms.
    #[arg(long, default_value = "60000", env = "STATOR_SIMULATE_QUEUE_TIMEOUT_MS")]
    pub(crate) queue_timeout_ms: f64,
}

/// Policy that chooses the next tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FairnessArg {
    /// The tenant of the oldest request.
    GlobalStrict,
    /// Each tenant in turn.
    RoundRobin,
    /// Deficit round robin with a quantum of 8,192 tokens.
    Drr,
    /// Virtual token counters.
    Vtc,
}

/// Policy that chooses the next request of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OrderingArg {
    /// The oldest request.
    Fcfs,
    /// The shortest prompt, where a second of waiting is worth 4,096 tokens.
    ShortestPrompt,
    /// The request whose first token is due first.
    SloDeadline,
}

/// Faults to inject.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// Deaths of each worker per hour, on average.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_DEATHS_PER_HOUR")]
    pub(crate) deaths_per_hour: f64,
    /// Time until a death is known, 0 to 600 s.
    #[arg(long, default_value = "0.5", env = "STATOR_SIMULATE_DETECTION_S")]
    pub(crate) detection_s: f64,
    /// Time until the worker is back, above --detection-s.
    #[arg(long, default_value = "30", env = "STATOR_SIMULATE_RESTART_S")]
    pub(crate) restart_s: f64,
    /// Workers that may die under a request before it fails.
    #[arg(long, default_value = "3", env = "STATOR_SIMULATE_MIGRATIONS_MAX")]
    pub(crate) migrations_max: u32,
    /// Share of workers that are slow, 0 to 1.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_STRAGGLERS")]
    pub(crate) stragglers: f64,
    /// Slowdown of such workers, 1 to 1000 times.
    #[arg(long, default_value = "2", env = "STATOR_SIMULATE_STRAGGLER_SLOWDOWN")]
    pub(crate) straggler_slowdown: f64,
    /// Share of batches of KV events that are lost, 0 to 1.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_EVENT_LOSS")]
    pub(crate) event_loss: f64,
    /// Share of load reports that are lost, 0 to 1.
    #[arg(long, default_value = "0", env = "STATOR_SIMULATE_REPORT_LOSS")]
    pub(crate) report_loss: f64,
    /// Time from a gap in the KV events to the snapshot that heals it, 0 to 60000 ms.
    #[arg(long, default_value = "50", env = "STATOR_SIMULATE_RESYNC_MS")]
    pub(crate) resync_ms: f64,
}

/// Objectives and reports.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Results")]
pub(crate) struct OutputArgs {
    /// Objective of a request's TTFT, for goodput.
    #[arg(long, default_value = "2000", env = "STATOR_SIMULATE_SLO_TTFT_MS")]
    pub(crate) slo_ttft_ms: f64,
    /// Objective of a request's ITL, for goodput.
    #[arg(long, default_value = "50", env = "STATOR_SIMULATE_SLO_ITL_MS")]
    pub(crate) slo_itl_ms: f64,
    /// Write everything as JSON.
    #[arg(long, value_name = "FILE", env = "STATOR_SIMULATE_JSON")]
    #[serde(skip)]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE", env = "STATOR_SIMULATE_HTML")]
    #[serde(skip)]
    pub(crate) html: Option<PathBuf>,
}
