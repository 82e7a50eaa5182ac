//! Settings of the agent: flags as the user writes them, and values that cannot be wrong.

mod access;
mod engine;
mod faults;
mod key;
mod kv_tiers;
mod openai;
mod pins;
mod place;
mod planes;
mod stock;
mod stock_args;
#[cfg(test)]
mod tests;
mod trtllm;
mod trust;
mod zmq;

pub use access::{Access, AccessArgs, Operators, ServerTls, TokenArgs, TokenSource};
pub(crate) use engine::BLOCK_SIZE;
pub use engine::{EngineArgs, EngineKind, EngineSettings, OwnEngine, SimSettings};
use faults::Faults;
pub use kv_tiers::{KvDiskSettings, KvKeySettings, KvObjectSettings, KvTierArgs, KvTierSettings};
pub use pins::PinArgs;
pub use place::PlaceArgs;
use planes::TransferUses;
pub(crate) use planes::is_agent_id;
pub use planes::{Listen, PlaneArgs};
pub use stock::{Origin, StockSettings};
pub use stock_args::{RoleArg, StockArgs};
pub use trtllm::{ScheduleArg, TrtllmArgs};
pub use trust::{FleetArgs, KvTrust};
pub use zmq::{ZmqArgs, ZmqListen};

use clap::Args;
use stator_dialect::Kind;
use stator_discovery::DiscoverySource;
use stator_protos::discovery::{ProfileRecord, Role};
use stator_runtime::config::ConfigError;
use std::net::SocketAddr;
use std::time::Duration;

/// Flags of `stator agent`.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Engine that the workers run.
    #[command(flatten)]
    pub engine: EngineArgs,

    /// Flags of stock engines.
    #[command(flatten)]
    pub stock: StockArgs,

    /// Tiers of KV.
    #[command(flatten)]
    pub tiers: KvTierArgs,

    /// Addresses and registry of the agent.
    #[command(flatten)]
    pub planes: PlaneArgs,

    /// Topology of the workers.
    #[command(flatten)]
    pub place: PlaceArgs,

    /// Permissions on the request plane.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The kind of engine of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Runs {
    /// Engines in the agent's own process.
    Own(EngineSettings),
    /// An engine in a process of its own.
    Stock(Box<StockSettings>),
}

/// Settings of the agent. A value of this type is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSettings {
    /// Engine of the workers.
    pub engine: Runs,
    /// Tiers of KV below the engines' own memory.
    pub kv_tiers: Option<KvTierSettings>,
    /// Role and place of the workers, as far as flags say.
    pub profile: ProfileRecord,
    /// Request plane.
    pub listen: Listen,
    /// Permissions on the request plane.
    pub access: Access,
    /// ZMQ endpoints for stock subscribers.
    pub zmq: ZmqListen,
    /// Address where KV is lent and handed over to other agents; `None` gives them none.
    pub kv_transfer: Option<SocketAddr>,
    /// Memory for the KV of prompts on their way between engines of a pair, in bytes.
    pub kv_handover_bytes: u64,
    /// Host in the record; `None` takes the listening address.
    pub advertise_host: Option<String>,
    /// Metrics and health; `None` serves none, for agents inside another role's process.
    pub metrics_listen: Option<SocketAddr>,
    /// Whether clients of the metrics port may load and unload adapters.
    pub serves_adapters: bool,
    /// Identity of the agent; `None` derives one.
    pub agent_id: Option<String>,
    /// Discovery back-end for the record.
    pub discovery: DiscoverySource,
    /// Lease of the record.
    pub lease: Duration,
    /// Bytes of event log, all workers together.
    pub event_log_bytes: usize,
    /// Shortest time between two load reports of a busy worker.
    pub load_interval: Duration,
    /// Longest wait of an engine in this process for a prefill worker and its KV.
    pub prefill_timeout: Duration,
    /// Longest silence of a prefill agent that owes a prompt or KV.
    pub prefill_silence: Duration,
    /// Requests that one client stream may have running.
    pub max_requests_per_stream: usize,
    /// Longest wait for running requests at shutdown.
    pub drain_timeout: Duration,
    /// Address of a process that needs the engine until its own end.
    pub outlive: Option<SocketAddr>,
}

impl TryFrom<AgentArgs> for AgentSettings {
    type Error = ConfigError;

    fn try_from(args: AgentArgs) -> Result<Self, ConfigError> {
        let AgentArgs { engine, stock, tiers, planes, place, access } = args;
        let mut faults = Faults::default();
        let role = stock.role.into();
        let profile = place.profile(role, &mut faults);
        let listen = faults.keep_one(planes::listen(&planes.listen));
        let prefill_timeout = Duration::from_millis(stock.prefill_timeout_ms);
        faults.range("prefill-silence-ms", stock.prefill_silence_ms, 1000, 3_600_000);
        let prefill_silence = Duration::from_millis(stock.prefill_silence_ms);
        let kv_tiers = tiers.tiers(engine.engine, &mut faults);
        let engine = match engine.engine.stock() {
            None => {
                faults.0.extend(stock.faults_without_engine());
                faults.range("prefill-timeout-ms", stock.prefill_timeout_ms, 1, 3_600_000);
                EngineSettings::try_from(engine).map(Runs::Own)
            }
            Some(kind) => {
                let host = engine_host(&planes, listen.as_ref(), kind);
                StockSettings::new(kind, engine, stock, host)
                    .map(|settings| Runs::Stock(Box::new(settings)))
            }
        };
        let mut engine = faults.keep(engine);
        if let (Some(_), Some(listen)) = (&engine, &listen) {
            faults.0.extend(place_fault(&planes, listen, role));
        }
        let access = access.access(listen.as_ref(), &mut faults.0);
        if let Some(Runs::Own(own)) = &mut engine {
            own.options.name_key = access.kv.name_key.clone();
        }
        if let Some(Runs::Stock(stock)) = &mut engine {
            stock.object_key = access.kv.object_key;
            faults.0.extend(stock.take_tiers(kv_tiers.clone()));
        }
        planes.check(&mut faults);
        let hands_over = matches!(engine, Some(Runs::Own(_))) && role == Role::Prefill;
        let uses = TransferUses { has_tiers: kv_tiers.is_some(), hands_over };
        let kv_transfer = planes.kv_transfer(listen.as_ref(), uses, &access.kv, &mut faults);
        let zmq = planes.zmq.listen(&mut faults);
        let discovery = planes.discovery.source().map_err(|fault| format!("discovery: {fault}"));
        let discovery = faults.keep_one(discovery);
        // Every fault is reported at once, so that nobody mends flags one start at a time.
        faults.none()?;
        let (Some(engine), Some(listen), Some(discovery)) = (engine, listen, discovery) else {
            unreachable!("a missing part is a fault, and faults were reported")
        };
        Ok(Self {
            event_log_bytes: planes.event_log_bytes as usize,
            engine,
            kv_tiers,
            profile,
            listen,
            access,
            zmq,
            kv_transfer,
            kv_handover_bytes: planes.kv_handover_mb * 1_000_000,
            advertise_host: planes.advertise_host,
            metrics_listen: Some(SocketAddr::new(planes.metrics_host, planes.metrics_port)),
            serves_adapters: planes.serve_adapters,
            agent_id: planes.agent_id,
            discovery,
            lease: Duration::from_millis(planes.lease_ms),
            load_interval: Duration::from_millis(planes.load_interval_ms),
            prefill_timeout,
            prefill_silence,
            max_requests_per_stream: planes.max_requests_per_stream as usize,
            drain_timeout: Duration::from_secs(planes.drain_timeout_s),
            outlive: planes.outlive,
        })
    }
}

/// Host under which others reach an engine of this kind: that of its agent. An OpenAI server counts
/// as reachable there only if `advertise-host` says so.
fn engine_host(planes: &PlaneArgs, listen: Option<&Listen>, kind: Kind) -> Option<String> {
    let own = match listen {
        Some(Listen::Tcp(address)) if !address.ip().is_unspecified() => Some(address.ip()),
        _ => None,
    };
    let own = own.filter(|_| kind != Kind::Openai).map(|ip| ip.to_string());
    planes.advertise_host.clone().or(own)
}

/// A fault if this agent's partners could not reach it: it listens on all addresses, and its record
/// would name the loopback interface.
fn place_fault(planes: &PlaneArgs, listen: &Listen, role: Role) -> Option<String> {
    let everywhere = matches!(listen, Listen::Tcp(address) if address.ip().is_unspecified());
    let unknown = everywhere && planes.advertise_host.is_none();
    (unknown && matches!(role, Role::Prefill | Role::Decode)).then(|| {
        let listen = &planes.listen;
        format!("advertise-host: needed for workers that share requests, with listen {listen:?}")
    })
}
