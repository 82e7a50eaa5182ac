//! One agent from start to end: load, bind, run workers, register, serve, drain.

mod admin;
mod devices;
mod engines;
mod kv_ways;
mod planes;
mod tasks;

use crate::availability::Availability;
use crate::config::{AgentSettings, Runs};
use crate::events::plane::EventPlane;
use crate::identity;
use crate::kv::lending::KvLending;
use crate::kv::peers::KvPeers;
use crate::kv::tiers::{TierDesk, TierOrder, register};
use crate::metrics::{AgentMetrics, DeviceMetrics};
use crate::operations::Operated;
use crate::operations::access::Access;
use crate::request_plane::rules::RuleDesk;
use crate::request_plane::server::{Services, serve};
use crate::request_plane::service;
use crate::served_model::{LoadedModel, ServedModel};
use crate::stock;
use crate::workers::Reports;
use admin::AdminServer;
use anyhow::Context;
use engines::RunningEngines;
use kv_ways::KvWays;
use planes::Planes;
use stator_discovery::Registration;
use stator_kv::metrics::KvMetrics;
use stator_protos::Generation;
use stator_protos::discovery::AgentRecord;
use stator_protos::worker::ModelFile;
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use tasks::{Drain, Tasks};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Most workers that the first log line names; simulated agents may have hundreds.
const LOGGED_WORKERS: usize = 16;

/// A running agent.
pub struct Running {
    /// The agent's record in the fleet, without the lease.
    pub record: AgentRecord,
    /// Address of metrics and health, if they are served.
    pub metrics_address: Option<std::net::SocketAddr>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Waits until the agent has drained and ended.
    pub async fn ended(self) {
        match self.task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the agent failed"),
            Err(error) => tracing::error!(%error, "the agent's task failed"),
        }
    }
}

/// Runs an agent until `shutdown`, then drains it.
///
/// # Errors
///
/// When the model cannot be loaded, the engine does not start, or a socket cannot be bound; the
/// agent has not registered then.
pub async fn run(settings: AgentSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    let admin = AdminServer::serve(&settings, Metrics::default()).await?;
    if let Runs::Stock(engine) = &settings.engine
        && engine.is_follower
    {
        let name = settings.agent_id.as_deref().unwrap_or("engine");
        return stock::follow(engine, name, &admin.readiness, &shutdown).await;
    }
    let devices = tokio::spawn(devices::look(device_metrics(&admin.metrics)));
    let lending = KvLending::bind(&settings)?;
    let peers = KvPeers::open(&settings, lending.as_ref())?;
    let kv_transfer = peers.as_ref().and_then(|peers| peers.address().map(str::to_owned));
    let mut served: ServedModel = match &settings.engine {
        Runs::Own(engine) => {
            let engine = engine.clone();
            let tiers = tier_order(&settings, &admin.metrics, peers);
            let desk = tiers.as_ref().map(|order| order.desk.clone()).unwrap_or_default();
            let load = move || crate::model_loader::load(&engine, tiers);
            let loading = tokio::task::spawn_blocking(load);
            let (loaded, tiers) = loading.await.context("loading the model failed")??;
            ServedModel::with_tiers(loaded, tiers, desk, may_pin(&settings))
        }
        Runs::Stock(stock) => {
            let name = settings.agent_id.as_deref();
            let place = stock::EngineSurroundings { name, metrics: &admin.metrics, peers };
            match stock::start(*stock.clone(), place, &shutdown).await? {
                Some(served) => served,
                None => return Ok(()),
            }
        }
    };
    served.profile.kv_transfer = kv_transfer;
    let running = launch(settings, served, lending, admin, shutdown).await?;
    devices.await.context("the search for devices failed")?;
    running.task.await.context("the agent's task failed")?
}

/// Metrics of the machine's devices, which the agent serves with its own.
fn device_metrics(metrics: &Metrics) -> DeviceMetrics {
    let counted = DeviceMetrics::default();
    metrics.register(|registry| counted.register(registry));
    counted
}

/// Whether clients may pin prompts of engines in this process.
fn may_pin(settings: &AgentSettings) -> bool {
    matches!(&settings.engine, Runs::Own(engine) if engine.options.pins.share_percent > 0)
}

/// The order for the tiers that the settings name, whose metrics are the agent's.
fn tier_order(
    settings: &AgentSettings,
    metrics: &Metrics,
    peers: Option<Arc<KvPeers>>,
) -> Option<TierOrder> {
    let tiers = settings.kv_tiers.clone()?;
    let counted = KvMetrics::default();
    let block_tokens = register(&counted, &tiers, metrics);
    if let Runs::Own(engine) = &settings.engine {
        block_tokens.store(engine.options.block_size, Ordering::Relaxed);
    }
    let object_key = settings.access.kv.object_key;
    let desk = TierDesk::new();
    Some(TierOrder { settings: tiers, metrics: counted, object_key, peers, desk })
}

/// Starts an agent around existing engines; it runs until `shutdown`.
///
/// # Errors
///
/// When a socket cannot be bound or the discovery back-end is misconfigured.
pub async fn start(
    settings: AgentSettings,
    loaded: LoadedModel,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<Running> {
    let admin = AdminServer::serve(&settings, metrics).await?;
    let lending = KvLending::bind(&settings)?;
    let served =
        ServedModel::with_tiers(loaded, Vec::new(), TierDesk::default(), may_pin(&settings));
    launch(settings, served, lending, admin, shutdown).await
}

/// Binds the planes, starts the workers, registers them and serves.
async fn launch(
    settings: AgentSettings,
    mut served: ServedModel,
    lending: Option<Arc<KvLending>>,
    admin: AdminServer,
    shutdown: Shutdown,
) -> anyhow::Result<Running> {
    let metrics = AgentMetrics::default();
    admin.metrics.register(|registry| metrics.register(registry));
    let planes = Planes::bind(&settings).await?;
    let mut registration = Registration::open(&settings.discovery, settings.lease).await?;
    let agent_id = planes.agent_id(&settings);
    let generation = next_generation(&mut registration, &agent_id).await;
    let ways = KvWays::open(&settings, &mut served, lending, &planes.endpoint);
    let record = planes.record(&settings, &served, agent_id, generation);
    let (record_sender, record_receiver) = watch::channel(record.clone());
    let record_sender = Arc::new(record_sender);
    let availability = Availability::new(record_sender.clone(), admin.readiness.clone());
    let log_bytes = settings.event_log_bytes / record.workers.len().max(1);
    let events = EventPlane::new(log_bytes, metrics.clone());
    let reports = Reports {
        feeds: events.feeds(),
        load_interval: settings.load_interval,
        metrics: metrics.clone(),
        record: record_sender,
        availability: availability.clone(),
    };
    let mut engines = RunningEngines::start(served.engines, ways, &settings, &admin, &reports)?;
    let operated = Operated { engines: engines.operated(&availability), tiers: served.desk };
    if let Some(adapters) = &admin.adapters {
        let access = Access::new(settings.access.operators.clone());
        adapters.open(operated.engines.clone(), access, record_receiver.clone());
    }
    let files = served.files.into_iter().map(|(name, content)| ModelFile { name, content });
    let agent = Arc::new(service::Agent::new(
        engines.take_handles(),
        service::AgentSetup {
            model_files: files.collect(),
            record: record_receiver.clone(),
            max_requests_per_stream: settings.max_requests_per_stream,
            metrics,
            rules: Arc::new(RuleDesk::new(served.rules)),
            ended: admin.ended.clone(),
        },
    ));
    // The agent turns ready here and not before: its workers run.
    availability.publish();
    let streamed = events.service(&admin.ended);
    let services = Services::new(agent.clone(), streamed, operated, &settings.access);
    let serving = engines.serving();
    let tasks = Tasks {
        server: serving.spawn(serve(planes.listener, services, admin.ended.clone())),
        agent,
        events: events.spawn(planes.publisher, planes.replayer, &admin.ended),
        engines,
        reload: planes.reload.map(|reload| tokio::spawn(reload.run(admin.ended.clone()))),
        registration: tokio::spawn(registration.run(record_receiver, admin.ended)),
        availability,
        ended: admin.end,
    };
    log_start(&record);
    let drain = Drain { timeout: settings.drain_timeout, outlive: settings.outlive };
    let task = tokio::spawn(tasks.until(shutdown, drain));
    Ok(Running { record, metrics_address: admin.address, task })
}

/// The generation of this agent's workers: later than that of its previous life.
async fn next_generation(registration: &mut Registration, agent_id: &str) -> Generation {
    let last_life = registration.previous(agent_id).await;
    let last_life = last_life.and_then(|was| was.workers.iter().map(|w| w.generation).max());
    identity::generation(SystemTime::now(), last_life)
}

/// Logs the start, with the agent's addresses.
fn log_start(record: &AgentRecord) {
    let ids = record.workers.iter().map(|worker| worker.worker.to_string()).take(LOGGED_WORKERS);
    tracing::info!(
        agent = record.agent_id,
        pid = std::process::id(),
        endpoint = record.endpoint,
        events = record.events_endpoint,
        replay = record.replay_endpoint,
        model = record.model.name,
        worker_count = record.workers.len(),
        workers = ids.collect::<Vec<_>>().join(" "),
        "serving"
    );
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trtllm_tests;
