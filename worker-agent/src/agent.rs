//! One agent from start to end: load, bind, run workers, register, serve, drain.

mod engines;
mod planes;
mod tasks;

use crate::availability::Door;
use crate::config::{AgentSettings, Runs};
use crate::events::plane::EventPlane;
use crate::identity;
use crate::metrics::AgentMetrics;
use crate::request_plane::server::{Services, serve};
use crate::request_plane::service;
use crate::served_model::Crew;
use crate::stock;
use crate::workers::Reports;
use anyhow::Context;
use engines::RunningEngines;
use planes::Planes;
use stator_discovery::Registration;
use stator_engine::Engine;
use stator_protos::Generation;
use stator_protos::discovery::{AgentRecord, ModelRecord, Role};
use stator_protos::worker::ModelFile;
use stator_runtime::metrics::Metrics;
use stator_runtime::shutdown::Trigger;
use stator_runtime::{Shutdown, admin};
use std::sync::Arc;
use std::time::SystemTime;
use tasks::Tasks;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Most workers that the first log line names; simulated agents may have hundreds.
const LOGGED_WORKERS: usize = 16;

/// A model, and engines that run it.
pub struct Loaded {
    /// Record of the model for the fleet.
    pub model: ModelRecord,
    /// Files that proxies ask for, by base name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Engines, one per worker.
    pub engines: Vec<LoadedEngine>,
}

/// One worker's engine.
pub struct LoadedEngine {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// KV blocks it can hold.
    pub total_blocks: u32,
    /// Whether its steps compute, for which the engine gets a thread of its own. Other engines only
    /// model time.
    pub computes: bool,
}

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
    let side = Side::serve(&settings, Metrics::default()).await?;
    let crew: Crew = match &settings.engine {
        Runs::Own(engine) => {
            let engine = engine.clone();
            let loading = tokio::task::spawn_blocking(move || crate::model_loader::load(&engine));
            loading.await.context("loading the model failed")??.into()
        }
        Runs::Stock(stock) => {
            let name = settings.agent_id.as_deref();
            match stock::start(stock.clone(), name, &side.metrics, &shutdown).await? {
                Some(crew) => crew,
                None => return Ok(()),
            }
        }
    };
    let running = launch(settings, crew, side, shutdown).await?;
    running.task.await.context("the agent's task failed")?
}

/// Starts an agent around existing engines; it runs until `shutdown`.
///
/// # Errors
///
/// When a socket cannot be bound or the discovery back-end is misconfigured.
pub async fn start(
    settings: AgentSettings,
    loaded: Loaded,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<Running> {
    let side = Side::serve(&settings, metrics).await?;
    launch(settings, loaded.into(), side, shutdown).await
}

/// Binds the planes, starts the workers, registers them and serves.
async fn launch(
    settings: AgentSettings,
    mut crew: Crew,
    side: Side,
    shutdown: Shutdown,
) -> anyhow::Result<Running> {
    let metrics = AgentMetrics::default();
    side.metrics.register(|registry| metrics.register(registry));
    let planes = Planes::bind(&settings).await?;
    let mut registration = Registration::open(&settings.discovery, settings.lease).await?;
    let agent_id = planes.agent_id(&settings);
    let generation = next_generation(&mut registration, &agent_id).await;
    if settings.profile.role == Role::Prefill {
        crew.offer_kv(&settings.access.kv, &planes.endpoint);
    }
    let record = planes.record(&settings, &crew, agent_id, generation);
    let (record_sender, record_receiver) = watch::channel(record.clone());
    let record_sender = Arc::new(record_sender);
    let door = Door::new(record_sender.clone(), side.readiness.clone());
    let log_bytes = settings.event_log_bytes / record.workers.len().max(1);
    let events = EventPlane::new(log_bytes, metrics.clone());
    let reports = Reports {
        feeds: events.feeds(),
        load_interval: settings.load_interval,
        metrics: metrics.clone(),
        record: record_sender,
        door: door.clone(),
    };
    let mut engines = RunningEngines::start(crew.engines, &settings, &side, &reports)?;
    let operated = engines.operated(&door);
    let files = crew.files.into_iter().map(|(name, content)| ModelFile { name, content });
    let agent = Arc::new(service::Agent::new(
        engines.take_handles(),
        service::AgentSetup {
            model_files: files.collect(),
            record: record_receiver.clone(),
            max_requests_per_stream: settings.max_requests_per_stream,
            metrics,
            ended: side.ended.clone(),
        },
    ));
    // The agent turns ready here and not before: its workers run.
    door.tell();
    let streamed = events.service(&side.ended);
    let services = Services::new(agent.clone(), streamed, operated, &settings.access);
    let serving = engines.serving();
    let tasks = Tasks {
        server: serving.spawn(serve(planes.listener, services, side.ended.clone())),
        agent,
        events: events.spawn(planes.publisher, planes.replayer, &side.ended),
        engines,
        reload: planes.reload.map(|reload| tokio::spawn(reload.run(side.ended.clone()))),
        registration: tokio::spawn(registration.run(record_receiver, side.ended)),
        door,
        ended: side.end,
    };
    log_start(&record);
    let task = tokio::spawn(tasks.until(shutdown, settings.drain_timeout));
    Ok(Running { record, metrics_address: side.address, task })
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

/// The side server, which starts before the engines.
struct Side {
    metrics: Metrics,
    readiness: admin::Readiness,
    address: Option<std::net::SocketAddr>,
    end: Trigger,
    ended: Shutdown,
}

impl Side {
    async fn serve(settings: &AgentSettings, metrics: Metrics) -> anyhow::Result<Self> {
        let (end, ended) = Shutdown::new();
        let readiness = admin::Readiness::default();
        let address = match settings.metrics_listen {
            None => None,
            Some(listen) => {
                let (metrics, readiness) = (metrics.clone(), readiness.clone());
                let shown = admin::AdminContent { metrics, readiness, gate: None };
                let served = admin::serve(listen, shown, ended.clone()).await;
                Some(served.with_context(|| format!("metrics-port: cannot bind {listen}"))?.0)
            }
        };
        Ok(Self { metrics, readiness, address, end, ended })
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trtllm_tests;
