//! Settings of the proxy.

use crate::absence::Absence;
use crate::door::{DoorArgs, DoorSettings, KEY_SHARE_PERCENT};
use crate::ending::Ending;
use crate::given::GivenFlags;
use crate::keys::{ApiKeys, KeyArgs};
use crate::routing::RouterArgs;
use crate::upstream::passage::{Passage, PassageArgs};
use clap::{ArgAction, Args};
use stator_discovery::{DiscoveryArgs, DiscoverySource, SourceError};
use stator_peers::{PeersArgs, PeersSettings};
use stator_runtime::config::ConfigError;
use stator_runtime::dial::{Dial, DialArgs};
use stator_runtime::tls;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Time for which a proxy takes requests after it has become unready, if no flag says another: two
/// failed probes of the readiness in `manifests`, and the way of the news to whoever balances.
const LAME_DUCK: Duration = Duration::from_secs(5);

/// Address, clients and limits of the HTTP server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Address to serve on. Default: 127.0.0.1; 0.0.0.0 for the sidecar, which other pods have to
    /// reach. Use 0.0.0.0 to be reachable from other machines, and :: for IPv6.
    #[arg(long, env = "STATOR_HTTP_HOST", value_name = "IP")]
    pub http_host: Option<IpAddr>,

    /// Port to serve on; 0 picks a free one and logs it.
    #[arg(
        long,
        env = "STATOR_HTTP_PORT",
        alias = "port",
        default_value_t = 8000,
        value_name = "PORT"
    )]
    pub http_port: u16,

    /// API keys.
    #[command(flatten)]
    pub keys: KeyArgs,

    /// Serve clients over TLS, with the certificate in `cert-path`, or a certificate that the proxy
    /// signs itself.
    #[arg(long, env = "STATOR_SECURE_SERVING", alias = "secure-proxy", default_value_t = false,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = ArgAction::Set, value_name = "BOOL")]
    pub secure_serving: bool,

    /// Folder with tls.crt and tls.key, which are read again when they change.
    #[arg(long, env = "STATOR_CERT_PATH", value_name = "DIR")]
    pub cert_path: Option<PathBuf>,

    /// Limits of clients: sizes, connections and waits.
    #[command(flatten)]
    pub door: DoorArgs,

    /// Longest wait for the first token, in milliseconds. Later ones end with 504.
    #[arg(long, env = "STATOR_FIRST_TOKEN_TIMEOUT_MS", default_value_t = 600_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub first_token_timeout_ms: u64,

    /// Longest wait between tokens, in milliseconds. An answer that stalls longer ends with an
    /// error.
    #[arg(long, env = "STATOR_IDLE_TIMEOUT_MS", default_value_t = 120_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub idle_timeout_ms: u64,

    /// Time for which the process still takes requests after it was told to end and has become
    /// unready, in milliseconds: load balancers need it to notice. Answers close their connections
    /// in the meantime. Default: 5 s, and none under `stator up`, which nothing balances.
    #[arg(long, env = "STATOR_LAME_DUCK_MS", value_name = "MS",
          value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub lame_duck_ms: Option<u64>,

    /// Longest wait for running requests when the process no longer takes new ones, in seconds. A
    /// second signal ends the process at once.
    #[arg(long, env = "STATOR_DRAIN_TIMEOUT_S", default_value_t = 30, value_name = "S",
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_timeout_s: u64,
}

/// Flags of the address that serves operators.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsArgs {
    /// Address that serves metrics and health for operators.
    #[arg(long, env = "STATOR_METRICS_HOST", default_value = "127.0.0.1", value_name = "IP")]
    pub metrics_host: IpAddr,

    /// Port that serves metrics and health; 0 takes a free one. The HTTP port serves both too.
    #[arg(long, env = "STATOR_METRICS_PORT", default_value_t = 9090, value_name = "PORT")]
    pub metrics_port: u16,
}

impl MetricsArgs {
    /// The address that serves operators.
    pub(crate) fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.metrics_host, self.metrics_port)
    }
}

/// Flags of `stator proxy`.
#[derive(Args, Clone, Debug)]
pub struct ProxyArgs {
    // First, because the others take their values out of what was parsed.
    #[command(flatten)]
    pub(crate) given: GivenFlags,

    /// HTTP server.
    #[command(flatten)]
    pub http: HttpArgs,

    /// Placement of requests.
    #[command(flatten)]
    pub router: RouterArgs,

    /// Requests passed through to engines.
    #[command(flatten)]
    pub passage: PassageArgs,

    /// Port for operators.
    #[command(flatten)]
    pub metrics: MetricsArgs,

    /// Registry of the agents.
    #[command(flatten)]
    pub discovery: DiscoveryArgs,

    /// Other proxies of the same fleet.
    #[command(flatten)]
    pub peers: PeersArgs,

    /// TLS of connections to agents.
    #[command(flatten)]
    pub dial: DialArgs,
}

/// Checked settings of the proxy over a fleet.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) tls: Option<tls::ServerSettings>,
    pub(crate) keys: Arc<ApiKeys>,
    /// Limits of the requests that pass through to engines as they came.
    pub(crate) passage: Passage,
    pub(crate) door: DoorSettings,
    pub(crate) first_token_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) ending: Ending,
    pub(crate) migration_limit: u32,
    pub(crate) absence: Absence,
    pub(crate) priority_max: i32,
    /// Whether requests may name their workers.
    pub(crate) pins: bool,
    pub(crate) placement: stator_placement::PlacementSettings,
    pub(crate) queue: stator_queue::CheckedSettings,
    pub(crate) discovery: DiscoverySource,
    pub(crate) dial: Dial,
    /// Other replicas.
    pub(crate) peers: Option<PeersSettings>,
    /// Gets the first model that is served.
    pub(crate) first_model: Option<mpsc::Sender<FirstModel>>,
}

/// The first model that a proxy serves.
#[derive(Clone, Debug)]
pub struct FirstModel {
    /// Name that clients ask for.
    pub name: String,
    /// Address on which the proxy serves.
    pub address: SocketAddr,
}

impl ProxySettings {
    /// Checks the flags of a proxy that finds its agents by `discovery` and serves operators at
    /// `metrics_listen`, if anywhere apart from its HTTP port.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every fault.
    pub fn new(
        http: HttpArgs,
        RouterArgs { router, split, queue, absence }: RouterArgs,
        discovery: Result<DiscoverySource, SourceError>,
        metrics_listen: Option<SocketAddr>,
    ) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let keys = ApiKeys::load(http.keys.clone(), &mut faults);
        let tls = http.tls(&mut faults);
        let door = http.door.settings(&mut faults);
        let placement = router.placement(&mut faults);
        let (nearness, split) = (split.nearness(), split.split(&mut faults));
        let priority_max = queue.priority_max.cast_signed();
        let queue = queue.settings(&mut faults);
        let discovery = discovery.map_err(|fault| faults.push(format!("discovery: {fault}"))).ok();
        let (Some(keys), Some(placement), Some(queue), Some(discovery), true) =
            (keys, placement, queue, discovery, faults.is_empty())
        else {
            return Err(ConfigError(faults));
        };
        Ok(Self {
            listen: http.listen(Ipv4Addr::LOCALHOST),
            metrics_listen,
            door,
            ending: http.ending(),
            keys: Arc::new(keys),
            tls,
            passage: Passage::default(),
            first_token_timeout: Duration::from_millis(http.first_token_timeout_ms),
            idle_timeout: Duration::from_millis(http.idle_timeout_ms),
            migration_limit: router.migration_limit,
            absence: absence.into(),
            priority_max,
            pins: router.router_pins,
            placement: stator_placement::PlacementSettings { split, nearness, ..placement },
            queue,
            discovery,
            dial: Dial::default(),
            peers: None,
            first_model: None,
        })
    }

    /// These settings, with a channel that gets the first model once it is served.
    #[must_use]
    pub fn with_first_model(self, first_model: mpsc::Sender<FirstModel>) -> Self {
        Self { first_model: Some(first_model), ..self }
    }
}

impl HttpArgs {
    /// Faults of flags that a proxy beside an engine cannot obey.
    pub(crate) fn faults_beside_an_engine(&self) -> impl Iterator<Item = String> {
        let shares = self.door.key_share_percent != KEY_SHARE_PERCENT;
        let fault = "key-share-percent: the engine beside a sidecar checks keys".to_owned();
        self.keys.faults_beside_an_engine().chain(shares.then_some(fault))
    }

    /// The address to serve on, at `host` unless a flag names another.
    pub(crate) fn listen(&self, host: Ipv4Addr) -> SocketAddr {
        SocketAddr::new(self.http_host.unwrap_or(host.into()), self.http_port)
    }

    /// Settings of TLS on the client port; `None` for plain HTTP.
    pub(crate) fn tls(&self, faults: &mut Vec<String>) -> Option<tls::ServerSettings> {
        if self.cert_path.is_some() && !self.secure_serving {
            faults.push("cert-path: needs secure-serving".to_owned());
        }
        let own = tls::CertificateSource::SelfSigned { names: Vec::new() };
        self.secure_serving.then(|| tls::ServerSettings {
            certificate: self.cert_path.clone().map_or(own, tls::CertificateSource::Folder),
            client_ca: None,
            reload: true,
            min_version: tls::Version::default(),
            alpn: vec!["http/1.1".to_owned()],
        })
    }

    /// Phases and deadlines of the proxy's end.
    pub(crate) fn ending(&self) -> Ending {
        Ending {
            lame_duck: self.lame_duck_ms.map_or(LAME_DUCK, Duration::from_millis),
            drain_timeout: Duration::from_secs(self.drain_timeout_s),
        }
    }
}

impl TryFrom<ProxyArgs> for ProxySettings {
    type Error = ConfigError;

    fn try_from(args: ProxyArgs) -> Result<Self, ConfigError> {
        let mut faults = args.given.faults();
        let passage = args.passage.passage(false, &mut faults);
        let dial = args.dial.dial().map_err(|fault| faults.push(fault)).ok();
        let (discovery, metrics) = (args.discovery.source(), Some(args.metrics.listen()));
        let settings = Self::new(args.http, args.router, discovery, metrics).and_then(|settings| {
            let peers = args.peers.settings(settings.listen.ip(), "stator-proxy");
            check_predictions(&settings, peers.as_ref())?;
            Ok(Self { dial: dial.unwrap_or_default(), peers, passage, ..settings })
        });
        join(settings, faults)
    }
}

/// The settings, or their faults together with those found before.
fn join(
    settings: Result<ProxySettings, ConfigError>,
    mut faults: Vec<String>,
) -> Result<ProxySettings, ConfigError> {
    match settings {
        Ok(settings) if faults.is_empty() => Ok(settings),
        Ok(_) => Err(ConfigError(faults)),
        Err(ConfigError(more)) => {
            faults.extend(more);
            Err(ConfigError(faults))
        }
    }
}

/// Replicas tell of a prompt's beginning once in a second, and predictions must last longer.
fn check_predictions(
    settings: &ProxySettings,
    peers: Option<&PeersSettings>,
) -> Result<(), ConfigError> {
    let ttl = settings.placement.early_prediction_ttl;
    match ttl.filter(|ttl| peers.is_some() && *ttl < Duration::from_secs(2)) {
        None => Ok(()),
        Some(_) => Err(ConfigError(vec![
            "router-predicted-ttl-s: 1 is less than 2, the least with peers".into(),
        ])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        proxy: ProxyArgs,
    }

    #[test]
    fn a_fleet_is_served_to_its_own_machine() {
        let settings = ProxySettings::try_from(Line::parse_from(["proxy"]).proxy);
        assert_eq!(settings.expect("defaults are valid").listen.to_string(), "127.0.0.1:8000");
    }
}
