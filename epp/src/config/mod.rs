//! Settings of the picker: flags, and what they become once checked.
//!
//! Flags that the llm-d router has too keep their names, values and defaults, so that a
//! deployment's arguments go on working.

pub mod args;
mod pools;
#[cfg(test)]
pub(crate) mod tests;
mod tls;

pub use args::EppArgs;
use args::ResponsePath;
pub use pools::{PoolSource, PoolTarget, TokenizerSettings};
pub use tls::TlsSettings;

use crate::exchange::Interest;
use crate::ext_proc::{BodyBudget, ExtProcSettings};
use args::{INDEX_BLOCKS, RequestArgs, SignalArgs};
use stator_api::UnknownFields;
use stator_body::FieldRules;
use stator_epp_config::{LoadOptions, LoadedConfig};
use stator_epp_plugins::settings::{KvEvents, PodFilter};
use stator_epp_scheduler::TierWeights;
use stator_peers::PeersSettings;
use stator_runtime::config::ConfigError;
use stator_runtime::dial::Dial;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Checked settings of `stator epp`.
pub struct EppSettings {
    /// Pools, each with the port of its streams; at least one.
    pub pools: Vec<PoolTarget>,
    /// A kubeconfig file; `None` looks in the usual places.
    pub kubeconfig: Option<PathBuf>,
    /// TLS of the ports for data planes and for readers of metrics.
    pub tls: TlsSettings,
    /// Whether the data plane is sent all endpoints of a decision, the fallbacks after the first.
    pub fallbacks: bool,
    /// Address of the health checks.
    pub health_listen: SocketAddr,
    /// Address of the metrics; `None` serves none.
    pub metrics_listen: Option<SocketAddr>,
    /// Whether readers of metrics are asked who they are.
    pub metrics_auth: bool,
    /// Settings for decisions, from the `EndpointPickerConfig`.
    pub plan: LoadedConfig,
    /// Limits and choices of streams.
    pub ext_proc: ExtProcSettings,
    /// Least part of every answer that is watched, whatever the plan needs.
    pub interest: Interest,
    /// Whether streams end with the request although the answer passes through.
    pub leaves_early: bool,
    /// Whether scores go to the data plane.
    pub scores: bool,
    /// The fields of request bodies that go on.
    pub fields: FieldRules,
    /// Treatment of fields that are on no list.
    pub unknown_fields: UnknownFields,
    /// Whether a request is refused if nobody can screen its body.
    pub refuse_unscreened: bool,
    /// Whether requests may name their endpoint.
    pub pins: bool,
    /// Whether metrics of streams are kept.
    pub stream_metrics: bool,
    /// Tokens per KV block.
    pub block_size: NonZeroU32,
    /// Most entries of the KV index.
    pub max_index_blocks: usize,
    /// The address of the hub of tokenizers; without it only the cache of earlier downloads is
    /// used.
    pub hub_endpoint: Option<String>,
    /// Whether token ids travel on to endpoints that take them.
    pub forward_ids: bool,
    /// Settings for connecting to agents.
    pub dial: Dial,
    /// Port of the endpoints' agents, for pods whose labels do not say; `None`: they have none.
    pub agent_port: Option<u16>,
    /// Addresses at which engines without an agent publish KV events; `None`: they publish none.
    pub kv_events: Option<KvEventSettings>,
    /// Worth of a block in the precise index, by its tier.
    pub tier_weights: TierWeights,
    /// From one metrics page to the next.
    pub scrape_interval: Duration,
    /// Age at which a report counts no more.
    pub staleness: Duration,
    /// Other replicas.
    pub peers: Option<PeersSettings>,
    /// Whether only one replica is ready at a time.
    pub leader_election: bool,
    /// Time for which streams are still taken after the process was told to end.
    pub shutdown_delay: Duration,
    /// Longest wait for open streams when the process is told to end.
    pub drain_timeout: Duration,
    /// Flags that were given and have no effect, by name.
    pub without_effect: Vec<&'static str>,
}

/// Addresses at which engines without an agent publish KV events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvEventSettings {
    /// Ports of the engines; `None`: the picker connects to no engine.
    pub ports: Option<KvEventPorts>,
    /// Address that engines connect to; `None`: they connect to none.
    pub bind: Option<String>,
    /// Beginning of the topics of wanted messages.
    pub topic: String,
    /// Endpoints that publish.
    pub pods: PodFilter,
}

/// Ports where engines publish KV events, for rank 0; other ranks are at the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvEventPorts {
    /// Live events.
    pub live: u16,
    /// Replays; `None`: there are none.
    pub replay: Option<u16>,
}

impl TryFrom<EppArgs> for EppSettings {
    type Error = ConfigError;

    fn try_from(args: EppArgs) -> Result<Self, ConfigError> {
        // Faults of the plan come last, although the pools need the plan first.
        let (mut faults, mut plan_faults) = (Vec::new(), Vec::new());
        let plan = plan(&args, &mut plan_faults);
        let discovery = plan.as_ref().and_then(|loaded| loaded.plan.discovery.as_ref());
        let pools = pools::targets(&args, discovery, &mut faults);
        faults.append(&mut plan_faults);
        let events = plan.as_ref().and_then(|loaded| Some(&loaded.plan.precise.as_ref()?.events));
        if let (Some(bind), 2..) = (events.and_then(|events| events.bind.as_ref()), pools.len()) {
            let count = pools.len();
            faults.push(format!(
                "kvEventsConfig.zmqEndpoint: {bind:?} is for the engines of 1 pool, and there are {count}"
            ));
        }
        let tls = tls::ports(&args, &mut faults);
        let staleness = args.signals.metrics_staleness_threshold;
        let interval = args.signals.refresh_metrics_interval;
        if staleness < interval {
            faults.push(format!(
                "--metrics-staleness-threshold: {staleness:?} is shorter than \
                 --refresh-metrics-interval, {interval:?}",
            ));
        }
        let RequestArgs { max_body_bytes: one, max_bodies_bytes: all, .. } = args.requests;
        if all < one {
            faults.push(format!("--max-bodies-bytes: {all} is less than --max-body-bytes, {one}"));
        }
        let dial = args.dial.dial().map_err(|fault| faults.push(format!("--{fault}")));
        let fields = FieldRules::new(&args.requests.pass_fields);
        let fields = fields.map_err(|fault| faults.push(format!("--pass-fields: {fault}")));
        match (plan, dial, fields) {
            (Some(plan), Ok(dial), Ok(fields)) if faults.is_empty() => {
                let fields = fields.with_extensions();
                let settings = settings(args, pools, plan, tls);
                Ok(EppSettings { fields, dial, ..settings })
            }
            _ => Err(ConfigError(faults)),
        }
    }
}

fn settings(
    args: EppArgs,
    pools: Vec<PoolTarget>,
    plan: LoadedConfig,
    tls: TlsSettings,
) -> EppSettings {
    let without_effect = args.compat.given();
    let precise = plan.plan.precise.as_ref();
    let block_size = precise.and_then(|precise| precise.block_size);
    let max_blocks = precise.and_then(|precise| precise.max_blocks);
    let max_blocks = max_blocks.unwrap_or(args.scheduling.max_index_blocks.into());
    let tier_weights = precise.map(|precise| precise.tier_weights).unwrap_or_default();
    let kv_events = kv_events(&args.signals, precise.map(|precise| &precise.events));
    let ext_proc = streams(&args);
    let EppArgs { serving, scheduling, signals, requests, .. } = args;
    let at = |port| SocketAddr::new(serving.host, port);
    EppSettings {
        pools,
        kubeconfig: args.pools.kubeconfig,
        tls,
        health_listen: at(serving.grpc_health_port),
        metrics_listen: (!serving.no_metrics).then(|| at(serving.metrics_port)),
        metrics_auth: serving.metrics_endpoint_auth,
        plan,
        ext_proc,
        interest: requests.response_path.into(),
        leaves_early: requests.response_path == ResponsePath::None,
        scores: requests.emit_endpoint_scores,
        fallbacks: requests.fallback_endpoints,
        stream_metrics: requests.enable_grpc_stream_metrics,
        // The caller sets the rules and the dial, which may be at fault.
        fields: FieldRules::default(),
        unknown_fields: requests.unknown_fields.into(),
        refuse_unscreened: requests.refuse_unscreened,
        pins: requests.pins,
        max_index_blocks: max_blocks.clamp(INDEX_BLOCKS.0, INDEX_BLOCKS.1) as usize,
        tier_weights,
        block_size: NonZeroU32::new(block_size.unwrap_or(scheduling.block_size))
            .unwrap_or(NonZeroU32::MIN),
        hub_endpoint: scheduling.hub_endpoint,
        forward_ids: scheduling.forward_token_ids,
        agent_port: signals.agent_port,
        dial: Dial::default(),
        kv_events,
        scrape_interval: signals.refresh_metrics_interval,
        staleness: signals.metrics_staleness_threshold,
        leader_election: args.replicas.ha_enable_leader_election,
        peers: args.replicas.peers.settings(serving.host, "stator-epp"),
        shutdown_delay: serving.shutdown_delay,
        drain_timeout: serving.drain_timeout,
        without_effect,
    }
}

/// Sources of events: ports from the flags come before ports from the configuration.
fn kv_events(signals: &SignalArgs, configured: Option<&KvEvents>) -> Option<KvEventSettings> {
    let replay = signals.kv_replay_port;
    let flags = signals.kv_events_port.map(|live| KvEventPorts { live, replay });
    let discovered = configured
        .filter(|events| events.discover)
        .map(|events| KvEventPorts { live: events.port, replay: events.replay_port });
    let ports = flags.or(discovered);
    let settings = match configured {
        Some(KvEvents { bind, topic_filter, pods, .. }) => KvEventSettings {
            ports,
            bind: bind.clone(),
            topic: topic_filter.clone(),
            pods: pods.clone(),
        },
        None => KvEventSettings { ports, ..KvEventSettings::default() },
    };
    (settings.ports.is_some() || settings.bind.is_some()).then_some(settings)
}

fn streams(args: &EppArgs) -> ExtProcSettings {
    let (serving, requests) = (&args.serving, &args.requests);
    ExtProcSettings {
        max_body_bytes: requests.max_body_bytes as usize,
        body_budget: BodyBudget::new(requests.max_bodies_bytes as usize),
        max_headers: requests.max_headers as usize,
        max_header_bytes: requests.max_header_bytes as usize,
        max_message_bytes: serving.grpc_max_recv_msg_size as usize,
        max_streamed_bytes: requests.max_streamed_bytes as usize,
        max_concurrent_streams: serving.max_concurrent_streams,
        subset_filter: !requests.disable_endpoint_subset_filter,
        error_format: requests.error_format.into(),
        ..ExtProcSettings::default()
    }
}

/// Loads the `EndpointPickerConfig` that the flags name, or the default one.
fn plan(args: &EppArgs, faults: &mut Vec<String>) -> Option<LoadedConfig> {
    let args = &args.scheduling;
    let options =
        LoadOptions { allow_experimental: args.allow_experimental_plugins, lenient: args.lenient };
    let (from, text) = match (&args.config_file, &args.config_text) {
        (None, None) => ("", String::new()),
        (None, Some(text)) => ("--config-text", text.clone()),
        (Some(file), _) => match std::fs::read_to_string(file) {
            Ok(text) => ("--config-file", text),
            Err(error) => {
                faults.push(format!("--config-file: cannot read {file:?}: {error}"));
                return None;
            }
        },
    };
    // Faults name the flag, since a deployment may set several sources of settings.
    let refused = |refused: stator_epp_config::InvalidConfig| {
        refused.0.into_iter().map(|finding| format!("{from}: {finding}")).collect::<Vec<_>>()
    };
    match stator_epp_config::load(&text, options) {
        Ok(loaded) => Some(loaded),
        Err(error) => {
            faults.extend(refused(error));
            None
        }
    }
}

/// The effective `EndpointPickerConfig` of these flags, for `--explain`.
///
/// # Errors
///
/// [`ConfigError`] with everything that is wrong with it.
pub fn explain(args: &EppArgs) -> Result<String, ConfigError> {
    let mut faults = Vec::new();
    plan(args, &mut faults).map(|loaded| loaded.explanation).ok_or(ConfigError(faults))
}
