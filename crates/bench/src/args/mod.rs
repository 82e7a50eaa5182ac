//! The command line of `stator bench`. Every flag is also an environment variable,
//! `STATOR_BENCH_` and the flag's name in capitals.

mod profile;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

pub use profile::ProfileArgs;
use value::{duration, file_name, json_object, number, seconds};

/// Load generator and trace replay against any OpenAI-compatible endpoint.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Something else than a measurement.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The measurement.
    #[command(flatten)]
    pub load: LoadArgs,
    /// The profile of an engine.
    #[command(flatten)]
    pub profile: ProfileArgs,
}

/// Commands of `stator bench` besides measuring.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Show the JSON reports of earlier measurements side by side.
    Compare(CompareArgs),
}

/// Arguments of `stator bench compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// Reports written by --json. Reports with equal labels count as repetitions: the table shows
    /// their median and, in parentheses, their range. The first label is what others are compared to.
    #[arg(required = true, value_name = "FILE")]
    pub reports: Vec<PathBuf>,
    /// Write the table as Markdown too.
    #[arg(long, value_name = "FILE", env = "STATOR_BENCH_MARKDOWN")]
    pub markdown: Option<PathBuf>,
}

/// Arguments of one measurement.
#[derive(Args, Clone, Debug, Serialize)]
pub struct LoadArgs {
    /// Endpoint and API to measure.
    #[command(flatten)]
    #[serde(flatten)]
    pub target: TargetArgs,
    /// Amount and pace of requests.
    #[command(flatten)]
    #[serde(flatten)]
    pub pace: PaceArgs,
    /// Made-up prompts.
    #[command(flatten)]
    #[serde(flatten)]
    pub prompt: PromptArgs,
    /// A recorded trace.
    #[command(flatten)]
    #[serde(flatten)]
    pub trace: TraceArgs,
    /// Latency objectives for goodput.
    #[command(flatten)]
    #[serde(flatten)]
    pub objectives: ObjectiveArgs,
    /// Reports and their files.
    #[command(flatten)]
    #[serde(flatten)]
    pub output: OutputArgs,
}

/// Endpoint and API to measure.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Target")]
pub struct TargetArgs {
    /// Address of the server, http only; a path is kept, and a trailing /v1 may be left out.
    #[arg(long, default_value = "http://127.0.0.1:8000", env = "STATOR_BENCH_URL")]
    pub url: String,
    /// Name of the model; without it, the first that /v1/models lists.
    #[arg(long, env = "STATOR_BENCH_MODEL")]
    pub model: Option<String>,
    /// API to use: /v1/chat/completions or /v1/completions.
    #[arg(long, value_enum, default_value_t = Endpoint::Chat, env = "STATOR_BENCH_ENDPOINT")]
    pub endpoint: Endpoint,
    /// Ask for a stream; without one there is no TTFT and no ITL.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set, env = "STATOR_BENCH_STREAM")]
    pub stream: bool,
    /// Ask for whole answers; the same as --stream=false.
    #[arg(long, env = "STATOR_BENCH_NO_STREAM")]
    pub no_stream: bool,
    /// Ask the engine to produce exactly the wanted number of tokens: sends `ignore_eos` and
    /// `min_tokens`, extensions that vLLM, SGLang and stator understand.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set, env = "STATOR_BENCH_IGNORE_EOS")]
    pub ignore_eos: bool,
    /// Let answers end when the model ends them; the same as --ignore-eos=false. Needed for
    /// servers that refuse unknown fields.
    #[arg(long, env = "STATOR_BENCH_NO_IGNORE_EOS")]
    pub no_ignore_eos: bool,
    /// A JSON object whose fields are added to every request, such as {"temperature":0.7}.
    /// Requests carry no sampling parameters of their own, except "temperature":0 without this.
    #[arg(long, value_name = "JSON", value_parser = json_object, env = "STATOR_BENCH_EXTRA_BODY")]
    pub extra_body: Option<String>,
    /// Acknowledge what arrives at once (TCP_QUICKACK, Linux only). Without it, servers that write
    /// small pieces and wait for their acknowledgement show delays of 40 ms.
    #[arg(long, env = "STATOR_BENCH_QUICKACK")]
    pub quickack: bool,
    /// Sent as a bearer token; never written to a report.
    #[arg(long, env = "STATOR_API_KEY", hide_env_values = true)]
    #[serde(skip)]
    pub api_key: Option<String>,
    /// Longest time for one answer, in seconds, 0.001 to 86400.
    #[arg(long, default_value = "600", value_parser = |text: &str| number(text, 0.001..=86_400.0),
          env = "STATOR_BENCH_TIMEOUT_S")]
    pub timeout_s: f64,
}

/// Amount and pace of requests.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Load")]
pub struct PaceArgs {
    /// Requests in flight, 1 to 65536. Closed loop: exactly so many, each next one is sent when
    /// one has been answered; default 16. Open loop (--rate, --trace): at most so many, later ones
    /// wait, and the wait is reported as send lag (resolution 1 ms); default 16384. Of conversations, each has one
    /// request in flight.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536),
          env = "STATOR_BENCH_CONCURRENCY")]
    pub concurrency: Option<u32>,
    /// Requests in all, 1 to 1000000000. Default 256, or without limit where --duration is given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
          env = "STATOR_BENCH_REQUESTS")]
    pub requests: Option<u64>,
    /// Send nothing new after this time: 500ms, 30s, 5m, 1h, or a number of seconds. Requests in
    /// flight are still awaited.
    #[arg(long, value_name = "TIME", value_parser = duration, env = "STATOR_BENCH_DURATION")]
    #[serde(rename = "duration_s", serialize_with = "seconds")]
    pub duration: Option<Duration>,
    /// Closed loop: the first requests begin one after the other over this time, and only then does
    /// the measurement begin. It ends with --duration, which is needed, and cuts off what is in
    /// flight. So only the steady load between beginning and end is measured.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "duration",
          conflicts_with_all = ["rate", "trace", "requests"], env = "STATOR_BENCH_RAMP")]
    #[serde(rename = "ramp_s", serialize_with = "seconds")]
    pub ramp: Option<Duration>,
    /// Open loop: requests (or conversations) arrive at random, so many per second on average
    /// (Poisson), 0.001 to 100000, whether or not earlier ones have been answered.
    #[arg(long, value_name = "R", value_parser = |text: &str| number(text, 0.001..=100_000.0),
          env = "STATOR_BENCH_RATE")]
    pub rate: Option<f64>,
    /// Requests sent before the measurement begins, 0 to 1000000; their prompts share nothing with
    /// those that are measured.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000),
          env = "STATOR_BENCH_WARMUP_REQUESTS")]
    pub warmup_requests: u64,
    /// Seed of prompts and arrivals: equal seeds send equal requests.
    #[arg(long, value_name = "N", default_value_t = 0, env = "STATOR_BENCH_SEED")]
    pub seed: u64,
}

/// Made-up prompts and conversations.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Synthetic prompts")]
pub struct PromptArgs {
    /// Material of prompts. Tokens: ids, so that lengths are exact; needs the completions
    /// endpoint, and is its default. Text: one common English word for each wanted token, so that
    /// lengths are what the server's tokenizer makes of them; usage reports the real ones.
    #[arg(long, value_enum, env = "STATOR_BENCH_PROMPT_KIND")]
    pub prompt_kind: Option<PromptKind>,
    /// Words for text, one a line, in place of the built-in ones: 1 to 1000000 of lower-case ASCII
    /// letters. With words that are one token each, lengths are exact.
    #[arg(long, value_name = "FILE", env = "STATOR_BENCH_WORDS")]
    pub words: Option<PathBuf>,
    /// Token ids are drawn below this, 16 to 10000000. The lowest 256 (or half of them, where that is
    /// less) are left out, because special and byte tokens live there.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(16..=10_000_000),
          env = "STATOR_BENCH_VOCAB_SIZE")]
    pub vocab_size: u32,
    /// Length of a prompt, in tokens or words, 1 to 10000000; of a conversation, of each turn.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000_000),
          env = "STATOR_BENCH_PROMPT_TOKENS")]
    pub prompt_tokens: u32,
    /// Length of an answer in tokens, 1 to 1000000.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          env = "STATOR_BENCH_OUTPUT_TOKENS")]
    pub output_tokens: u32,
    /// Spread of both lengths, 0.0 to 0.9: each is uniform between (1 - S) and (1 + S) of its size.
    #[arg(long, value_name = "S", default_value = "0", value_parser = |text: &str| number(text, 0.0..=0.9),
          env = "STATOR_BENCH_LENGTH_SPREAD")]
    pub length_spread: f64,
    /// Share of --prompt-tokens that a request has in common with its group, 0.0 to 1.0. In a
    /// conversation it is the system message, before the first turn.
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = |text: &str| number(text, 0.0..=1.0),
          env = "STATOR_BENCH_SHARED_PREFIX_SHARE")]
    pub shared_prefix_share: f64,
    /// Groups with a prefix of their own, 1 to 1000000; requests fall into them at random.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          env = "STATOR_BENCH_PREFIX_GROUPS")]
    pub prefix_groups: u32,
    /// Conversations instead of single requests, 1 to 10000000: each turn sends all that was said
    /// before, the server's answers included. In place of --requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000),
          conflicts_with = "requests", env = "STATOR_BENCH_CONVERSATIONS")]
    pub conversations: Option<u64>,
    /// Turns of a conversation, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000),
          env = "STATOR_BENCH_TURNS")]
    pub turns: u32,
}

/// Replay of a recorded trace.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Trace replay")]
pub struct TraceArgs {
    /// Replay this trace in place of made-up prompts: Mooncake's format, plain JSON lines (decompress
    /// first) of {"timestamp":ms,"input_length":tokens,"output_length":tokens,"hash_ids":[..]}.
    /// Equal hash ids, one for each 512 tokens, become equal parts of prompts.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["conversations", "rate"], env = "STATOR_BENCH_TRACE")]
    #[serde(serialize_with = "file_name")]
    pub trace: Option<PathBuf>,
    /// Replay only the first N requests of the trace, 1 to 1000000 (also the most that is read).
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000),
          env = "STATOR_BENCH_LIMIT")]
    pub limit: u64,
    /// Replay the trace X times as fast, 0.001 to 1000000. With a very large X and --concurrency
    /// the replay becomes a closed loop.
    #[arg(long, value_name = "X", default_value = "1", value_parser = |text: &str| number(text, 0.001..=1_000_000.0),
          env = "STATOR_BENCH_SPEED")]
    pub speed: f64,
    /// Scale the trace's lengths, and with them its 512-token blocks, 0.0001 to 16; a fraction such
    /// as 1/32 is understood (it makes blocks of 16 tokens).
    #[arg(long, value_name = "X", default_value = "1", value_parser = |text: &str| number(text, 0.0001..=16.0),
          env = "STATOR_BENCH_LENGTH_SCALE")]
    pub length_scale: f64,
    /// Cut longer prompts of the trace to N tokens (after scaling), for models with a short
    /// context, 1 to 10000000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000),
          env = "STATOR_BENCH_PROMPT_TOKENS_MAX")]
    pub prompt_tokens_max: Option<u32>,
    /// Cut longer answers of the trace to N tokens (after scaling), 1 to 1000000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          env = "STATOR_BENCH_OUTPUT_TOKENS_MAX")]
    pub output_tokens_max: Option<u32>,
}

/// Latency objectives. Goodput counts the requests that meet every one that is given.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Objectives")]
pub struct ObjectiveArgs {
    /// Longest TTFT of a good request, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = |text: &str| number(text, 0.001..=86_400_000.0),
          env = "STATOR_BENCH_SLO_TTFT_MS")]
    pub slo_ttft_ms: Option<f64>,
    /// Longest ITL (mean gap between a request's tokens) of a good request, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = |text: &str| number(text, 0.001..=86_400_000.0),
          env = "STATOR_BENCH_SLO_ITL_MS")]
    pub slo_itl_ms: Option<f64>,
    /// Longest end-to-end latency of a good request, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = |text: &str| number(text, 0.001..=86_400_000.0),
          env = "STATOR_BENCH_SLO_E2E_MS")]
    pub slo_e2e_ms: Option<f64>,
}

/// Further measurements, and files for the results.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Report")]
pub struct OutputArgs {
    /// Report CPU time and memory of this process (Linux); may be repeated.
    #[arg(long, value_name = "PID", value_delimiter = ',', env = "STATOR_BENCH_PID")]
    pub pid: Vec<u32>,
    /// Count the descendants of each --pid with it, as they are when the measurement begins.
    #[arg(long, env = "STATOR_BENCH_PID_CHILDREN")]
    pub pid_children: bool,
    /// Write everything that was measured, and the configuration, as JSON.
    #[arg(long, value_name = "FILE", env = "STATOR_BENCH_JSON")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
    /// Write one self-contained HTML page with plots.
    #[arg(long, value_name = "FILE", env = "STATOR_BENCH_HTML")]
    #[serde(skip)]
    pub html: Option<PathBuf>,
    /// Name of this measurement in reports and comparisons.
    #[arg(long, value_name = "TEXT", default_value = "bench", env = "STATOR_BENCH_LABEL")]
    pub label: String,
}

/// API to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// Content of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PromptKind {
    /// Token ids.
    Tokens,
    /// Common English words.
    Text,
}

#[cfg(test)]
mod tests;
