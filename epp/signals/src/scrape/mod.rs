//! Reads how busy engines are off their metrics pages, twenty times a second.
//!
//! Pages are best read on a thread of their own: what comes twenty times a second from each of a
//! hundred endpoints would wake one thread of a larger runtime after the other.
//!
//! One task per endpoint asks over one kept connection, so that a slow endpoint delays no other;
//! they ask at a few moments of the interval, so that pages neither come all at once nor wake the
//! process one by one. Most of a page is not read: [`LoadReader`] knows where the few lines stood
//! last time. Where the server understands the `name[]` parameter of Prometheus' own Python client,
//! only those lines are made and sent at all, which spares the engine more than it spares us; a
//! server that answers such a question with anything else than what was asked for is asked for the
//! whole page.

mod mappings;
mod reader;

pub use mappings::{DEFAULT_ENGINE, ENGINE_LABELS, Mappings};
pub use reader::LoadReader;
pub use stator_signals::page::{CacheMapping, EngineSpecs, Incomplete, Mapping, Spec, SpecError};

use crate::roster::Roster;
use crate::{LoadSink, SignalMetrics};
use parking_lot::Mutex;
use rustls::ClientConfig;
use stator_epp_scheduler::Endpoint;
use stator_http::{Buffers, Connection, HttpError, Origin};
use stator_protos::WorkerRank;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior};

/// Longest wait after a failure; the first is the interval, and each is twice the one before.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Moments of an interval at which endpoints are asked: fewer wake us less often, more make the
/// bursts smaller.
const PHASES: u32 = 4;
/// The golden ratio's share of 2^32: multiples of it are spread evenly whatever their number.
const SPREAD: u32 = 0x9e37_79b9;

/// Label of an endpoint with the address of its metrics page.
///
/// Source: multi-cluster discovery of the llm-d router.
pub const METRICS_ADDRESS: &str = "metricsAddress";
/// Label of an endpoint with the port of its metrics page.
pub const METRICS_PORT: &str = "metricsPort";

/// Settings for reading metrics pages of endpoints.
#[derive(Clone, Debug)]
pub struct ScrapeSettings {
    /// Path of the page, `/metrics` by default; a query may follow it.
    pub path: String,
    /// The port, if it is not the one that requests go to.
    pub port: Option<u16>,
    /// Whether the labels [`METRICS_ADDRESS`] and [`METRICS_PORT`] of an endpoint come before its
    /// own address and this port.
    pub by_labels: bool,
    /// TLS, if it is spoken; see [`stator_http::TlsOptions`].
    pub tls: Option<Arc<ClientConfig>>,
    /// From one page to the next, 50 ms by default. A page that takes longer delays the next.
    pub interval: Duration,
    /// Longest wait for a page, 1 s by default.
    pub timeout: Duration,
    /// Time for which a report counts, 2 s by default.
    pub staleness: Duration,
    /// Largest page, in bytes; 8 MiB by default.
    pub page_bytes_max: usize,
    /// Whether to ask for the needed metrics alone; true by default.
    pub narrow: bool,
}

impl Default for ScrapeSettings {
    fn default() -> Self {
        Self {
            path: "/metrics".into(),
            port: None,
            by_labels: false,
            tls: None,
            interval: Duration::from_millis(50),
            timeout: Duration::from_secs(1),
            staleness: Duration::from_secs(2),
            page_bytes_max: 8 << 20,
            narrow: true,
        }
    }
}

impl ScrapeSettings {
    /// Address of an endpoint's page. A label that cannot be read counts as absent.
    fn page_of(&self, endpoint: &Endpoint) -> SocketAddr {
        let label = |name| endpoint.label(name).filter(|_| self.by_labels);
        let mut address = endpoint.address;
        if let Some(ip) = label(METRICS_ADDRESS).and_then(|ip| ip.parse().ok()) {
            address.set_ip(ip);
        }
        let port = label(METRICS_PORT).and_then(|port| port.parse().ok());
        if let Some(port) = port.or(self.port) {
            address.set_port(port);
        }
        address
    }
}

/// Asks endpoints for their metrics in the background. Dropping it ends that.
pub struct Scraper {
    shared: Arc<Shared>,
    mappings: Mappings,
    roster: Mutex<Roster<Plan>>,
}

struct Shared {
    settings: ScrapeSettings,
    buffers: Arc<Buffers>,
    sink: Arc<dyn LoadSink>,
    metrics: SignalMetrics,
    /// Origin of the phases.
    start: Instant,
}

/// Facts about an endpoint by which its task works; a change starts the task anew.
#[derive(Clone, Debug)]
struct Plan {
    /// Identity of the pod's life: another life of the pod is asked anew.
    uid: Arc<str>,
    address: SocketAddr,
    mapping: Arc<Mapping>,
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        let same_engine = Arc::ptr_eq(&self.mapping, &other.mapping);
        same_engine && (&self.uid, self.address) == (&other.uid, other.address)
    }
}

impl std::fmt::Debug for Scraper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scraper").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Scraper {
    /// A scraper that asks nobody yet.
    pub fn new(
        settings: ScrapeSettings,
        mappings: Mappings,
        sink: Arc<dyn LoadSink>,
        metrics: SignalMetrics,
    ) -> Self {
        let (buffers, start) = (Arc::default(), Instant::now());
        let shared = Arc::new(Shared { settings, buffers, sink, metrics, start });
        Self { shared, mappings, roster: Mutex::default() }
    }

    /// Runs the tasks on another runtime than the caller's.
    #[must_use]
    pub fn on(self, runtime: Handle) -> Self {
        Self { roster: Mutex::new(Roster::on(runtime)), ..self }
    }

    /// Asks exactly these endpoints from now on. Must be called within a Tokio runtime.
    pub fn follow(&self, endpoints: &[Arc<Endpoint>]) {
        let wanted = endpoints.iter().map(|endpoint| (endpoint.worker, self.plan(endpoint)));
        let mut roster = self.roster.lock();
        roster.update(wanted.collect(), |worker, plan| {
            let task = Task::new(self.shared.clone(), worker, plan);
            task.run()
        });
        self.shared.metrics.scraped.set(roster.len() as i64);
    }

    fn plan(&self, endpoint: &Endpoint) -> Plan {
        let address = self.shared.settings.page_of(endpoint);
        Plan { uid: endpoint.uid.clone(), address, mapping: self.mappings.of(endpoint) }
    }
}

/// The questions to one endpoint.
struct Task {
    shared: Arc<Shared>,
    worker: WorkerRank,
    connection: Connection,
    reader: LoadReader,
    whole_request: Arc<[u8]>,
    narrow_request: Option<Arc<[u8]>>,
    /// Whether to ask for the needed metrics alone; false after that failed.
    narrow: bool,
    /// Time of the last page that still counts.
    last: Option<Instant>,
    /// Latest report of whether the engine takes requests.
    accepting: Option<bool>,
}

/// Reason for which there is no load.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Fetch(#[from] HttpError),
    #[error("status {0}")]
    Status(u16),
    #[error(transparent)]
    Incomplete(#[from] Incomplete),
    #[error("no page within {0:?}")]
    Timeout(Duration),
}

impl Task {
    fn new(shared: Arc<Shared>, worker: WorkerRank, plan: Plan) -> Self {
        let settings = &shared.settings;
        let Plan { address, mapping, .. } = plan;
        let origin = Origin {
            host: address.ip().to_string(),
            port: address.port(),
            tls: settings.tls.clone(),
        };
        let whole_request = stator_http::request("GET", &origin, &settings.path, None, None).into();
        let narrow_request = narrowed(&settings.path, &mapping)
            .filter(|_| settings.narrow)
            .map(|target| stator_http::request("GET", &origin, &target, None, None).into());
        Self {
            connection: Connection::sharing(origin, shared.buffers.clone()),
            reader: LoadReader::new(mapping),
            whole_request,
            narrow_request,
            narrow: true,
            // As if it had just been heard of: it has the same time to say something.
            last: Some(Instant::now()),
            accepting: None,
            shared,
            worker,
        }
    }

    async fn run(mut self) {
        let ScrapeSettings { interval, timeout, .. } = self.shared.settings;
        let id = self.worker.worker.0 as u32 ^ u32::from(self.worker.rank);
        let hash = id.wrapping_mul(SPREAD) >> 16;
        let phase = interval / PHASES * (hash % PHASES);
        // The first look is at once; later ones keep to the phase, however late one was.
        let mut ticks = tokio::time::interval_at(self.shared.start + phase, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut backoff = interval;
        loop {
            ticks.tick().await;
            let asked = tokio::time::timeout(timeout, self.ask()).await;
            match asked.unwrap_or(Err(Failure::Timeout(timeout))) {
                Ok(()) => {
                    self.last = Some(Instant::now());
                    backoff = interval;
                }
                Err(failure) => {
                    // What comes after a failure may be another server.
                    self.narrow = true;
                    self.failed(&failure);
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX.max(interval));
                }
            }
        }
    }

    /// Gets one page and reports what it says.
    async fn ask(&mut self) -> Result<(), Failure> {
        if let Some(request) = self.narrow_request.clone().filter(|_| self.narrow) {
            match self.ask_with(&request).await {
                // Not understood, it seems.
                Err(Failure::Status(_) | Failure::Incomplete(_)) => self.narrow = false,
                outcome => return outcome,
            }
        }
        let request = self.whole_request.clone();
        self.ask_with(&request).await
    }

    async fn ask_with(&mut self, request: &[u8]) -> Result<(), Failure> {
        let Shared { settings, sink, metrics, .. } = &*self.shared;
        let response = self.connection.exchange(request, settings.page_bytes_max).await?;
        if response.status != 200 {
            return Err(Failure::Status(response.status));
        }
        let read = self.reader.read(response.body).map(|load| {
            metrics.pages.inc();
            sink.load(self.worker, load);
        });
        self.connection.done();
        read?;
        let awake = self.reader.is_awake();
        if self.accepting.replace(awake) != Some(awake) {
            sink.accepting(self.worker, awake);
        }
        Ok(())
    }

    fn failed(&mut self, failure: &Failure) {
        let Shared { settings, sink, metrics, .. } = &*self.shared;
        match failure {
            Failure::Incomplete(_) => metrics.pages_incomplete.inc(),
            Failure::Fetch(_) | Failure::Status(_) | Failure::Timeout(_) => {
                metrics.pages_failed.inc()
            }
        };
        let worker = self.worker;
        tracing::debug!(%worker, %failure, "no load of an endpoint");
        if self.last.is_some_and(|last| last.elapsed() >= settings.staleness) {
            self.last = None;
            metrics.stale.inc();
            tracing::info!(%worker, %failure, "an endpoint's load is unknown");
            sink.load_unknown(worker);
        }
    }
}

/// The path that asks for the needed metrics alone. `None` if it has a query already.
fn narrowed(path: &str, mapping: &Mapping) -> Option<String> {
    if path.contains('?') {
        return None;
    }
    let Mapping { waiting, running, kv_usage, lora, cache, awake } = mapping;
    let cache = cache.labels.iter().chain(cache.values.iter().flatten());
    let load = [waiting, running, kv_usage, lora].into_iter().flatten();
    let mut names: Vec<_> = load.chain(cache).chain(awake).map(Spec::name).collect();
    names.sort_unstable();
    names.dedup();
    let names: Vec<_> = names.iter().map(|name| format!("name%5B%5D={name}")).collect();
    Some(format!("{path}?{}", names.join("&")))
}

#[cfg(test)]
pub(crate) mod tests;
