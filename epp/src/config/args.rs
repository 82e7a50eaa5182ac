//! The flags of `stator epp`.

use crate::exchange::Interest;
use crate::ext_proc;
use clap::{ArgAction, Args, ValueEnum};
use stator_runtime::tls::Version;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `stator epp`.
#[derive(Args, Clone, Debug)]
pub struct EppArgs {
    /// Name of the InferencePool to pick for.
    #[arg(long, env = "STATOR_POOL_NAME", value_name = "NAME", help_heading = "Pools")]
    pub pool_name: Option<String>,

    /// Namespace of the pool.
    #[arg(
        long,
        env = "NAMESPACE",
        default_value = "default",
        value_name = "NAMESPACE",
        help_heading = "Pools"
    )]
    pub pool_namespace: String,

    /// API group of the pool.
    #[arg(
        long,
        env = "STATOR_POOL_GROUP",
        default_value = "inference.networking.k8s.io",
        value_name = "GROUP",
        help_heading = "Pools"
    )]
    pub pool_group: String,

    /// A further pool and the port of its own that its endpointPickerRef names,
    /// `namespace/name=port`. May be given again.
    #[arg(
        long,
        env = "STATOR_POOL",
        value_name = "NAMESPACE/NAME=PORT",
        value_delimiter = ',',
        help_heading = "Pools"
    )]
    pub pool: Vec<String>,

    /// Picks among pods with these labels, without an InferencePool: `app=vllm,tier!=test`.
    #[arg(long, env = "STATOR_ENDPOINT_SELECTOR", value_name = "SELECTOR",
          conflicts_with_all = ["pool_name", "endpoints_file"], help_heading = "Pools")]
    pub endpoint_selector: Option<String>,

    /// Ports of these pods, one to eight; each is an endpoint.
    #[arg(
        long,
        env = "STATOR_ENDPOINT_TARGET_PORTS",
        value_name = "PORT",
        value_delimiter = ',',
        help_heading = "Pools"
    )]
    pub endpoint_target_ports: Vec<u16>,

    /// Picks among the endpoints in this file, without Kubernetes; changes are followed.
    #[arg(
        long,
        env = "STATOR_ENDPOINTS_FILE",
        value_name = "FILE",
        conflicts_with = "pool_name",
        help_heading = "Pools"
    )]
    pub endpoints_file: Option<PathBuf>,

    /// Kubeconfig file. Without it `KUBECONFIG`, `~/.kube/config` or the pod's service account
    /// say which cluster it is.
    #[arg(long, env = "STATOR_KUBECONFIG", value_name = "FILE", help_heading = "Pools")]
    pub kubeconfig: Option<PathBuf>,

    /// Address to serve on.
    #[arg(
        long,
        env = "STATOR_EPP_HOST",
        default_value = "0.0.0.0",
        value_name = "IP",
        help_heading = "Serving"
    )]
    pub host: IpAddr,

    /// Port of the ext-proc server; 0 picks a free one and logs it.
    #[arg(
        long,
        env = "STATOR_GRPC_PORT",
        default_value_t = 9002,
        value_name = "PORT",
        help_heading = "Serving"
    )]
    pub grpc_port: u16,

    /// Port of gRPC health checks, plain text.
    #[arg(
        long,
        env = "STATOR_GRPC_HEALTH_PORT",
        default_value_t = 9003,
        value_name = "PORT",
        help_heading = "Serving"
    )]
    pub grpc_health_port: u16,

    /// Port of `/metrics`.
    #[arg(
        long,
        env = "STATOR_METRICS_PORT",
        default_value_t = 9090,
        value_name = "PORT",
        help_heading = "Serving"
    )]
    pub metrics_port: u16,

    /// Serves no metrics.
    #[arg(long, env = "STATOR_NO_METRICS", help_heading = "Serving")]
    pub no_metrics: bool,

    /// Asks the cluster whether a reader of metrics may (TokenReview, SubjectAccessReview). No
    /// effect without a cluster.
    #[arg(long, env = "STATOR_METRICS_ENDPOINT_AUTH", default_value_t = true,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Serving")]
    pub metrics_endpoint_auth: bool,

    /// Serves ext-proc over TLS.
    #[arg(long, env = "STATOR_SECURE_SERVING", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Serving")]
    pub secure_serving: bool,

    /// Folder with `tls.crt` and `tls.key`. Without it a certificate is made at start.
    #[arg(long, env = "STATOR_CERT_PATH", value_name = "DIR", help_heading = "Serving")]
    pub cert_path: Option<PathBuf>,

    /// Follows changes of the certificate's files.
    #[arg(long, env = "STATOR_ENABLE_CERT_RELOAD", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Serving")]
    pub enable_cert_reload: bool,

    /// PEM file with the authorities of data planes; others are refused (mTLS).
    #[arg(long, env = "STATOR_CLIENT_CA_FILE", value_name = "FILE", help_heading = "Serving")]
    pub client_ca_file: Option<PathBuf>,

    /// Oldest TLS version.
    #[arg(
        long,
        env = "STATOR_TLS_MIN_VERSION",
        default_value = "1.2",
        value_name = "VERSION",
        help_heading = "Serving"
    )]
    pub tls_min_version: Version,

    /// Largest gRPC message from a data plane, for example `10MiB`. Only data planes that buffer
    /// bodies send large ones.
    #[arg(long, env = "STATOR_GRPC_MAX_RECV_MSG_SIZE", default_value = "4MiB", value_name = "SIZE",
          value_parser = size, help_heading = "Serving")]
    pub grpc_max_recv_msg_size: u64,

    /// Longest wait for open streams when the process is told to end.
    #[arg(long, env = "STATOR_DRAIN_TIMEOUT", default_value = "30s", value_name = "DURATION",
          value_parser = duration, help_heading = "Serving")]
    pub drain_timeout: Duration,

    /// How long requests are still taken after the process was told to end and is not ready any
    /// more, so that data planes can see it. 0s is not at all.
    #[arg(long, env = "STATOR_SHUTDOWN_DELAY", default_value = "5s", value_name = "DURATION",
          value_parser = delay, help_heading = "Serving")]
    pub shutdown_delay: Duration,

    /// EndpointPickerConfig to follow. Without one endpoints are chosen by cached prefix and load.
    #[arg(
        long,
        env = "STATOR_CONFIG_FILE",
        value_name = "FILE",
        conflicts_with = "config_text",
        help_heading = "Scheduling"
    )]
    pub config_file: Option<PathBuf>,

    /// The same as text.
    #[arg(long, env = "STATOR_CONFIG_TEXT", value_name = "YAML", help_heading = "Scheduling")]
    pub config_text: Option<String>,

    /// Passes over what the EndpointPickerConfig has and this version does not know.
    #[arg(long, env = "STATOR_LENIENT", help_heading = "Scheduling")]
    pub lenient: bool,

    /// Prints the effective EndpointPickerConfig, with what was filled in, and ends.
    #[arg(long, help_heading = "Scheduling")]
    pub explain: bool,

    /// Allows plug-ins that may still change.
    #[arg(long, env = "STATOR_ALLOW_EXPERIMENTAL_PLUGINS", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Scheduling")]
    pub allow_experimental_plugins: bool,

    /// Tokens per KV block, as the engines have it.
    #[arg(long, env = "STATOR_BLOCK_SIZE", default_value_t = 16, value_name = "TOKENS",
          value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Scheduling")]
    pub block_size: u32,

    /// Folder with the model's tokenizer and template. Without a tokenizer prompts are compared
    /// as text.
    #[arg(long, env = "STATOR_TOKENIZER_PATH", value_name = "DIR", help_heading = "Scheduling")]
    pub tokenizer_path: Option<PathBuf>,

    /// Model whose tokenizer to use, `organisation/name`, from the hub's cache in `HF_HOME` or
    /// from the hub.
    #[arg(long, env = "STATOR_TOKENIZER_MODEL", value_name = "MODEL", help_heading = "Scheduling")]
    pub tokenizer_model: Option<String>,

    /// Address of the hub to download from. Without it nothing is downloaded.
    #[arg(long, env = "HF_ENDPOINT", value_name = "URL", help_heading = "Scheduling")]
    pub hub_endpoint: Option<String>,

    /// Sends token ids on in `nvext.token_data` to pods labelled `stator.dev/token-ids=true`.
    #[arg(long, env = "STATOR_FORWARD_TOKEN_IDS", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL", help_heading = "Scheduling")]
    pub forward_token_ids: bool,

    /// Port of the stator agents beside the engines, for pods without the label
    /// `stator.dev/agent-port`.
    #[arg(long, env = "STATOR_AGENT_PORT", value_name = "PORT", help_heading = "Signals")]
    pub agent_port: Option<u16>,

    /// Port where engines without an agent publish KV events; further ranks use the next ones.
    #[arg(long, env = "STATOR_KV_EVENTS_PORT", value_name = "PORT", help_heading = "Signals")]
    pub kv_events_port: Option<u16>,

    /// Port where they replay them.
    #[arg(
        long,
        env = "STATOR_KV_REPLAY_PORT",
        value_name = "PORT",
        requires = "kv_events_port",
        help_heading = "Signals"
    )]
    pub kv_replay_port: Option<u16>,

    /// From one metrics page of an engine to the next.
    #[arg(long, env = "STATOR_REFRESH_METRICS_INTERVAL", default_value = "50ms",
          value_name = "DURATION", value_parser = duration, help_heading = "Signals")]
    pub refresh_metrics_interval: Duration,

    /// Age at which an engine's report counts no more.
    #[arg(long, env = "STATOR_METRICS_STALENESS_THRESHOLD", default_value = "2s",
          value_name = "DURATION", value_parser = duration, help_heading = "Signals")]
    pub metrics_staleness_threshold: Duration,

    /// How much of every answer is watched: `auto` what the configuration needs, which is nothing
    /// by default and spares its cost per token; `headers`; `body` for all request metrics.
    #[arg(
        long,
        env = "STATOR_RESPONSE_PATH",
        default_value = "auto",
        value_name = "PART",
        help_heading = "Requests"
    )]
    pub response_path: ResponsePath,

    /// Largest request body, for example `64MiB`. Larger ones get 413.
    #[arg(long, env = "STATOR_MAX_BODY_BYTES", default_value = "64MiB", value_name = "SIZE",
          value_parser = size, help_heading = "Requests")]
    pub max_body_bytes: u64,

    /// What refusals look like.
    #[arg(
        long,
        env = "STATOR_ERROR_FORMAT",
        default_value = "text",
        value_name = "FORMAT",
        help_heading = "Requests"
    )]
    pub error_format: ErrorFormat,

    /// Sends all chosen endpoints, best first, to data planes that take a list.
    #[arg(long, env = "STATOR_FALLBACK_ENDPOINTS", help_heading = "Requests")]
    pub fallback_endpoints: bool,

    /// Sends every candidate's score in the dynamic metadata.
    #[arg(long, env = "STATOR_EMIT_ENDPOINT_SCORES", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Requests")]
    pub emit_endpoint_scores: bool,

    /// Ignores the data plane's choice of endpoints.
    #[arg(long, env = "STATOR_DISABLE_ENDPOINT_SUBSET_FILTER", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Requests")]
    pub disable_endpoint_subset_filter: bool,

    /// Keeps metrics of ext-proc streams.
    #[arg(long, env = "STATOR_ENABLE_GRPC_STREAM_METRICS", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Requests")]
    pub enable_grpc_stream_metrics: bool,

    /// Other replicas, `host:port`; a DNS name may stand for many. They share what they sent and
    /// what they know.
    #[arg(
        long,
        env = "STATOR_PEERS",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        help_heading = "Replicas"
    )]
    pub peers: Vec<String>,

    /// Port for other replicas.
    #[arg(
        long,
        env = "STATOR_PEERS_PORT",
        default_value_t = 9004,
        value_name = "PORT",
        help_heading = "Replicas"
    )]
    pub peers_port: u16,

    /// Secret that replicas show each other.
    #[arg(
        long,
        env = "STATOR_PEERS_TOKEN",
        default_value = "",
        hide_env_values = true,
        hide_default_value = true,
        value_name = "SECRET",
        help_heading = "Replicas"
    )]
    pub peers_token: String,

    /// PEM file with the authorities of replicas, for TLS between them (mTLS).
    #[arg(
        long,
        env = "STATOR_PEERS_CA_FILE",
        value_name = "FILE",
        requires = "peers_cert_path",
        help_heading = "Replicas"
    )]
    pub peers_ca_file: Option<PathBuf>,

    /// Folder with `tls.crt` and `tls.key` that replicas show each other.
    #[arg(
        long,
        env = "STATOR_PEERS_CERT_PATH",
        value_name = "DIR",
        requires = "peers_ca_file",
        help_heading = "Replicas"
    )]
    pub peers_cert_path: Option<PathBuf>,

    /// Name that the certificates of replicas are for.
    #[arg(
        long,
        env = "STATOR_PEERS_SERVER_NAME",
        default_value = "stator-epp",
        value_name = "NAME",
        help_heading = "Replicas"
    )]
    pub peers_server_name: String,

    /// Lets one replica at a time be ready, by a lease. Replicas that share need none.
    #[arg(long, env = "STATOR_HA_ENABLE_LEADER_ELECTION", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", help_heading = "Replicas")]
    pub ha_enable_leader_election: bool,
}

/// How much of every answer is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResponsePath {
    /// What the configuration needs.
    Auto,
    /// Heads at least.
    Headers,
    /// All of it.
    Body,
}

impl From<ResponsePath> for Interest {
    fn from(path: ResponsePath) -> Self {
        match path {
            ResponsePath::Auto => Self::Nothing,
            ResponsePath::Headers => Self::Headers,
            ResponsePath::Body => Self::Body,
        }
    }
}

/// What refusals look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ErrorFormat {
    /// A line of text, as clients of llm-d expect.
    Text,
    /// The error object of the OpenAI API.
    Openai,
}

impl From<ErrorFormat> for ext_proc::ErrorFormat {
    fn from(format: ErrorFormat) -> Self {
        match format {
            ErrorFormat::Text => Self::Plain,
            ErrorFormat::Openai => Self::OpenAi,
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = stator_epp_config::parse_duration(text)?;
    let day = Duration::from_secs(86_400);
    match parsed > Duration::ZERO && parsed <= day {
        true => Ok(parsed),
        false => Err(format!("{text} is not above 0 and at most 24h")),
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    let parsed = stator_epp_config::parse_duration(text)?;
    let minutes = Duration::from_secs(600);
    if parsed <= minutes { Ok(parsed) } else { Err(format!("{text} is not at most 10m")) }
}

fn size(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('B').unwrap_or(text);
    match stator_epp_config::parse_quantity(number)? {
        bytes @ 1024..=0x1_0000_0000 => Ok(bytes),
        bytes => Err(format!("{bytes} is not in 1024..={}", 1u64 << 32)),
    }
}
