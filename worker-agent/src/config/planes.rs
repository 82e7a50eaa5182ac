//! Endpoints of the agent.

use super::{Faults, KvTrust, ZmqArgs};
use clap::Args;
use stator_discovery::DiscoveryArgs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The value of an address where no KV is lent.
const KV_TRANSFER_OFF: &str = "off";

/// Flags of the agent's planes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Planes")]
pub struct PlaneArgs {
    /// Request plane: `address:port` (port 0 takes a free one) or `unix:///path`.
    #[arg(long, env = "STATOR_LISTEN", default_value = "127.0.0.1:7000", value_name = "ENDPOINT")]
    pub listen: String,

    /// ZMQ endpoints for stock subscribers of KV events and load.
    #[command(flatten)]
    pub zmq: ZmqArgs,

    /// Address where other agents of the fleet read KV: of host memory (`--kv-host-gb`), and of
    /// prompts that a built-in engine with `--role prefill` computed for them. `address:port` (port 0
    /// takes a free one) or `off`. Host memory is lent to agents that prove to know the secret of
    /// `--fleet-secret-file`, without it on this machine alone. Prompts go to the agent that asked for
    /// them. Default: a free port at the address of `--listen`, and `off` where that is not on this
    /// machine alone and nothing vouches for KV of other machines.
    #[arg(long, env = "STATOR_KV_TRANSFER_LISTEN", value_name = "ADDRESS")]
    pub kv_transfer_listen: Option<String>,

    /// Host memory for the KV of prompts on their way between built-in engines of a pair, in MB (10^6
    /// bytes), 1 to 1000000; one block has room in any case. KV that finds none waits. Each agent with
    /// the role `prefill` or `decode` takes up to this much, as it is used. Default: 256 MB.
    #[arg(long, env = "STATOR_KV_HANDOVER_MB", default_value_t = 256, value_name = "MB")]
    pub kv_handover_mb: u64,

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

    /// Let whoever reaches the metrics port load and unload LoRA adapters by `/v1/loras`, as Dynamo's
    /// workers do; with an operations token, whoever shows it.
    #[arg(
        long,
        env = "STATOR_SERVE_ADAPTERS",
        value_name = "BOOL",
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub serve_adapters: bool,

    /// Identity of the agent, kept over restarts; letters, digits, `.`, `_`, `-`. Its workers'
    /// ids follow from it. Default: made of host name and request plane.
    #[arg(long, env = "STATOR_AGENT_ID", value_name = "ID")]
    pub agent_id: Option<String>,

    /// Registry of the agent.
    #[command(flatten)]
    pub discovery: DiscoveryArgs,

    /// Lease of the registration in milliseconds, 300 to 600000. It is renewed three times as
    /// often. Followers measure it on their own clocks. An agent that stops renewing is suspect
    /// after it: it is used where no other agent is, and gone once it does not answer either.
    #[arg(long, env = "STATOR_LEASE_MS", default_value_t = 6000, value_name = "MS")]
    pub lease_ms: u64,

    /// Bytes that event logs may take, all workers together, 65536 to 68719476736. A subscriber
    /// that has missed more than the log holds needs a snapshot.
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

    /// Address of a process that sends requests to the engine by itself, for example a sidecar's
    /// metrics port. At shutdown the engine stays until nobody listens there, at most for
    /// --drain-timeout-s.
    #[arg(long, env = "STATOR_OUTLIVE", value_name = "ADDRESS")]
    pub outlive: Option<SocketAddr>,
}

/// Address of the request plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP address.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl PlaneArgs {
    /// Checks the flags, except those of the request plane and discovery.
    pub(super) fn check(&self, faults: &mut Faults) {
        faults.range("lease-ms", self.lease_ms, 300, 600_000);
        faults.range("event-log-bytes", self.event_log_bytes, 65_536, 64 << 30);
        faults.range("kv-handover-mb", self.kv_handover_mb, 1, 1_000_000);
        faults.range("load-interval-ms", self.load_interval_ms, 1, 10_000);
        faults.range("max-requests-per-stream", self.max_requests_per_stream, 1, 1 << 20);
        faults.range("drain-timeout-s", self.drain_timeout_s, 0, 86_400);
        if let Some(id) = self.agent_id.as_deref().filter(|id| !is_agent_id(id)) {
            faults.0.push(format!("agent-id: {id:?} is not 1 to 128 of A-Z a-z 0-9 . _ -"));
        }
    }
}

/// Uses that an agent has for a socket where other agents read KV.
#[derive(Clone, Copy)]
pub(super) struct TransferUses {
    /// It lends blocks of its tiers.
    pub(super) has_tiers: bool,
    /// Its engine computes prompts for others, and the agent hands them over.
    pub(super) hands_over: bool,
}

impl TransferUses {
    /// Whether anybody could use a socket at this address.
    fn are_trusted(self, ip: IpAddr, trust: &KvTrust) -> bool {
        let is_here = ip.to_canonical().is_loopback();
        (self.has_tiers && trust.fleet_key.covers(ip))
            || (self.hands_over && (is_here || trust.beyond_this_machine))
    }
}

impl PlaneArgs {
    /// The address where KV is lent, of an agent with these uses whose request plane is at `listen`;
    /// `None` where none is lent. Adds a flag that cannot be used to `faults`.
    pub(super) fn kv_transfer(
        &self,
        listen: Option<&Listen>,
        uses: TransferUses,
        trust: &KvTrust,
        faults: &mut Faults,
    ) -> Option<SocketAddr> {
        let Some(given) = &self.kv_transfer_listen else {
            let ip = match listen {
                Some(Listen::Tcp(address)) => address.ip(),
                _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
            };
            // Agents on other machines would look for it on their own.
            return uses.are_trusted(ip, trust).then_some(SocketAddr::new(ip, 0));
        };
        if !uses.has_tiers && !uses.hands_over {
            faults.0.push(format!(
                "kv-transfer-listen: {given:?} needs kv-host-gb above 0, or role prefill of a \
                 built-in engine"
            ));
            return None;
        }
        if given == KV_TRANSFER_OFF {
            return None;
        }
        let address = given.parse::<SocketAddr>();
        let address = address.map_err(|_| {
            format!("kv-transfer-listen: {given:?} is neither `address:port` nor `off`")
        });
        let address = faults.keep_one(address)?;
        if !uses.are_trusted(address.ip(), trust) {
            let fault = "is not on this machine alone: needs fleet-secret-file";
            faults.0.push(format!("kv-transfer-listen: {given:?} {fault}"));
        }
        Some(address)
    }
}

/// Whether a text is a valid agent id: it becomes a file's name.
pub(crate) fn is_agent_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=128).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('.')
}

/// Parses the address of the request plane.
pub(super) fn listen(endpoint: &str) -> Result<Listen, String> {
    let fault = || format!("listen: {endpoint:?} is neither `address:port` nor `unix:///path`");
    if let Some(path) = endpoint.strip_prefix("unix://") {
        let path = PathBuf::from(path);
        return if path.is_absolute() { Ok(Listen::Unix(path)) } else { Err(fault()) };
    }
    endpoint.parse().map(Listen::Tcp).map_err(|_| fault())
}
