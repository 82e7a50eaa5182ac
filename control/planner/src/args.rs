//! Flags of `stator planner`.

use crate::predict::LoadPredictor;
use clap::{Args, ValueEnum};
use stator_discovery::DiscoveryArgs;
use stator_runtime::dial::DialArgs;
use std::net::IpAddr;
use std::path::PathBuf;

/// Counts the workers that a fleet needs and says so: to a file, to Kubernetes, or in its log.
///
/// The planner follows the agents of the fleet as a proxy does. Every few seconds it decides how
/// many workers each role needs:
///
///   --optimization-target throughput   full batches: one worker more or fewer by loads (default)
///   --optimization-target latency      short queues, the same way
///   --optimization-target load         thresholds of your own
///   --optimization-target sla          the fewest workers that hold --ttft-ms and --itl-ms, for the
///                                      demand that is forecast; needs --metrics-url and --timing
///
/// Without --replicas-file and --scale it only advises. A planner that loses its signals leaves
/// everything as it is. A number that somebody else sets stays for --pin-s seconds.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct PlannerArgs {
    /// Goal.
    #[command(flatten)]
    pub(crate) goal: GoalArgs,
    /// Graph.
    #[command(flatten)]
    pub(crate) graph: GraphArgs,
    /// Forecast.
    #[command(flatten)]
    pub(crate) forecast: ForecastArgs,
    /// Pace.
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    /// Output.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Port for operators.
    #[command(flatten)]
    pub(crate) metrics: PlannerMetricsArgs,
    /// Registry of the agents.
    #[command(flatten)]
    pub(crate) discovery: DiscoveryArgs,
    /// TLS of connections to agents.
    #[command(flatten)]
    pub(crate) dial: DialArgs,
}

/// Goal of the planner.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Goal")]
pub(crate) struct GoalArgs {
    /// Law that counts workers.
    #[arg(long, value_enum, default_value = "throughput", env = "STATOR_OPTIMIZATION_TARGET")]
    pub(crate) optimization_target: OptimizationTarget,
    /// Target `sla`: longest time to the first token, 1 to 600000 ms.
    #[arg(long, default_value = "500", env = "STATOR_TTFT_MS")]
    pub(crate) ttft_ms: f64,
    /// Target `sla`: longest mean time between two tokens of a request, 0.1 to 60000 ms.
    #[arg(long, default_value = "50", env = "STATOR_ITL_MS")]
    pub(crate) itl_ms: f64,
    /// Target `sla`: requests that must be within both, 50 to 99.9 percent.
    #[arg(long, default_value = "96", env = "STATOR_ATTAINMENT_PERCENT")]
    pub(crate) attainment_percent: f64,
    /// Target `sla`: times of an engine's steps. A preset of `stator agent --sim-preset`, a file of
    /// `stator bench --profile`, or JSON (a file, or the text) with `step_s`, `token_s`, `prefill_pair_s`
    /// and `decode_kv_token_s` in seconds.
    #[arg(long, value_name = "NAME|FILE|JSON", env = "STATOR_TIMING")]
    pub(crate) timing: Option<String>,
    /// Target `sla`: step times of prefill workers. Default: `--timing`.
    #[arg(long, value_name = "NAME|FILE|JSON", env = "STATOR_PREFILL_TIMING")]
    pub(crate) prefill_timing: Option<String>,
    /// Target `sla`: most requests of a step, 1 to 65536.
    #[arg(long, default_value = "256", env = "STATOR_BATCH_MAX")]
    pub(crate) batch_max: f64,
    /// Target `sla`: most tokens of a step, 1 to 1048576.
    #[arg(long, default_value = "8192", env = "STATOR_STEP_TOKENS")]
    pub(crate) step_tokens: f64,
    /// Target `load`: queued prompt tokens of one prefill worker, in percent of the model's context,
    /// from which on a worker is added.
    #[arg(long, default_value = "100", env = "STATOR_PREFILL_SCALE_UP_PERCENT")]
    pub(crate) prefill_scale_up_percent: f64,
    /// Target `load`: queued prompt tokens of every prefill worker, in percent of the model's
    /// context, below which a worker is taken away.
    #[arg(long, default_value = "10", env = "STATOR_PREFILL_SCALE_DOWN_PERCENT")]
    pub(crate) prefill_scale_down_percent: f64,
    /// Target `load`: KV of one worker's running and queued requests, in percent of its room, above
    /// which a worker is added.
    #[arg(long, default_value = "100", env = "STATOR_DECODE_SCALE_UP_KV_PERCENT")]
    pub(crate) decode_scale_up_kv_percent: f64,
    /// Target `load`: KV of every worker's running and queued requests, in percent of its room,
    /// below which a worker is taken away.
    #[arg(long, default_value = "60", env = "STATOR_DECODE_SCALE_DOWN_KV_PERCENT")]
    pub(crate) decode_scale_down_kv_percent: f64,
}

/// Laws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizationTarget {
    /// Full batches.
    Throughput,
    /// Short queues.
    Latency,
    /// Thresholds of the four flags.
    Load,
    /// Latency targets.
    Sla,
}

/// Roles of a graph that are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlannerMode {
    /// Workers that compute prompts and answer.
    #[value(alias = "agg")]
    Aggregated,
    /// Prefill and decode workers.
    #[value(alias = "disagg")]
    Disaggregated,
    /// Prefill workers alone.
    Prefill,
    /// Decode workers alone.
    Decode,
}

/// Models, their roles, and limits on workers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Graph")]
pub(crate) struct GraphArgs {
    /// Models that are scaled, with commas between them. All have the same limits; the target `sla`
    /// takes one.
    #[arg(long, value_delimiter = ',', value_name = "NAME", env = "STATOR_MODELS")]
    pub(crate) models: Vec<String>,
    /// Roles that are scaled.
    #[arg(long, value_enum, default_value = "aggregated", env = "STATOR_MODE")]
    pub(crate) mode: PlannerMode,
    /// Fewest workers of each role, 0 to 4096. 0 lets an idle model go to zero.
    #[arg(long, default_value = "1", env = "STATOR_MIN_ENDPOINT")]
    pub(crate) min_endpoint: u32,
    /// Fewest prefill workers, 1 to 4096. Default: `--min-endpoint`.
    #[arg(long, env = "STATOR_PREFILL_MIN_ENDPOINT")]
    pub(crate) prefill_min_endpoint: Option<u32>,
    /// Fewest decode workers, 1 to 4096. Default: `--min-endpoint`.
    #[arg(long, env = "STATOR_DECODE_MIN_ENDPOINT")]
    pub(crate) decode_min_endpoint: Option<u32>,
    /// Most workers of each role, 1 to 4096.
    #[arg(long, default_value = "64", env = "STATOR_MAX_ENDPOINT")]
    pub(crate) max_endpoint: u32,
    /// Most workers of a role that come or go in one decision, 1 to 4096.
    #[arg(long, default_value = "8", env = "STATOR_MAX_SCALING_REPLICAS")]
    pub(crate) max_scaling_replicas: u32,
    /// GPUs of one worker, 1 to 4096. A budget needs it.
    #[arg(long, env = "STATOR_WORKER_GPUS")]
    pub(crate) worker_gpus: Option<u32>,
    /// GPUs of one prefill worker, 1 to 4096. Default: `--worker-gpus`.
    #[arg(long, env = "STATOR_PREFILL_WORKER_GPUS")]
    pub(crate) prefill_worker_gpus: Option<u32>,
    /// Most GPUs of all models. Default: no limit.
    #[arg(long, env = "STATOR_MAX_GPU_BUDGET")]
    pub(crate) max_gpu_budget: Option<u32>,
    /// Fewest GPUs of all models, within one worker.
    #[arg(long, env = "STATOR_MIN_GPU_BUDGET")]
    pub(crate) min_gpu_budget: Option<u32>,
}

/// Demand to come.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Forecast")]
pub(crate) struct ForecastArgs {
    /// Metrics pages that count requests, with commas between them: those of all proxies, for
    /// example `http://127.0.0.1:9090/metrics`, or of all pickers. One page may be Prometheus' own
    /// of all of them: `http://prometheus:9090/federate?match[]=%7B__name__=~%22stator_proxy_.*%22%7D`.
    #[arg(long, value_delimiter = ',', value_name = "URL", env = "STATOR_METRICS_URL")]
    pub(crate) metrics_url: Vec<String>,
    /// Trust these authorities for `https` pages, in PEM, instead of the system's.
    #[arg(long, value_name = "FILE", env = "STATOR_METRICS_CA_FILE")]
    pub(crate) metrics_ca_file: Option<PathBuf>,
    /// Forecast of the request rate.
    #[arg(long, value_enum, default_value = "adaptive", env = "STATOR_LOAD_PREDICTOR")]
    pub(crate) load_predictor: LoadPredictor,
    /// Predictor `arima`: work on the logarithm of the rate.
    #[arg(long, env = "STATOR_LOAD_PREDICTOR_LOG1P")]
    pub(crate) load_predictor_log1p: bool,
    /// Predictors `kalman` and `adaptive`: growth of the level's variance in an interval. Default: what explains the
    /// load best. Goes with the next two.
    #[arg(long, env = "STATOR_KALMAN_Q_LEVEL")]
    pub(crate) kalman_q_level: Option<f64>,
    /// Predictor `kalman`: growth of the trend's variance in an interval.
    #[arg(long, env = "STATOR_KALMAN_Q_TREND")]
    pub(crate) kalman_q_trend: Option<f64>,
    /// Predictor `kalman`: variance of a measured rate.
    #[arg(long, env = "STATOR_KALMAN_R")]
    pub(crate) kalman_r: Option<f64>,
    /// Predictor `seasonal`: length of a season, 60 to 31536000 s.
    #[arg(long, default_value = "86400", env = "STATOR_SEASON_S")]
    pub(crate) season_s: f64,
    /// Predictor `seasonal`: a recorded trace of one season that began at midnight UTC: Mooncake's
    /// JSON lines, or Azure's CSV.
    #[arg(long, value_name = "FILE", env = "STATOR_WARMUP_TRACE")]
    pub(crate) warmup_trace: Option<PathBuf>,
    /// Tokens of an answer until one has ended, 1 to 1000000.
    #[arg(long, default_value = "150", env = "STATOR_OSL")]
    pub(crate) osl: f64,
}

/// Times.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Pace")]
pub(crate) struct PaceArgs {
    /// Time between two decisions, 0.05 to 3600 s.
    #[arg(long, default_value = "5", env = "STATOR_LOAD_ADJUSTMENT_INTERVAL_S")]
    pub(crate) load_adjustment_interval_s: f64,
    /// Start-up time of a worker on a new node, 0 to 86400 s, until the fleet shows its own.
    #[arg(long, default_value = "180", env = "STATOR_WARMUP_S")]
    pub(crate) warmup_s: f64,
    /// Start-up time of a worker on a node that recently ran one, 0 to 86400 s, until the fleet
    /// shows its own.
    #[arg(long, default_value = "60", env = "STATOR_CACHED_WARMUP_S")]
    pub(crate) cached_warmup_s: f64,
    /// Time for which a node keeps a worker's image and weights, 0 to 31536000 s.
    #[arg(long, default_value = "3600", env = "STATOR_CACHE_LIFE_S")]
    pub(crate) cache_life_s: f64,
    /// Time after which an ordered worker that did not come is not counted on, 1 to 86400 s.
    #[arg(long, default_value = "900", env = "STATOR_PENDING_S")]
    pub(crate) pending_s: f64,
    /// Time for which a number that somebody else set stays as it is, 0 to 86400 s.
    #[arg(long, default_value = "600", env = "STATOR_PIN_S")]
    pub(crate) pin_s: f64,
    /// Time without requests after which a model may go to zero, 0 to 86400 s.
    #[arg(long, default_value = "300", env = "STATOR_IDLE_S")]
    pub(crate) idle_s: f64,
    /// Time for which the load of a new worker does not count, 0 to 3600 s.
    #[arg(long, default_value = "10", env = "STATOR_COLD_S")]
    pub(crate) cold_s: f64,
}

/// Receivers of decisions.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Write the last decisions with their reasons, as JSON.
    #[arg(long, value_name = "FILE", env = "STATOR_OUT")]
    pub(crate) out: Option<PathBuf>,
    /// Keep the wanted workers in a JSON file, for a supervisor that starts and ends them. It is
    /// replaced as a whole; a number that somebody writes there is a pin.
    #[arg(long, value_name = "FILE", conflicts_with = "scale", env = "STATOR_REPLICAS_FILE")]
    pub(crate) replicas_file: Option<PathBuf>,
    /// Set the replicas of a Kubernetes object through its scale: `ROLE=RESOURCE/NAME`, with commas
    /// between them, `@MODEL` behind it if there are several. RESOURCE is `deployment`,
    /// `statefulset`, `leaderworkerset`, `dgdsa` (Dynamo's scaling adapter), or
    /// `GROUP/VERSION/PLURAL`.
    #[arg(long, value_delimiter = ',', value_name = "ROLE=OBJECT", env = "STATOR_SCALE")]
    pub(crate) scale: Vec<String>,
    /// Namespace of these objects. Default: that of the kubeconfig or of the pod.
    #[arg(long, value_name = "NAME", env = "STATOR_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig file. Default: `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    #[arg(long, value_name = "FILE", env = "STATOR_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Decide and say so, and change nothing.
    #[arg(long, env = "STATOR_ADVISORY")]
    pub(crate) advisory: bool,
}

/// Address that serves operators.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub(crate) struct PlannerMetricsArgs {
    /// Address that serves metrics and health for operators.
    #[arg(long, env = "STATOR_METRICS_HOST", default_value = "127.0.0.1", value_name = "IP")]
    pub(crate) metrics_host: IpAddr,
    /// Port that serves metrics and health; 0 takes a free one.
    #[arg(long, env = "STATOR_METRICS_PORT", default_value_t = 9085, value_name = "PORT")]
    pub(crate) metrics_port: u16,
}
