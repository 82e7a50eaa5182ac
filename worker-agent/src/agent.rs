//! One agent from start to end: load, bind, run workers, register, serve, drain.

mod request_plane;
mod tasks;

use crate::access::Access;
use crate::config::{AgentSettings, Runs};
use crate::crew::{Crew, Engines};
use crate::door::Door;
use crate::engine::Engine;
use crate::events::subscribers::Subscribers;
use crate::events::{self, Feeds, publish, replay};
use crate::fetch;
use crate::identity;
use crate::metrics::{AgentMetrics, PairMetrics};
use crate::operations;
use crate::peers::Peers;
use crate::planes::Planes;
use crate::registered::RegisteredAgents;
use crate::remote;
use crate::service::{self, Service};
use crate::worker::Pairing;
use crate::workers::{Reports, Workers};
use anyhow::Context;
use request_plane::{Services, serve};
use stator_discovery::{DiscoveryMetrics, Registration};
use stator_protos::discovery::{AgentRecord, ModelRecord, Role};
use stator_protos::worker::ModelFile;
use stator_runtime::metrics::Metrics;
use stator_runtime::shutdown::Trigger;
use stator_runtime::{Lane, Shutdown, admin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tasks::Tasks;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often the load of every worker is repeated.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Workers that are named when the agent starts; simulated agents may have hundreds.
const LOGGED_WORKERS: usize = 16;

/// A model, and engines that run it.
pub struct Loaded {
    /// What the fleet must know of it.
    pub model: ModelRecord,
    /// Files that proxies ask for, by base name.
    pub files: Vec<(String, Vec<u8>)>,
    /// One per worker.
    pub engines: Vec<LoadedEngine>,
}

/// One worker's engine.
pub struct LoadedEngine {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// KV blocks it can hold.
    pub total_blocks: u32,
    /// Whether its steps compute: it gets a thread of its own then. Others only take time.
    pub computes: bool,
}

/// A running agent.
pub struct Running {
    /// What it told the fleet about itself, without the lease.
    pub record: AgentRecord,
    /// Where metrics and health are served, if they are.
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
            let loading = tokio::task::spawn_blocking(move || crate::load::load(&engine));
            loading.await.context("loading the model failed")??.into()
        }
        Runs::Stock(stock) => {
            let name = settings.agent_id.as_deref();
            match remote::start(stock.clone(), name, &side.metrics, &shutdown).await? {
                Some(crew) => crew,
                None => return Ok(()),
            }
        }
    };
    let running = launch(settings, crew, side, shutdown).await?;
    running.task.await.context("the agent's task failed")?
}

/// Starts an agent around engines that are there already; it runs until `shutdown`.
///
/// # Errors
///
/// When a socket cannot be bound or the discovery back-end is not set up as it should be.
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
    let agent_metrics = AgentMetrics::default();
    side.metrics.register(|registry| agent_metrics.register(registry));
    let planes = Planes::bind(&settings).await?;
    let mut registration = Registration::open(&settings.discovery, settings.lease).await?;
    let agent_id = planes.agent_id(&settings);
    let last_life = registration.previous(&agent_id).await;
    let last_life = last_life.and_then(|was| was.workers.iter().map(|w| w.generation).max());
    let generation = identity::generation(SystemTime::now(), last_life);
    if settings.profile.role == Role::Prefill {
        crew.offer_kv(&settings.access.kv, &planes.endpoint);
    }
    let record = planes.record(&settings, &crew, (agent_id, generation));
    let (record_sender, record_receiver) = watch::channel(record.clone());
    let record_sender = Arc::new(record_sender);
    let door = Door::new(record_sender.clone(), side.readiness);
    let queue = Arc::new(publish::Queue::default());
    let log_bytes = settings.event_log_bytes / record.workers.len().max(1);
    let feeds = Arc::new(Feeds::new(log_bytes, queue.clone(), agent_metrics.clone()));
    let subscribers = Arc::new(Subscribers::new(agent_metrics.clone()));
    let reports = Reports {
        feeds: feeds.clone(),
        load_interval: settings.load_interval,
        metrics: agent_metrics.clone(),
        record: record_sender,
        door: door.clone(),
    };
    let (peers, following) = peers(&settings, &record.model.name, &side.metrics);
    let (workers, keeper) = match crew.engines {
        Engines::Own(engines) => {
            let pairing = pairing(&settings, peers, &side.metrics);
            (Workers::start(engines, &record.workers, &reports, &pairing)?, None)
        }
        Engines::Stock(engine) => {
            let (workers, keeper) = engine.run(&record.workers, &reports, peers)?;
            (workers, Some(keeper))
        }
    };
    let engines = match &keeper {
        None => operations::Engines::Own {
            drivers: workers.handles.iter().map(|handle| handle.commands.clone()).collect(),
            door: door.clone(),
        },
        Some(keeper) => operations::Engines::Stock(keeper.orders()),
    };
    let access = Access::new(settings.access.operators.clone());
    let operations = operations::Service { engines, access };
    let files = crew.files.into_iter().map(|(name, content)| ModelFile { name, content });
    let agent = Arc::new(service::Agent::new(
        workers.handles,
        files.collect(),
        record_receiver.clone(),
        settings.max_requests_per_stream,
        (agent_metrics.clone(), side.ended.clone()),
    ));
    door.tell();
    // Where tokens are handed on, so that no other thread need be woken for them.
    let serving = workers.lane.as_ref().map_or_else(Handle::current, Lane::handle);
    let tasks = Tasks {
        server: serving.spawn(serve(
            planes.listener,
            Services {
                transfers: fetch::Service {
                    agent: agent.clone(),
                    key: settings.access.kv.transfer_key.clone(),
                },
                worker: Service(agent.clone()),
                events: events::serve::Service::new(
                    feeds.clone(),
                    subscribers.clone(),
                    agent_metrics.clone(),
                    side.ended.clone(),
                ),
                operations,
            },
            side.ended.clone(),
        )),
        agent,
        publishing: tokio::spawn(publish::run(
            queue,
            (subscribers, planes.publisher),
            agent_metrics.clone(),
            side.ended.clone(),
        )),
        replaying: planes.replayer.map(|router| {
            tokio::spawn(replay::run(feeds.clone(), router, agent_metrics, side.ended.clone()))
        }),
        heartbeat: tokio::spawn(heartbeat(feeds)),
        following,
        reload: planes.reload.map(|reload| tokio::spawn(reload.run(side.ended.clone()))),
        registration: tokio::spawn(registration.run(record_receiver, side.ended)),
        drivers: workers.drivers,
        _lane: workers.lane,
        keeper,
        door,
        ended: side.end,
    };
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
    let task = tokio::spawn(tasks.until(shutdown, settings.drain_timeout));
    Ok(Running { record, metrics_address: side.address, task })
}

/// The agents that may be asked for prompts, and the task that follows them: only an agent that
/// decodes asks any.
fn peers(
    settings: &AgentSettings,
    model: &str,
    metrics: &Metrics,
) -> (Arc<Peers>, Option<JoinHandle<()>>) {
    let dial = &settings.access.dial;
    let (registered, following) = match settings.profile.role {
        Role::Decode => {
            let followed = DiscoveryMetrics::default();
            metrics.register(|registry| {
                followed.register(registry.sub_registry_with_prefix("stator_agent"));
            });
            let (agents, task) = RegisteredAgents::follow(&settings.discovery, dial, followed);
            (agents, Some(task))
        }
        Role::Aggregated | Role::Prefill | Role::Encode => (RegisteredAgents::default(), None),
    };
    let peers = Peers::new(dial.clone(), registered, model.to_owned(), settings.prefill_silence);
    (Arc::new(peers), following)
}

/// How engines here share requests with those of other agents.
fn pairing(settings: &AgentSettings, peers: Arc<Peers>, metrics: &Metrics) -> Pairing {
    let counted = PairMetrics::default();
    metrics.register(|registry| counted.register(registry));
    Pairing {
        hands_over: settings.profile.role == Role::Prefill,
        peers,
        trust: settings.access.kv.clone(),
        timeout: settings.prefill_timeout,
        metrics: counted,
    }
}

/// The side server, which is there before the engines are.
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
                let shown = admin::Shown { metrics, readiness, gate: None };
                let served = admin::serve(listen, shown, ended.clone()).await;
                Some(served.with_context(|| format!("metrics-port: cannot bind {listen}"))?.0)
            }
        };
        Ok(Self { metrics, readiness, address, end, ended })
    }
}

/// Repeats every worker's last load, so that a quiet worker's subscribers know that nothing was
/// lost before the silence.
async fn heartbeat(feeds: Arc<Feeds>) {
    let mut beat = tokio::time::interval(HEARTBEAT);
    loop {
        beat.tick().await;
        feeds.repeat_loads();
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trtllm_tests;
