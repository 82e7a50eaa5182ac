//! Settings of the proxy.

use super::absence::Absence;
use super::markup_args::MarkupChoices;
use super::responses::StoreLimits;
use super::routing::RouterArgs;
use crate::api_args::ResponsesPlace;
use crate::cors::AllowedOrigins;
use crate::door::DoorSettings;
use crate::ending::Ending;
use crate::http_args::{HttpArgs, MetricsArgs};
use crate::keys::ApiKeys;
use crate::rates::ClientRates;
use crate::upstream::passage::{Passage, PassageArgs};
use clap::Args;
use stator_api::UnknownFields;
use stator_discovery::{DiscoveryArgs, DiscoverySource, SourceError};
use stator_peers::{PeersArgs, PeersSettings};
use stator_runtime::config::ConfigError;
use stator_runtime::dial::{Dial, DialArgs};
use stator_runtime::tls;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Flags of `stator proxy`.
#[derive(Args, Clone, Debug)]
pub struct ProxyArgs {
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
    /// Address of KServe's gRPC service, if there is one.
    pub(crate) inference_listen: Option<SocketAddr>,
    pub(crate) tls: Option<tls::ServerSettings>,
    pub(crate) keys: Arc<ApiKeys>,
    /// Requests and tokens that clients have used, if rates are limited.
    pub(crate) rates: Option<Arc<ClientRates>>,
    /// Limits of the requests that pass through to engines as they came.
    pub(crate) passage: Passage,
    pub(crate) door: DoorSettings,
    /// Treatment of fields that no API has.
    pub(crate) unknown_fields: UnknownFields,
    /// Bounds of responses that are kept.
    pub(crate) responses: StoreLimits,
    /// Place of responses that are kept.
    pub(crate) responses_place: ResponsesPlace,
    /// Origins whose web pages may use the API.
    pub(crate) origins: AllowedOrigins,
    /// Silence after which a stream gets a comment.
    pub(crate) comment_pause: Option<Duration>,
    pub(crate) first_token_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) ending: Ending,
    pub(crate) migration_limit: u32,
    pub(crate) absence: Absence,
    /// Families of markup that answers are read with.
    pub(crate) markup: MarkupChoices,
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
        RouterArgs { router, split, queue, absence, markup }: RouterArgs,
        discovery: Result<DiscoverySource, SourceError>,
        metrics_listen: Option<SocketAddr>,
    ) -> Result<Self, ConfigError> {
        let mut faults = http.given.faults();
        let keys = ApiKeys::load(http.keys.clone(), &mut faults);
        let tls = http.tls(&mut faults);
        let origins = AllowedOrigins::new(&http.api.cors_origins, &mut faults);
        let door = http.door.settings(&mut faults);
        let placement = router.placement(&mut faults);
        let (nearness, split) = (split.nearness(), split.split(&mut faults));
        let priority_max = queue.priority_max.cast_signed();
        let queue = queue.settings(&mut faults);
        let markup = markup.choices(&mut faults);
        let discovery = discovery.map_err(|fault| faults.push(format!("discovery: {fault}"))).ok();
        if tls.is_some() && http.api.kserve_grpc_port.is_some() {
            faults.push(
                "kserve-grpc-port: it cannot be with secure-serving, as it has no TLS".into(),
            );
        }
        // All flags are checked first, so that an operator sees every fault at once.
        let (Some(keys), Some(placement), Some(queue), Some(discovery), true) =
            (keys, placement, queue, discovery, faults.is_empty())
        else {
            return Err(ConfigError(faults));
        };
        let listen = http.listen(Ipv4Addr::LOCALHOST);
        let inference_port = http.api.kserve_grpc_port;
        Ok(Self {
            listen,
            metrics_listen,
            inference_listen: inference_port.map(|port| SocketAddr::new(listen.ip(), port)),
            door,
            ending: http.ending(),
            keys: Arc::new(keys),
            rates: ClientRates::new(http.api.rate_limits()),
            tls,
            passage: Passage::default(),
            unknown_fields: http.api.unknown_fields.into(),
            responses: http.api.store_limits(),
            responses_place: http.api.responses_store.clone(),
            origins,
            comment_pause: http.api.comment_pause(),
            first_token_timeout: Duration::from_millis(http.first_token_timeout_ms),
            idle_timeout: Duration::from_millis(http.idle_timeout_ms),
            migration_limit: router.migration_limit,
            absence: absence.into(),
            markup,
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

impl TryFrom<ProxyArgs> for ProxySettings {
    type Error = ConfigError;

    fn try_from(args: ProxyArgs) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
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
