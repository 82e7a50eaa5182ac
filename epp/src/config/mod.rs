//! Settings of the picker: flags, and what they become once checked.
//!
//! Flags that the llm-d router has too keep their names, values and defaults, so that a
//! deployment's arguments go on working.

mod args;
mod pools;
#[cfg(test)]
mod tests;

pub use args::EppArgs;
pub use pools::{PoolSource, PoolTarget};

use crate::exchange::Interest;
use crate::ext_proc;
use stator_epp_config::{Loaded, Options};
use stator_runtime::config::ConfigError;
use stator_runtime::tls;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Checked settings of `stator epp`.
pub struct EppSettings {
    /// Where streams come from, by pool; at least one.
    pub pools: Vec<PoolTarget>,
    /// A kubeconfig file, where not the usual places say which cluster it is.
    pub kubeconfig: Option<PathBuf>,
    /// TLS of the ext-proc ports; `None` is plain text.
    pub tls: Option<tls::Settings>,
    /// Where health is asked.
    pub health_listen: SocketAddr,
    /// Where metrics are read; `None` is nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// Whether readers of metrics are asked who they are.
    pub metrics_auth: bool,
    /// What decides, from the `EndpointPickerConfig`.
    pub plan: Loaded,
    /// Limits and choices of streams.
    pub ext_proc: ext_proc::Settings,
    /// What somebody wants to see of every answer, whatever the plan needs.
    pub interest: Interest,
    /// Whether scores go to the data plane.
    pub scores: bool,
    /// Whether metrics of streams are kept.
    pub stream_metrics: bool,
    /// Tokens per KV block.
    pub block_size: NonZeroU32,
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerSettings,
    /// Port of the endpoints' agents, for pods whose labels do not say; `None`: they have none.
    pub agent_port: Option<u16>,
    /// Ports where engines publish KV events and replay them, for rank 0; `None`: they do not.
    pub kv_events: Option<KvEventPorts>,
    /// From one metrics page to the next.
    pub scrape_interval: Duration,
    /// Age at which a report counts no more.
    pub staleness: Duration,
    /// Other replicas.
    pub peers: Option<PeerSettings>,
    /// Whether only one replica is ready at a time.
    pub leader_election: bool,
    /// How long streams are taken after the process was told to end.
    pub shutdown_delay: Duration,
    /// Longest wait for open streams when the process is told to end.
    pub drain_timeout: Duration,
}

/// Where a tokenizer comes from; the first that is there is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerSettings {
    /// A folder with the model's files.
    pub path: Option<PathBuf>,
    /// The model's name on a hub: `organisation/name`.
    pub model: Option<String>,
    /// The hub's address; without it only the cache of earlier downloads is used.
    pub hub_endpoint: Option<String>,
    /// Whether token ids travel on to endpoints that take them.
    pub forward_ids: bool,
}

/// Where engines publish KV events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvEventPorts {
    /// Live events.
    pub live: u16,
    /// Replays; `None`: there are none.
    pub replay: Option<u16>,
}

/// How replicas find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Where others connect.
    pub listen: SocketAddr,
    /// Addresses or DNS names, each with a port; a name may stand for many.
    pub peers: Vec<String>,
    /// What replicas show each other; empty: nothing.
    pub token: String,
    /// Whom they trust and who they are, where they speak TLS.
    pub tls: Option<PeerFiles>,
}

/// Files for TLS between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// PEM file with the authorities of replicas.
    pub ca_file: PathBuf,
    /// Folder with `tls.crt` and `tls.key`.
    pub certificate: PathBuf,
    /// The name that replicas' certificates are for.
    pub server_name: String,
}

impl TryFrom<EppArgs> for EppSettings {
    type Error = ConfigError;

    fn try_from(args: EppArgs) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let pools = pools::targets(&args, &mut faults);
        let plan = plan(&args, &mut faults);
        let min_version = args.tls_min_version;
        let tls = args.secure_serving.then(|| tls::Settings {
            certificate: match &args.cert_path {
                Some(folder) => tls::Source::Folder(folder.clone()),
                None => tls::Source::SelfSigned { names: Vec::new() },
            },
            client_ca: args.client_ca_file.clone(),
            reload: args.enable_cert_reload,
            min_version,
            alpn: vec!["h2".into()],
        });
        if !args.secure_serving {
            let given = [
                ("--cert-path", args.cert_path.is_some()),
                ("--client-ca-file", args.client_ca_file.is_some()),
            ];
            let unused = given.iter().filter(|(_, given)| *given);
            faults.extend(
                unused.map(|(flag, _)| format!("{flag}: has no use with --secure-serving=false")),
            );
        }
        let staleness = args.metrics_staleness_threshold;
        if staleness < args.refresh_metrics_interval {
            faults.push(format!(
                "--metrics-staleness-threshold: {staleness:?} is shorter than \
                 --refresh-metrics-interval, {:?}",
                args.refresh_metrics_interval
            ));
        }
        match plan {
            Some(plan) if faults.is_empty() => Ok(settings(args, pools, plan, tls)),
            _ => Err(ConfigError(faults)),
        }
    }
}

fn settings(
    args: EppArgs,
    pools: Vec<PoolTarget>,
    plan: Loaded,
    tls: Option<tls::Settings>,
) -> EppSettings {
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let block_size = NonZeroU32::new(args.block_size).unwrap_or(NonZeroU32::MIN);
    let live = args.kv_events_port;
    EppSettings {
        pools,
        kubeconfig: args.kubeconfig,
        tls,
        health_listen: at(args.host, args.grpc_health_port),
        metrics_listen: (!args.no_metrics).then(|| at(args.host, args.metrics_port)),
        metrics_auth: args.metrics_endpoint_auth,
        plan,
        ext_proc: ext_proc::Settings {
            max_body_bytes: args.max_body_bytes as usize,
            max_message_bytes: args.grpc_max_recv_msg_size as usize,
            subset_filter: !args.disable_endpoint_subset_filter,
            fallbacks: args.fallback_endpoints,
            error_format: args.error_format.into(),
            ..ext_proc::Settings::default()
        },
        interest: args.response_path.into(),
        scores: args.emit_endpoint_scores,
        stream_metrics: args.enable_grpc_stream_metrics,
        block_size,
        tokenizer: TokenizerSettings {
            path: args.tokenizer_path,
            model: args.tokenizer_model,
            hub_endpoint: args.hub_endpoint,
            forward_ids: args.forward_token_ids,
        },
        agent_port: args.agent_port,
        kv_events: live.map(|live| KvEventPorts { live, replay: args.kv_replay_port }),
        scrape_interval: args.refresh_metrics_interval,
        staleness: args.metrics_staleness_threshold,
        peers: (!args.peers.is_empty()).then(|| PeerSettings {
            listen: at(args.host, args.peers_port),
            peers: args.peers,
            token: args.peers_token,
            tls: args.peers_ca_file.zip(args.peers_cert_path).map(|(ca_file, certificate)| {
                PeerFiles { ca_file, certificate, server_name: args.peers_server_name }
            }),
        }),
        leader_election: args.ha_enable_leader_election,
        shutdown_delay: args.shutdown_delay,
        drain_timeout: args.drain_timeout,
    }
}

/// Loads the `EndpointPickerConfig` that the flags name, or the default one.
fn plan(args: &EppArgs, faults: &mut Vec<String>) -> Option<Loaded> {
    let options =
        Options { allow_experimental: args.allow_experimental_plugins, lenient: args.lenient };
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
    let refused = |refused: stator_epp_config::Refused| {
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
