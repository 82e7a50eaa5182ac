//! Flags of the proxy beside an engine.

use super::allow::PRIVATE;
use super::encode::EcConnector;
use super::llmd::{self, LlmdArgs};
use super::moriio_args::MoriioArgs;
use crate::http_args::{HttpArgs, MetricsArgs};
use crate::upstream::passage::PassageArgs;
use clap::{ArgAction, Args, ValueEnum};
use stator_handover::Connector;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Default of `encode-timeout-ms`.
pub(crate) const ENCODE_TIMEOUT_MS: u64 = 30_000;

/// An engine that TLS can be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Engines that compute prompts for this one.
    Prefiller,
    /// The engine beside this proxy.
    Decoder,
    /// Engines that encode media for others.
    Encoder,
}

/// Flags of `stator sidecar`.
#[derive(Args, Clone, Debug)]
pub struct SidecarArgs {
    /// HTTP server.
    #[command(flatten)]
    pub http: HttpArgs,

    /// Requests passed through to the engine.
    #[command(flatten)]
    pub passage: PassageArgs,

    /// The engine beside the sidecar, and those that compute prompts for it.
    #[command(flatten)]
    pub direct: DirectArgs,

    /// Port for operators.
    #[command(flatten)]
    pub metrics: MetricsArgs,
}

/// Flags about the engine beside the sidecar. The names of llm-d's sidecar are accepted too.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct DirectArgs {
    /// Address of the engine that this proxy stands beside.
    #[arg(long, env = "STATOR_ENGINE_HOST", default_value = "127.0.0.1", value_name = "IP")]
    pub engine_host: IpAddr,

    /// Port of the engine that this proxy stands beside. Its data-parallel rank R listens on this
    /// port plus R, and this proxy serves the rank on its own port plus R.
    #[arg(long, env = "STATOR_ENGINE_PORT", aliases = ["model-server-port", "vllm-port"],
          default_value_t = 8200, value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub engine_port: u16,

    /// Data-parallel ranks of the engine that have ports of their own.
    #[arg(long, env = "STATOR_DATA_PARALLEL_SIZE", default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub data_parallel_size: u16,

    /// Way in which KV moves from the engine that computes a prompt to the one beside this proxy.
    #[arg(long, env = "STATOR_CONNECTOR", alias = "kv-connector", value_enum,
          default_value_t = Connector::Nixlv2, value_name = "CONNECTOR")]
    pub(crate) connector: Connector,

    /// Addresses to which prompts may be sent, where media may be encoded, and from which KV may
    /// be pulled: ADDRESS/BITS for a network, or HOST:PORT. The default are the networks of pods:
    /// private addresses, but neither loopback nor link-local ones, nor names. Requests that name
    /// anything else for a prompt get 403; other encoders and sources of KV are passed over.
    /// Addresses of clouds' metadata are never dialled, whatever is allowed.
    #[arg(long, env = "STATOR_PREFILL_ALLOW", value_name = "RULE", value_delimiter = ',',
          default_values_t = PRIVATE.map(String::from))]
    pub prefill_allow: Vec<String>,

    /// Enforce `prefill-allow`. Without it, anybody who can send `x-prefiller-host-port` can make
    /// this proxy call any address.
    #[arg(long, env = "STATOR_ENABLE_SSRF_PROTECTION", default_value_t = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set,
          value_name = "BOOL")]
    pub enable_ssrf_protection: bool,

    /// Take any of several prefill engines that a request names, instead of the first.
    #[arg(long, env = "STATOR_PREFILL_SAMPLING",
          default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL")]
    pub prefill_sampling: bool,

    /// Let the engine beside this proxy compute the prompt where prefill fails. Otherwise the
    /// client gets prefill's error. An engine of SGLang in the role of decode cannot.
    #[arg(long, env = "STATOR_PREFILL_FALLBACK", default_value_t = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set,
          value_name = "BOOL")]
    pub prefill_fallback: bool,

    /// Longest wait for a prompt to be computed elsewhere, and for KV and media from elsewhere: of
    /// an answer that is streamed its first token has to come within this time too. In milliseconds.
    #[arg(long, env = "STATOR_PREFILL_TIMEOUT_MS", default_value_t = 60_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub prefill_timeout_ms: u64,

    /// Compute prompts for the proxies beside decode engines: a request may ask that the KV of its
    /// prompt be kept for another engine. Of what hands KV over, that wish alone passes. Needs
    /// `connector` to be `nixlv2`.
    #[arg(long, env = "STATOR_SERVE_PREFILL", default_value_t = false, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set,
          value_name = "BOOL")]
    pub serve_prefill: bool,

    /// Number of times that a prefill engine is asked again if it cannot be reached or answers
    /// 502, 503 or 504, within `prefill-timeout-ms` and where decode waits for its answer.
    #[arg(long, env = "STATOR_PREFILL_MAX_RETRIES", default_value_t = 0, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub prefill_max_retries: u32,

    /// Pause before a prefill engine is asked again: `200ms`, `1.5s`; up to a minute.
    #[arg(long, env = "STATOR_PREFILL_RETRY_BACKOFF", default_value = "200ms",
          value_name = "DURATION", value_parser = llmd::backoff)]
    pub prefill_retry_backoff: Duration,

    /// Port of the bootstrap server beside a prefill engine, for `sglang` and `mooncake`.
    #[arg(long, env = "STATOR_BOOTSTRAP_PORT",
          default_value_t = 8998, value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub bootstrap_port: u16,

    /// Port on which an engine's peers connect to pull KV, for `offloading` and `enable-p2p-pull`.
    /// Data-parallel rank R of a pod whose proxy has the ports of this one is at this port plus R.
    #[arg(long, env = "STATOR_P2P_CONNECTOR_PORT", default_value_t = 7777, value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub p2p_connector_port: u16,

    /// Let engines pull KV over the tier of vLLM's offloading connector, which stands beside
    /// NixlConnector, from the engine that `x-kv-cache-source-host-port` names. Those of
    /// `offloading` always do, and those of no other connector can.
    #[arg(long, env = "STATOR_ENABLE_P2P_PULL", default_value_t = false, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set,
          value_name = "BOOL")]
    pub enable_p2p_pull: bool,

    /// Have images, sounds and videos encoded by the engines that `x-encoder-hosts-ports` names.
    /// The value says how the engine that computes the prompt gets the result. Without it that
    /// engine encodes.
    #[arg(long, env = "STATOR_EC_CONNECTOR", value_enum, value_name = "CONNECTOR")]
    pub(crate) ec_connector: Option<EcConnector>,

    /// Longest wait for all media of a request to be encoded elsewhere; what has not come by then
    /// is encoded where the prompt is computed. In milliseconds.
    #[arg(long, env = "STATOR_ENCODE_TIMEOUT_MS", default_value_t = ENCODE_TIMEOUT_MS, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub encode_timeout_ms: u64,

    /// Decode chats in chunks of at most N tokens, each a request of its own that continues from
    /// the text so far; best a multiple of the engine's block size. Answers are as long as clients
    /// allow, whatever the engine's own default. Clients that stream get an event per chunk. Chats
    /// that ask for more than one answer of text, and others that do not bear it, are decoded in
    /// one piece. 0 is off.
    #[arg(long, env = "STATOR_DECODE_CHUNK_SIZE", default_value_t = 0, value_name = "TOKENS",
          value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub decode_chunk_size: u32,

    /// Let clients ask for every path of the engine, its operations too: to load weights and
    /// adapters, sleep, profile and shut down, as llm-d's sidecar does. Without it only the paths
    /// that serve requests are passed on, and others get 403.
    #[arg(long, env = "STATOR_PASS_OPERATIONS", default_value_t = false, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set,
          value_name = "BOOL")]
    pub pass_operations: bool,

    /// Engines to speak TLS to.
    #[arg(
        long,
        env = "STATOR_ENABLE_TLS",
        value_enum,
        value_delimiter = ',',
        value_name = "STAGE"
    )]
    pub enable_tls: Vec<Stage>,

    /// Engines whose certificate is not checked.
    #[arg(
        long,
        env = "STATOR_TLS_INSECURE_SKIP_VERIFY",
        value_enum,
        value_delimiter = ',',
        value_name = "STAGE"
    )]
    pub tls_insecure_skip_verify: Vec<Stage>,

    /// Authorities of the engines' certificates, PEM. Without it, those of the system.
    #[arg(long, env = "STATOR_ENGINE_CA_FILE", value_name = "FILE")]
    pub engine_ca_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) llmd: LlmdArgs,

    #[command(flatten)]
    pub(crate) moriio: MoriioArgs,
}
