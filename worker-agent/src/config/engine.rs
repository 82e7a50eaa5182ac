//! Settings of the workers' engine, and of those in the agent's own process.

use super::{Faults, PinArgs};
use clap::{Args, ValueEnum};
use stator_engine::{EngineOptions, Pooling};
use stator_runtime::config::ConfigError;
use std::path::PathBuf;
use std::time::Duration;

/// Default tokens per block.
pub(crate) const BLOCK_SIZE: u32 = 16;

/// Engine that the workers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// Computes the model on this machine's CPU.
    #[default]
    Builtin,
    /// Schedules and caches as the built-in engine does, but models the time instead of computing;
    /// its tokens mean nothing.
    Sim,
    /// A vLLM server, started by the agent or attached.
    Vllm,
    /// An SGLang server.
    Sglang,
    /// A TensorRT-LLM server.
    Trtllm,
    /// Any server of the OpenAI API that runs already.
    Openai,
}

/// How one vector is made of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PoolingKind {
    /// Hidden values of the last token.
    #[default]
    Last,
    /// Mean of the hidden values of all tokens.
    Mean,
}

impl From<PoolingKind> for Pooling {
    fn from(kind: PoolingKind) -> Self {
        match kind {
            PoolingKind::Last => Self::Last,
            PoolingKind::Mean => Self::Mean,
        }
    }
}

/// Flags that say what the workers run. `stator up` has them too.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Workers to run, 1 to 1024. Each has its own KV cache; the weights are shared.
    #[arg(long, env = "STATOR_WORKERS", default_value_t = 1, value_name = "N")]
    pub workers: u32,

    /// Engine that the workers run. Proxies pass requests for an `openai` server on to it as they
    /// come, and the agent keeps watch.
    #[arg(long, env = "STATOR_ENGINE", default_value = "builtin", value_enum)]
    pub engine: EngineKind,

    /// Hugging Face model folder (config.json, *.safetensors, tokenizer.json). Default: the tiny
    /// model inside this binary.
    #[arg(long, env = "STATOR_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,

    /// Name that clients ask for. Default: the folder's name, or `stator-tiny`. It chooses one of
    /// several models of an `openai` server; a server with one model may have any name.
    #[arg(long, env = "STATOR_MODEL_NAME", value_name = "NAME")]
    pub model_name: Option<String>,

    /// Tokens per KV block, 1 to 1024. Prefixes are reused in whole blocks. Default: 16. Prompts
    /// for an `openai` server are compared in blocks of text, four bytes for each token. Stock
    /// engines report their block size: set it only for one that does not, such as a `trtllm`
    /// without a metrics page.
    #[arg(long, env = "STATOR_BLOCK_SIZE", value_name = "TOKENS")]
    pub block_size: Option<u32>,

    /// KV blocks per worker, 1 to 16777216. Default: 2048 (builtin), 16384 (sim). Stock engines
    /// report it: set it only for one that does not.
    #[arg(long, env = "STATOR_TOTAL_BLOCKS", value_name = "BLOCKS")]
    pub total_blocks: Option<u32>,

    /// Sequences that a worker computes together, 1 to 65536. Default: 64 (builtin), 256 (sim).
    #[arg(long, env = "STATOR_MAX_RUNNING", value_name = "N")]
    pub max_running: Option<u32>,

    /// Sequences that may wait at a worker, 1 to 1048576; further requests are refused with 429.
    #[arg(long, env = "STATOR_MAX_WAITING", default_value_t = 4096, value_name = "N")]
    pub max_waiting: u32,

    /// Tokens per engine step, 1 to 1048576: longer prompts are computed in chunks of at most
    /// this. Default: 512 (builtin), 8192 (sim).
    #[arg(long, env = "STATOR_MAX_BATCHED_TOKENS", value_name = "TOKENS")]
    pub max_batched_tokens: Option<u32>,

    /// Longest prompt and answer together, in tokens, where it is to be shorter than the model's.
    /// With `--engine sim` it may also be longer.
    #[arg(long, env = "STATOR_CONTEXT_LENGTH", value_name = "TOKENS")]
    pub context_length: Option<u32>,

    /// How the built-in engine makes one vector of a prompt, for embeddings and scores: of the last
    /// token's hidden values, or of the mean of all. Models for embeddings say which in their files
    /// (`1_Pooling/config.json`). The mean reuses no cached prefix.
    #[arg(long, env = "STATOR_POOLING", default_value = "last", value_enum, value_name = "HOW")]
    pub pooling: PoolingKind,

    /// Limits of what clients may pin.
    #[command(flatten)]
    pub pins: PinArgs,

    /// Timing that simulated workers take: the name of a GPU and model pair, or `none` for no
    /// time at all.
    #[arg(long, env = "STATOR_SIM_PRESET", default_value = "h100-llama-8b", value_name = "NAME")]
    pub sim_preset: String,

    /// Divides all simulated times, 0.001 to 1000000; 10 is ten times as fast.
    #[arg(long, env = "STATOR_SIM_SPEEDUP", default_value_t = 1.0, value_name = "FACTOR")]
    pub sim_speedup: f64,

    /// Makes every simulated step take this many milliseconds, 0 to 60000, whatever it computes.
    #[arg(long, env = "STATOR_SIM_STEP_MS", value_name = "MS")]
    pub sim_step_ms: Option<f64>,
}
/// Timing of simulated workers.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSettings {
    /// Name of the timing preset.
    pub preset: String,
    /// Divides all times; positive.
    pub speedup: f64,
    /// Fixed time per step, before the speed-up.
    pub step: Option<Duration>,
}

/// Settings of engines in the agent's own process, valid as far as they can be without the model.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// Number of workers.
    pub workers: u32,
    /// Engine of the workers.
    pub kind: OwnEngine,
    /// The model's folder; the built-in tiny model where absent.
    pub model: Option<PathBuf>,
    /// Name that clients ask for; `None` takes the folder's.
    pub model_name: Option<String>,
    /// Limits of each worker.
    pub options: EngineOptions,
    /// Timing of simulated workers.
    pub sim: SimSettings,
}

/// An engine in the agent's own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnEngine {
    /// Computes the model on this machine's CPU.
    Builtin,
    /// Models the time instead of computing.
    Sim,
}

impl TryFrom<EngineArgs> for EngineSettings {
    type Error = ConfigError;

    fn try_from(args: EngineArgs) -> Result<Self, ConfigError> {
        let (kind, (blocks, running, batched)) = match args.engine {
            EngineKind::Builtin => (OwnEngine::Builtin, (2048, 64, 512)),
            EngineKind::Sim => (OwnEngine::Sim, (16_384, 256, 8192)),
            EngineKind::Vllm | EngineKind::Sglang | EngineKind::Trtllm | EngineKind::Openai => {
                let fault = "it is a process of its own: run it with `stator agent`";
                return Err(ConfigError(vec![format!("engine: {fault}")]));
            }
        };
        // All faults are gathered, so that one start shows every one of them.
        let mut faults = Faults::default();
        let options = EngineOptions {
            block_size: args.block_size.unwrap_or(BLOCK_SIZE),
            total_blocks: args.total_blocks.unwrap_or(blocks),
            max_running: args.max_running.unwrap_or(running),
            max_waiting: args.max_waiting,
            max_batched_tokens: args.max_batched_tokens.unwrap_or(batched),
            context_length: args.context_length,
            pooling: args.pooling.into(),
            pins: args.pins.limits(&mut faults),
            ..EngineOptions::default()
        };
        faults.range("workers", args.workers, 1, 1024);
        faults.range("block-size", options.block_size, 1, 1024);
        faults.range("total-blocks", options.total_blocks, 1, 1 << 24);
        faults.range("max-running", options.max_running, 1, 65_536);
        faults.range("max-waiting", options.max_waiting, 1, 1 << 20);
        faults.range("max-batched-tokens", options.max_batched_tokens, 1, 1 << 20);
        faults.range("context-length", options.context_length.unwrap_or(2), 2, u32::MAX);
        faults.range("sim-speedup", args.sim_speedup, 0.001, 1e6);
        faults.range("sim-step-ms", args.sim_step_ms.unwrap_or(0.0), 0.0, 60_000.0);
        if let Some(folder) = &args.model {
            let config = folder.join("config.json");
            if let Err(error) = std::fs::metadata(&config) {
                faults.0.push(format!("model: cannot read {config:?}: {error}"));
            }
        }
        if args.model_name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            faults.0.push("model-name: must not be empty".into());
        }
        faults.none()?;
        Ok(Self {
            workers: args.workers,
            kind,
            model: args.model,
            model_name: args.model_name,
            options,
            sim: SimSettings {
                preset: args.sim_preset,
                speedup: args.sim_speedup,
                step: args.sim_step_ms.map(|ms| Duration::from_secs_f64(ms / 1000.0)),
            },
        })
    }
}
