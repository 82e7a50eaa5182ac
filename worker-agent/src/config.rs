//! Settings of the agent: flags as the user writes them, and values that cannot be wrong.

mod access;
mod openai;
mod stock;

pub use access::{Access, AccessArgs, Operators, ServerTls, TokenArgs, TokenSource};
pub use stock::{Origin, RoleArg, StockArgs, StockSettings};

use crate::engine::EngineOptions;
use clap::{Args, ValueEnum};
use stator_dialect::Kind;
use stator_discovery::{DiscoveryArgs, Source};
use stator_protos::discovery::{ProfileRecord, Role};
use stator_runtime::config::ConfigError;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Which engine the workers run.
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

/// Flags that say what the workers run. `stator up` has them too.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Workers to run, 1 to 1024. Each has its own KV cache; the weights are shared.
    #[arg(long, env = "STATOR_WORKERS", default_value_t = 1, value_name = "N")]
    pub workers: u32,

    /// What the workers run: `builtin` computes the model on the CPU, `sim` only takes the time
    /// that a GPU would, `vllm`, `sglang` and `trtllm` are those engines. `openai` is any server of
    /// the OpenAI API that runs already: proxies pass requests on to it as they come, and the agent
    /// keeps watch.
    #[arg(long, env = "STATOR_ENGINE", default_value = "builtin", value_enum)]
    pub engine: EngineKind,

    /// Hugging Face model folder (config.json, *.safetensors, tokenizer.json). Default: the tiny
    /// model inside this binary.
    #[arg(long, env = "STATOR_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,

    /// Name that clients ask for. Default: the folder's name, or `stator-tiny`. Of the models of an
    /// `openai` server the one that is meant; its only one may have any name.
    #[arg(long, env = "STATOR_MODEL_NAME", value_name = "NAME")]
    pub model_name: Option<String>,

    /// Tokens per KV block, 1 to 1024. Prefixes are reused in whole blocks. Default: 16. Prompts for
    /// an `openai` server are compared in blocks of text, four bytes for each token. Other engines
    /// say it themselves; it is for those that do not, as a `trtllm` without a metrics page.
    #[arg(long, env = "STATOR_BLOCK_SIZE", value_name = "TOKENS")]
    pub block_size: Option<u32>,

    /// KV blocks per worker, 1 to 16777216. Default: 2048 (builtin), 16384 (sim). Other engines say
    /// it themselves; it is for those that do not.
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

/// Flags of `stator agent`.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// What the workers run.
    #[command(flatten)]
    pub engine: EngineArgs,

    /// What it takes where that is a stock engine.
    #[command(flatten)]
    pub stock: StockArgs,

    /// Where the agent publishes.
    #[command(flatten)]
    pub planes: PlaneArgs,

    /// Where the workers stand.
    #[command(flatten)]
    pub place: PlaceArgs,

    /// Who may do what on the request plane.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Flags that say where the workers stand.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Place")]
pub struct PlaceArgs {
    /// Labels of the workers that requests may ask for, for example `pool=batch`; several with
    /// commas.
    #[arg(long, env = "STATOR_LABELS", value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Vec<String>,

    /// Name of the machine. Workers of one host, rack or zone move KV to each other more cheaply.
    #[arg(long, env = "STATOR_TOPOLOGY_HOST", value_name = "NAME")]
    pub topology_host: Option<String>,

    /// Name of the rack, or of whatever shares a fast network.
    #[arg(long, env = "STATOR_TOPOLOGY_RACK", value_name = "NAME")]
    pub topology_rack: Option<String>,

    /// Name of the zone or building.
    #[arg(long, env = "STATOR_TOPOLOGY_ZONE", value_name = "NAME")]
    pub topology_zone: Option<String>,
}

/// Flags of the agent's planes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Planes")]
pub struct PlaneArgs {
    /// Request plane: `address:port` (port 0 takes a free one) or `unix:///path`.
    #[arg(long, env = "STATOR_LISTEN", default_value = "127.0.0.1:7000", value_name = "ENDPOINT")]
    pub listen: String,

    /// ZMQ endpoint for KV events and load: `tcp://address:port` or `ipc:///path`.
    #[arg(
        long,
        env = "STATOR_EVENTS_LISTEN",
        default_value = "tcp://127.0.0.1:5557",
        value_name = "ENDPOINT"
    )]
    pub events_listen: String,

    /// ZMQ endpoint that answers replay requests: `tcp://address:port` or `ipc:///path`.
    #[arg(
        long,
        env = "STATOR_REPLAY_LISTEN",
        default_value = "tcp://127.0.0.1:5558",
        value_name = "ENDPOINT"
    )]
    pub replay_listen: String,

    /// Host that others reach this agent at. Default: the address it listens on, or 127.0.0.1
    /// where it listens on all.
    #[arg(long, env = "STATOR_ADVERTISE_HOST", value_name = "HOST")]
    pub advertise_host: Option<String>,

    /// Address that serves metrics and health.
    #[arg(long, env = "STATOR_METRICS_HOST", default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub metrics_host: IpAddr,

    /// Port that serves metrics and health; 0 takes a free one.
    #[arg(long, env = "STATOR_METRICS_PORT", default_value_t = 9091, value_name = "PORT")]
    pub metrics_port: u16,

    /// Identity of the agent, kept over restarts; letters, digits, `.`, `_`, `-`. Its workers'
    /// ids follow from it. Default: made of host name and request plane.
    #[arg(long, env = "STATOR_AGENT_ID", value_name = "ID")]
    pub agent_id: Option<String>,

    /// Where the agent registers.
    #[command(flatten)]
    pub discovery: DiscoveryArgs,

    /// Lease of the registration in milliseconds, 300 to 600000. It is renewed three times as
    /// often; an agent that stops renewing is taken for dead after it.
    #[arg(long, env = "STATOR_LEASE_MS", default_value_t = 6000, value_name = "MS")]
    pub lease_ms: u64,

    /// Bytes that event logs may take, all workers together, 65536 to 68719476736. What a
    /// subscriber misses for longer costs it a snapshot.
    #[arg(long, env = "STATOR_EVENT_LOG_BYTES", default_value_t = 64 << 20, value_name = "BYTES")]
    pub event_log_bytes: u64,

    /// Shortest time between two load reports of a busy worker, in milliseconds, 1 to 10000.
    #[arg(long, env = "STATOR_LOAD_INTERVAL_MS", default_value_t = 50, value_name = "MS")]
    pub load_interval_ms: u64,

    /// Requests that one client stream may have running, 1 to 1048576.
    #[arg(
        long,
        env = "STATOR_MAX_REQUESTS_PER_STREAM",
        default_value_t = 65_536,
        value_name = "N"
    )]
    pub max_requests_per_stream: u32,

    /// Longest wait for running requests at shutdown, in seconds, 0 to 86400.
    #[arg(long, env = "STATOR_DRAIN_TIMEOUT_S", default_value_t = 30, value_name = "S")]
    pub drain_timeout_s: u64,
}

/// What simulated workers take for time.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSettings {
    /// Name of the timing preset.
    pub preset: String,
    /// Divides all times; positive.
    pub speedup: f64,
    /// Fixed time per step, before the speed-up.
    pub step: Option<Duration>,
}

/// What the workers run. A value of this type is valid as far as it can be without the model.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// How many there are.
    pub workers: u32,
    /// Which engine.
    pub kind: OwnEngine,
    /// The model's folder; the built-in tiny model where absent.
    pub model: Option<PathBuf>,
    /// Name that clients ask for, where it is not the folder's.
    pub model_name: Option<String>,
    /// Limits of each worker.
    pub options: EngineOptions,
    /// Timing of simulated workers.
    pub sim: SimSettings,
}

/// Which of the engines in the agent's own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnEngine {
    /// Computes the model on this machine's CPU.
    Builtin,
    /// Models the time instead of computing.
    Sim,
}

/// What an agent runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Runs {
    /// Engines in its own process.
    Own(EngineSettings),
    /// An engine that is a process of its own.
    Stock(StockSettings),
}

/// Where the request plane listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP address.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// Settings of the agent. A value of this type is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSettings {
    /// What the workers run.
    pub engine: Runs,
    /// What the workers are for and where they stand, as far as flags say.
    pub profile: ProfileRecord,
    /// Request plane.
    pub listen: Listen,
    /// Who may use it, and for what.
    pub access: Access,
    /// ZMQ endpoint of the event plane.
    pub events_listen: String,
    /// ZMQ endpoint of replay.
    pub replay_listen: String,
    /// Host in the record, where it is not the listening address.
    pub advertise_host: Option<String>,
    /// Metrics and health; `None` serves none, for agents inside another role's process.
    pub metrics_listen: Option<SocketAddr>,
    /// Identity, where it is not made.
    pub agent_id: Option<String>,
    /// Where the record goes.
    pub discovery: Source,
    /// Lease of the record.
    pub lease: Duration,
    /// Bytes of event log, all workers together.
    pub event_log_bytes: usize,
    /// Shortest time between two load reports of a busy worker.
    pub load_interval: Duration,
    /// Longest wait of an engine in this process for a prefill worker and its KV.
    pub prefill_timeout: Duration,
    /// Requests that one client stream may have running.
    pub max_requests_per_stream: usize,
    /// Longest wait for running requests at shutdown.
    pub drain_timeout: Duration,
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
        let options = EngineOptions {
            block_size: args.block_size.unwrap_or(BLOCK_SIZE),
            total_blocks: args.total_blocks.unwrap_or(blocks),
            max_running: args.max_running.unwrap_or(running),
            max_waiting: args.max_waiting,
            max_batched_tokens: args.max_batched_tokens.unwrap_or(batched),
            context_length: args.context_length,
        };
        let mut faults = Faults::default();
        faults.range("workers", args.workers, 1, 1024);
        faults.range("block-size", options.block_size, 1, 1024);
        faults.range("total-blocks", options.total_blocks, 1, 1 << 24);
        faults.range("max-running", options.max_running, 1, 65_536);
        faults.range("max-waiting", options.max_waiting, 1, 1 << 20);
        faults.range("max-batched-tokens", options.max_batched_tokens, 1, 1 << 20);
        faults.range("context-length", options.context_length.unwrap_or(2), 2, u32::MAX);
        faults.range("sim-speedup", args.sim_speedup, 0.001, 1e6);
        faults.range("sim-step-ms", args.sim_step_ms.unwrap_or(0.0), 0.0, 60_000.0);
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

impl TryFrom<AgentArgs> for AgentSettings {
    type Error = ConfigError;

    fn try_from(args: AgentArgs) -> Result<Self, ConfigError> {
        let AgentArgs { engine, stock, planes, place, access } = args;
        let mut faults = Faults::default();
        let profile = ProfileRecord {
            role: Role::default(),
            labels: place.labels,
            host: place.topology_host,
            rack: place.topology_rack,
            zone: place.topology_zone,
            ..ProfileRecord::default()
        };
        faults.0.extend(profile_faults(&profile));
        let listen = faults.keep_one(listen(&planes.listen));
        let role = stock.role.into();
        let prefill_timeout = Duration::from_millis(stock.prefill_timeout_ms);
        let engine = match engine.engine.stock() {
            None => {
                faults.0.extend(stock.faults_without_engine());
                faults.range("prefill-timeout-ms", stock.prefill_timeout_ms, 1, 3_600_000);
                EngineSettings::try_from(engine).map(Runs::Own)
            }
            Some(kind) => {
                let host = engine_host(&planes, listen.as_ref(), kind);
                StockSettings::new(kind, engine, stock, host).map(Runs::Stock)
            }
        };
        let engine = faults.keep(engine);
        if let (Some(_), Some(listen)) = (&engine, &listen) {
            faults.0.extend(place_fault(&planes, listen, role));
        }
        let access = access.access(listen.as_ref(), &mut faults.0);
        for (flag, endpoint) in
            [("events-listen", &planes.events_listen), ("replay-listen", &planes.replay_listen)]
        {
            faults.keep_one(zmq_endpoint(flag, endpoint));
        }
        faults.range("lease-ms", planes.lease_ms, 300, 600_000);
        faults.range("event-log-bytes", planes.event_log_bytes, 65_536, 64 << 30);
        faults.range("load-interval-ms", planes.load_interval_ms, 1, 10_000);
        faults.range("max-requests-per-stream", planes.max_requests_per_stream, 1, 1 << 20);
        faults.range("drain-timeout-s", planes.drain_timeout_s, 0, 86_400);
        if let Some(id) = planes.agent_id.as_deref().filter(|id| !is_agent_id(id)) {
            faults.0.push(format!("agent-id: {id:?} is not 1 to 128 of A-Z a-z 0-9 . _ -"));
        }
        let discovery = planes.discovery.source().map_err(|fault| format!("discovery: {fault}"));
        let discovery = faults.keep_one(discovery);
        faults.none()?;
        let (Some(engine), Some(listen), Some(discovery)) = (engine, listen, discovery) else {
            unreachable!("a missing part is a fault, and faults were reported")
        };
        Ok(Self {
            event_log_bytes: planes.event_log_bytes as usize,
            profile: ProfileRecord { role, ..profile },
            engine,
            listen,
            access,
            events_listen: planes.events_listen,
            replay_listen: planes.replay_listen,
            advertise_host: planes.advertise_host,
            metrics_listen: Some(SocketAddr::new(planes.metrics_host, planes.metrics_port)),
            agent_id: planes.agent_id,
            discovery,
            lease: Duration::from_millis(planes.lease_ms),
            load_interval: Duration::from_millis(planes.load_interval_ms),
            prefill_timeout,
            max_requests_per_stream: planes.max_requests_per_stream as usize,
            drain_timeout: Duration::from_secs(planes.drain_timeout_s),
        })
    }
}

/// Tokens per block where nothing else is said.
pub(crate) const BLOCK_SIZE: u32 = 16;

/// Most labels of an agent's workers, and the longest label or name in bytes.
const LABELS_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 256;

/// Host that others reach an engine of this kind at: where they reach its agent. One that somebody
/// else runs is there only where that is said.
fn engine_host(planes: &PlaneArgs, listen: Option<&Listen>, kind: Kind) -> Option<String> {
    let own = match listen {
        Some(Listen::Tcp(address)) if !address.ip().is_unspecified() => Some(address.ip()),
        _ => None,
    };
    let own = own.filter(|_| kind != Kind::Openai).map(|ip| ip.to_string());
    planes.advertise_host.clone().or(own)
}

/// Whether those who share requests with this agent could not reach it: it listens everywhere, and
/// would be taken to be at the loopback interface.
fn place_fault(planes: &PlaneArgs, listen: &Listen, role: Role) -> Option<String> {
    let everywhere = matches!(listen, Listen::Tcp(address) if address.ip().is_unspecified());
    let unknown = everywhere && planes.advertise_host.is_none();
    (unknown && matches!(role, Role::Prefill | Role::Decode)).then(|| {
        let listen = &planes.listen;
        format!("advertise-host: needed for workers that share requests, with listen {listen:?}")
    })
}

fn profile_faults(profile: &ProfileRecord) -> Vec<String> {
    let mut faults = Vec::new();
    if profile.labels.len() > LABELS_MAX {
        faults.push(format!("labels: {} labels, limit {LABELS_MAX}", profile.labels.len()));
    }
    let places = [
        ("topology-host", &profile.host),
        ("topology-rack", &profile.rack),
        ("topology-zone", &profile.zone),
    ];
    let named = places.into_iter().filter_map(|(flag, name)| Some((flag, name.as_ref()?)));
    for (flag, text) in profile.labels.iter().map(|label| ("labels", label)).chain(named) {
        if text.is_empty() || text.len() > LABEL_BYTES_MAX {
            let bytes = text.len();
            faults.push(format!("{flag}: {text:?} has {bytes} bytes, 1 to {LABEL_BYTES_MAX}"));
        }
    }
    faults
}

/// Collects faults, so that all are reported at once.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn range<T: PartialOrd + std::fmt::Display>(&mut self, flag: &str, value: T, min: T, max: T) {
        if !(&min..=&max).contains(&&value) {
            self.0.push(format!("{flag}: {value} is not in {min}..={max}"));
        }
    }

    fn keep<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|faults| self.0.extend(faults.0)).ok()
    }

    fn keep_one<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|fault| self.0.push(fault)).ok()
    }

    fn none(self) -> Result<(), ConfigError> {
        if self.0.is_empty() { Ok(()) } else { Err(ConfigError(self.0)) }
    }
}

fn listen(endpoint: &str) -> Result<Listen, String> {
    let fault = || format!("listen: {endpoint:?} is neither `address:port` nor `unix:///path`");
    if let Some(path) = endpoint.strip_prefix("unix://") {
        let path = PathBuf::from(path);
        return if path.is_absolute() { Ok(Listen::Unix(path)) } else { Err(fault()) };
    }
    endpoint.parse().map(Listen::Tcp).map_err(|_| fault())
}

fn zmq_endpoint(flag: &str, endpoint: &str) -> Result<(), String> {
    let fault =
        || format!("{flag}: {endpoint:?} is neither `tcp://address:port` nor `ipc:///path`");
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return if path.starts_with('/') { Ok(()) } else { Err(fault()) };
    }
    let address = endpoint.strip_prefix("tcp://").ok_or_else(fault)?;
    address.parse::<SocketAddr>().map(|_| ()).map_err(|_| fault())
}

/// Whether a text may name an agent: it becomes a file's name.
pub(crate) fn is_agent_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=128).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests;
