//! The flags of `stator epp`, one struct per heading of its help.

mod compat;
mod requests;
mod scheduling;
mod serving;
mod telemetry;
mod values;

pub use compat::{CompatArgs, StackTraceLevel, TimeEncoding};
pub use requests::{ErrorFormat, RequestArgs, ResponsePath};
pub use scheduling::{INDEX_BLOCKS, SchedulingArgs};
pub use serving::{ServingArgs, TlsArgs};
pub use telemetry::{TelemetryArgs, ZapEncoder, ZapLevel};

use clap::{ArgAction, Args};
use stator_peers::PeersArgs;
use stator_runtime::dial::DialArgs;
use std::path::PathBuf;
use std::time::Duration;
use values::duration;

/// Flags of `stator epp`.
#[derive(Args, Clone, Debug)]
pub struct EppArgs {
    /// Pools that the picker serves.
    #[command(flatten)]
    pub pools: PoolArgs,
    /// Ports.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// TLS of these ports. Boxed, as the roles of the process are one enum.
    #[command(flatten)]
    pub tls: Box<TlsArgs>,
    /// Scheduling.
    #[command(flatten)]
    pub scheduling: SchedulingArgs,
    /// Signals about endpoints.
    #[command(flatten)]
    pub signals: SignalArgs,
    /// TLS of connections to agents.
    #[command(flatten)]
    pub dial: DialArgs,
    /// Limits and choices of requests.
    #[command(flatten)]
    pub requests: RequestArgs,
    /// Other pickers of the same pools.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Logs and traces, by the names that the llm-d router has for them.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// Flags without effect here.
    #[command(flatten)]
    pub compat: CompatArgs,
}

/// Pools that the picker serves.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Pools")]
pub struct PoolArgs {
    /// Name of the InferencePool to pick for.
    #[arg(long, env = "STATOR_POOL_NAME", value_name = "NAME")]
    pub pool_name: Option<String>,

    /// Namespace of the pool; without it `NAMESPACE` in the environment, else `default`.
    #[arg(long, env = "STATOR_POOL_NAMESPACE", value_name = "NAMESPACE")]
    pub pool_namespace: Option<String>,

    /// API group of the pool.
    #[arg(
        long,
        env = "STATOR_POOL_GROUP",
        default_value = "inference.networking.k8s.io",
        value_name = "GROUP"
    )]
    pub pool_group: String,

    /// A further pool and the port of its own that its endpointPickerRef names,
    /// `namespace/name=port`. May be given again.
    #[arg(long, env = "STATOR_POOL", value_name = "NAMESPACE/NAME=PORT", value_delimiter = ',')]
    pub pool: Vec<String>,

    /// Picks among the pods that a label selector selects, without an InferencePool:
    /// `app=vllm,tier!=test,!canary`, also with `in (…)` and `notin (…)`.
    #[arg(long, env = "STATOR_ENDPOINT_SELECTOR", value_name = "SELECTOR",
          conflicts_with_all = ["pool_name", "endpoints_file"])]
    pub endpoint_selector: Option<String>,

    /// Ports of these pods, one to eight; each is an endpoint.
    #[arg(long, env = "STATOR_ENDPOINT_TARGET_PORTS", value_name = "PORT", value_delimiter = ',')]
    pub endpoint_target_ports: Vec<u16>,

    /// Picks among the endpoints in this file, without Kubernetes; changes are followed.
    #[arg(long, env = "STATOR_ENDPOINTS_FILE", value_name = "FILE", conflicts_with = "pool_name")]
    pub endpoints_file: Option<PathBuf>,

    /// Kubeconfig file. Without it `KUBECONFIG`, `~/.kube/config` or the pod's service account
    /// say which cluster it is.
    #[arg(long, env = "STATOR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Signals about endpoints, and their sources.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Signals")]
pub struct SignalArgs {
    /// Port of the stator agents beside the engines, for pods without the label
    /// `stator.dev/agent-port`.
    #[arg(long, env = "STATOR_AGENT_PORT", value_name = "PORT")]
    pub agent_port: Option<u16>,

    /// Port where engines without an agent publish KV events; further ranks use the next ones.
    #[arg(long, env = "STATOR_KV_EVENTS_PORT", value_name = "PORT")]
    pub kv_events_port: Option<u16>,

    /// Port where they replay them.
    #[arg(long, env = "STATOR_KV_REPLAY_PORT", value_name = "PORT", requires = "kv_events_port")]
    pub kv_replay_port: Option<u16>,

    /// Time from one metrics page of an engine to the next.
    #[arg(long, env = "STATOR_REFRESH_METRICS_INTERVAL", default_value = "50ms",
          value_name = "DURATION", value_parser = duration)]
    pub refresh_metrics_interval: Duration,

    /// Age at which an engine's report counts no more.
    #[arg(long, env = "STATOR_METRICS_STALENESS_THRESHOLD", default_value = "2s",
          value_name = "DURATION", value_parser = duration)]
    pub metrics_staleness_threshold: Duration,
}

/// Other pickers of the same pools.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Replicas")]
pub struct ReplicaArgs {
    /// Addresses and secrets of the replicas.
    #[command(flatten)]
    pub peers: PeersArgs,

    /// Lets one replica at a time be ready, by a lease. Replicas that share need none.
    #[arg(long, env = "STATOR_HA_ENABLE_LEADER_ELECTION", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub ha_enable_leader_election: bool,
}
