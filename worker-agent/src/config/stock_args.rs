//! Flags of engines that are processes of their own, and checks of each.

use super::{EngineArgs, Faults, TrtllmArgs};
use clap::{Args, ValueEnum};
use stator_dialect::{ApiKey, Kind};
use stator_protos::discovery::Role;
use std::path::PathBuf;

/// A worker's share of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// The whole request.
    #[default]
    Aggregated,
    /// Compute prompts for decode workers.
    Prefill,
    /// Answer; prefill workers may compute the prompts.
    Decode,
}

/// Flags of engines that are processes of their own.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Stock engines (vllm, sglang, trtllm, openai)")]
pub struct StockArgs {
    /// Use the running engine at this URL, for example `http://127.0.0.1:8001`, instead of
    /// starting one. The agent asks it for its KV events and metrics. Proxies send requests for an
    /// `openai` server straight to it. If it is on the loopback interface they use the host of
    /// `--advertise-host`, if that is given.
    #[arg(long, env = "STATOR_ATTACH", value_name = "URL")]
    pub attach: Option<String>,

    /// Program that starts the engine. Default: `vllm`, `python3 -m sglang.launch_server` or
    /// `trtllm-serve`, from PATH.
    #[arg(long, env = "STATOR_ENGINE_PROGRAM", value_name = "PATH", conflicts_with = "attach")]
    pub engine_program: Option<PathBuf>,

    /// Start the engine as a further node of one that serves on another host, with the flags that
    /// node has. It answers nobody: the agent registers no worker, and is ready while the engine runs.
    #[arg(long, env = "STATOR_ENGINE_FOLLOWER", conflicts_with = "attach")]
    pub engine_follower: bool,

    /// Port that the started engine serves on, on the loopback interface; 0 takes a free one. An
    /// `sglang` that prefills serves where decode workers must reach it: at `--advertise-host`, or
    /// the address of `--listen`.
    #[arg(long, env = "STATOR_ENGINE_PORT", default_value_t = 0, value_name = "PORT")]
    pub engine_port: u16,

    /// Key that the engine asks for, sent with every call. An engine that the agent starts is told
    /// to ask for it. Prefer the environment or a file: everybody on the machine can read a
    /// command line.
    #[arg(
        long,
        env = "STATOR_ENGINE_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = |key: &str| Ok::<_, std::convert::Infallible>(ApiKey(key.to_owned()))
    )]
    pub engine_api_key: Option<ApiKey>,

    /// File with that key, read once at start; white space around it does not count.
    #[arg(
        long,
        env = "STATOR_ENGINE_API_KEY_FILE",
        value_name = "FILE",
        conflicts_with = "engine_api_key"
    )]
    pub engine_api_key_file: Option<PathBuf>,

    /// Part of a request that the workers do: `prefill` computes prompts for workers with
    /// `decode`. Built-in engines do so too.
    #[arg(long, env = "STATOR_ROLE", default_value = "aggregated", value_enum)]
    pub role: RoleArg,

    /// Connector that moves KV between engines with the roles prefill and decode. Default:
    /// `NixlConnector` (vllm), `mooncake` (sglang).
    #[arg(long, env = "STATOR_CONNECTOR", value_name = "NAME")]
    pub connector: Option<String>,

    /// Longest wait for the engine to become ready, in seconds, 1 to 86400.
    #[arg(long, env = "STATOR_ENGINE_START_TIMEOUT_S", default_value_t = 1800, value_name = "S")]
    pub engine_start_timeout_s: u64,

    /// An engine that has requests and takes no step for this long hangs and is started again, in
    /// seconds, 1 to 86400.
    #[arg(long, env = "STATOR_ENGINE_HANG_TIMEOUT_S", default_value_t = 120, value_name = "S")]
    pub engine_hang_timeout_s: u64,

    /// Starts of an engine that fails again and again before the agent gives up, 0 for no limit.
    #[arg(long, env = "STATOR_ENGINE_RESTARTS", default_value_t = 0, value_name = "N")]
    pub engine_restarts: u32,

    /// Longest wait for the engine to end by itself at shutdown, in seconds, 0 to 3600.
    #[arg(long, env = "STATOR_ENGINE_STOP_GRACE_S", default_value_t = 20, value_name = "S")]
    pub engine_stop_grace_s: u64,

    /// Time without a request after which the agent asks the engine for one token, in seconds, 0
    /// to 86400; 0 never asks. The agent does not see the requests of an `openai` server, so it
    /// asks each time.
    #[arg(long, env = "STATOR_CANARY_IDLE_S", default_value_t = 60, value_name = "S")]
    pub canary_idle_s: u64,

    /// Longest wait for a prefill worker and its KV before a decode worker computes the prompt
    /// itself, in milliseconds, 1 to 3600000. An `sglang` that decodes computes no prompts: its
    /// requests go to other workers.
    #[arg(long, env = "STATOR_PREFILL_TIMEOUT_MS", default_value_t = 30_000, value_name = "MS")]
    pub prefill_timeout_ms: u64,

    /// Longest silence of a prefill agent that owes a prompt or KV, in milliseconds, 1000 to 3600000;
    /// then a decode worker computes the prompt itself. Agents answer probes while their engines
    /// compute, so a long prefill is no silence. Default: 2 s.
    #[arg(long, env = "STATOR_PREFILL_SILENCE_MS", default_value_t = 2_000, value_name = "MS")]
    pub prefill_silence_ms: u64,

    /// Room for the engine's own metrics on the agent's page, in bytes, 0 to 8388608; 0 shows none.
    /// They keep their names and get the label `worker`.
    #[arg(
        long,
        env = "STATOR_ENGINE_METRICS_MAX_BYTES",
        default_value_t = 1 << 20,
        value_name = "BYTES"
    )]
    pub engine_metrics_max_bytes: u32,

    /// Flags of TensorRT-LLM alone.
    #[command(flatten)]
    pub trtllm: TrtllmArgs,

    /// The engine's own flags, after `--`.
    #[arg(last = true, value_name = "ENGINE FLAGS")]
    pub engine_args: Vec<String>,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Aggregated => Self::Aggregated,
            RoleArg::Prefill => Self::Prefill,
            RoleArg::Decode => Self::Decode,
        }
    }
}

impl StockArgs {
    /// Faults of flags that need a stock engine, where the engine is our own: their user meant
    /// another engine.
    pub(super) fn faults_without_engine(&self) -> Vec<String> {
        let (started, attached) = ("vllm, sglang or trtllm", "vllm, sglang, trtllm or openai");
        let given = [
            ("attach", self.attach.is_some(), attached),
            ("engine-program", self.engine_program.is_some(), started),
            ("engine-follower", self.engine_follower, "vllm or sglang"),
            ("flags after `--`", !self.engine_args.is_empty(), started),
        ];
        let given = given.into_iter().filter(|(_, given, _)| *given);
        let given = given.map(|(flag, _, engines)| format!("{flag}: needs --engine {engines}"));
        given.chain(self.trtllm.faults_of_others()).collect()
    }

    /// Checks the flags with a range, and those that bound one another.
    pub(super) fn check_limits(&self, faults: &mut Faults) {
        faults.range("engine-start-timeout-s", self.engine_start_timeout_s, 1, 86_400);
        faults.range("engine-hang-timeout-s", self.engine_hang_timeout_s, 1, 86_400);
        let hang_ms = self.engine_hang_timeout_s.saturating_mul(1000);
        if self.role == RoleArg::Decode && self.prefill_timeout_ms >= hang_ms {
            let (prefill, hang) = (self.prefill_timeout_ms, self.engine_hang_timeout_s);
            faults.0.push(format!(
                "prefill-timeout-ms: {prefill} is not below engine-hang-timeout-s, {hang} s: an \
                 engine that waits for KV would be taken for one that hangs"
            ));
        }
        faults.range("engine-stop-grace-s", self.engine_stop_grace_s, 0, 3600);
        faults.range("canary-idle-s", self.canary_idle_s, 0, 86_400);
        faults.range("prefill-timeout-ms", self.prefill_timeout_ms, 1, 3_600_000);
        faults.range("engine-metrics-max-bytes", self.engine_metrics_max_bytes, 0, 8 << 20);
    }

    /// Checks the flags that depend on the kind of the engine, and on its start by the agent.
    pub(super) fn check_use(&self, kind: Kind, engine: &EngineArgs, faults: &mut Faults) {
        faults.range("block-size", engine.block_size.unwrap_or(1), 1, 1024);
        faults.range("total-blocks", engine.total_blocks.unwrap_or(1), 1, 1 << 24);
        // One engine is one process; more of them are more agents.
        faults.range("workers", engine.workers, 1, 1);
        if kind != Kind::Openai && engine.model.is_none() {
            let folder = "the model's folder is needed: proxies take its tokenizer from here";
            faults.0.push(format!("model: {folder}"));
        }
        if self.engine_follower && !matches!(kind, Kind::Vllm | Kind::Sglang) {
            faults.0.push("engine-follower: needs --engine vllm or sglang".into());
        }
        if self.attach.is_some() && !self.engine_args.is_empty() {
            faults.0.push("attach: a running engine takes no flags after `--`".into());
        }
        if let Some(url) = &self.attach
            && !(url.starts_with("http://") || url.starts_with("https://"))
        {
            faults.0.push(format!("attach: {url:?} is not `http://host:port`"));
        }
        if self.attach.is_some() && self.engine_port != 0 {
            let port = self.engine_port;
            faults.0.push(format!("engine-port: {port} is for an engine that is started here"));
        }
    }
}
