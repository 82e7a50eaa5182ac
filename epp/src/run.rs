//! Starts the picker, and ends it: watches, signals, servers.

use crate::config::{EppSettings, PoolSource, PoolTarget, TokenizerSettings};
use crate::director::PoolDirector;
use crate::director::settings::DirectorSettings;
use crate::exchange::Interest;
use crate::ext_proc::{self, Drain, ExtProc};
use crate::flow::{self, Flow};
use crate::health::Health;
use crate::metered::metered;
use crate::observe::Observe;
use crate::pool::{self, Pool};
use crate::ready::Conditions;
use crate::replicas;
use crate::signals::{SignalHost, Signals};
use anyhow::Context;
use http::StatusCode;
use rustls::ServerConfig;
use stator_epp_config::ResponsePath;
use stator_epp_metrics::{Build, EppMetrics, PoolView};
use stator_epp_plugins::KvCost;
use stator_epp_plugins::settings::Tokens;
use stator_epp_pool::kubernetes::{Cluster, Election, PoolRef, ReadAccess, Reviewer};
use stator_epp_pool::{PoolSpec, PoolWatch, file};
use stator_epp_scheduler::{Scheduler, SchedulerSettings};
use stator_epp_signals::tokenizer::Renderer;
use stator_peers::Seat;
use stator_runtime::admin::{self, AdminContent, MetricsGate, Readiness};
use stator_runtime::metrics::Metrics;
use stator_runtime::tls::{self, CipherSuites, Listener};
use stator_runtime::{Lane, Shutdown};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Longest wait for the first view of the endpoints before ext-proc is served without it.
const FIRST_VIEW: Duration = Duration::from_secs(5);

/// A pool and what keeps it up to date; dropping it ends that.
struct RunningPool {
    pool: Arc<Pool>,
    target: PoolTarget,
    _watched: PoolWatch,
    _tasks: JoinSet<()>,
}

/// Parts that all pools share.
#[derive(Clone, Copy)]
struct Common<'a> {
    metrics: &'a EppMetrics,
    signals: SignalHost<'a>,
}

/// Serves until `shutdown`, then drains.
///
/// # Errors
///
/// When an address cannot be bound, a certificate cannot be used, or no cluster is configured
/// where one is needed.
pub async fn run(settings: EppSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    tls::install_provider();
    settings.tls.check()?;
    settings.plan.warnings.iter().for_each(|finding| tracing::warn!("configuration: {finding}"));
    if !settings.without_effect.is_empty() {
        tracing::info!(flags = settings.without_effect.join(" "), "flags without effect");
    }
    let registry = Metrics::default();
    let metrics = registry.register(|registry| EppMetrics::register(build(), registry));
    registry.register(|registry| settings.ext_proc.body_budget.register(registry));
    let cluster = cluster(&settings).await?;
    let scraping = Lane::start("scrape").context("cannot start a thread")?;
    let signals = SignalHost { registry: &registry, scraping: &scraping };
    let common = Common { metrics: &metrics, signals };
    let pools = start_pools(&settings, cluster.as_ref(), common)?;
    let election = elect(&settings, cluster.as_ref());
    let readiness = Readiness::default();
    let (stop, stopped) = Shutdown::new();
    let (end, ended) = Shutdown::new();

    let mut rest = JoinSet::new();
    let (warm, warmed) = watch::channel(settings.peers.is_none());
    let known: Vec<_> = pools.iter().map(|running| running.pool.clone()).collect();
    if let Some(peers) = settings.peers.clone() {
        let apart = settings.plan.plan.in_flight.apart;
        // Taken here, so that a port that is in use ends the start, not a task.
        let seat = Seat::take(peers, "stator_epp", &registry).await?;
        rest.spawn(replicas::join(seat, known.clone(), apart, warm, ended.clone()));
    }
    let leading = election.as_ref().map(Election::leading);
    let (listens, listening) = watch::channel(false);
    let grpc_alone = crate::plan::reads_grpc_alone(&settings.plan.plan);
    let conditions = Conditions { pools: known.clone(), listening, warmed, leading, grpc_alone };
    let (senders, health) = conditions.senders(readiness.clone());
    rest.spawn(conditions.watch(senders, shutdown.clone()));
    serve_health(&settings, &health, &ended, &mut rest).await?;
    let gate = cluster.as_ref().filter(|_| settings.metrics_auth).map(gate);
    let shown = AdminContent { metrics: registry.clone(), readiness, gate };
    serve_metrics(&settings, shown, &ended, &mut rest).await?;

    // A gateway that fails open goes round a picker that is not there, not round one that knows no
    // endpoint yet.
    tokio::select! {
        _ = tokio::time::timeout(FIRST_VIEW, replicas::known(&known)) => {}
        () = shutdown.wait() => {}
    }
    // Each pool's own task does so too, though perhaps after the first request has come.
    known.iter().for_each(|pool| pool.follow_view());
    let (tls, suites) = (settings.tls.ext_proc.as_ref(), &settings.tls.cipher_suites);
    let tls = certificate(tls, suites, &ended, &mut rest)?;
    let edge = Edge { settings: &settings, metrics: &metrics, health: &health, stopped };
    let serving = edge.serve(&pools, tls).await?;
    listens.send_replace(true);
    shutdown.wait().await;
    // Data planes see that this replica is not ready before it takes no more streams, and another
    // leads by then.
    let resigned = async {
        if let Some(election) = election {
            election.resign().await;
        }
    };
    tokio::join!(tokio::time::sleep(settings.shutdown_delay), resigned);
    stop.set();
    serving.drain().await;
    // Last: while streams drain, replicas, health checks and metrics are still of use.
    end.set();
    while rest.join_next().await.is_some() {}
    Ok(())
}

/// Starts every pool, and shows it in the metrics.
fn start_pools(
    settings: &EppSettings,
    cluster: Option<&Cluster>,
    common: Common<'_>,
) -> anyhow::Result<Vec<RunningPool>> {
    let mut pools = Vec::new();
    for target in &settings.pools {
        let running = start(target, settings, cluster, common)?;
        let shown: Arc<dyn PoolView> = running.pool.clone();
        common.metrics.pools.add(&shown);
        pools.push(running);
    }
    Ok(pools)
}

/// The ext-proc ports, before they listen.
struct Edge<'a> {
    settings: &'a EppSettings,
    metrics: &'a Arc<EppMetrics>,
    health: &'a Health,
    /// Set when no stream is taken any more.
    stopped: Shutdown,
}

impl Edge<'_> {
    /// Listens on the port of each pool.
    async fn serve(
        self,
        pools: &[RunningPool],
        tls: Option<Arc<ServerConfig>>,
    ) -> anyhow::Result<Serving> {
        let Self { settings, metrics, health, stopped } = self;
        let plan = &settings.plan.plan;
        let mut serving = Serving { streams: JoinSet::new(), flows: Vec::new() };
        let renderer = crate::plan::renderer(plan)?.map(Arc::new);
        for running in pools {
            let listener = listen(running.target.listen, tls.as_ref()).await?;
            let (address, pool) = (listener.address()?, running.pool.name());
            tracing::info!(%address, pool, tls = tls.is_some(), "ext-proc listening");
            let mut director = director(running, settings, metrics, renderer.clone());
            // Queues are per pool: a full pool makes no other's requests wait.
            if plan.features.flow_control {
                let age_max = settings.scrape_interval + settings.staleness;
                let grace = flow::grace(&plan.detector, age_max);
                let (waits, flow) =
                    director.with_flow_control(&plan.flow_control, grace, metrics.clone())?;
                director = waits;
                serving.flows.push(flow);
            }
            let counted = settings.stream_metrics.then(|| metrics.streams.clone());
            let service = ExtProc::new(Arc::new(director), settings.ext_proc.clone(), counted);
            let drain = Drain { shutdown: stopped.clone(), limit: settings.drain_timeout };
            let health = health.of_pool(pool);
            serving.streams.spawn(ext_proc::serve(service, health, listener.incoming(), drain));
        }
        Ok(serving)
    }
}

/// The servers of all pools, with the queues behind them.
struct Serving {
    streams: JoinSet<()>,
    flows: Vec<Arc<Flow>>,
}

impl Serving {
    /// Refuses the requests that wait, and waits for the streams to end.
    async fn drain(mut self) {
        // Queues first: a waiting request holds its stream open.
        self.flows.iter().for_each(|flow| flow.close());
        while self.streams.join_next().await.is_some() {}
    }
}

async fn serve_health(
    settings: &EppSettings,
    health: &Health,
    ended: &Shutdown,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let listener = Listener::plain(bind(settings.health_listen).await?);
    tracing::info!(address = %listener.address()?, "health checks");
    let (health, ended) = (health.clone(), ended.clone());
    tasks.spawn(async move { report(health.serve(listener.incoming(), &ended).await) });
    Ok(())
}

async fn serve_metrics(
    settings: &EppSettings,
    shown: AdminContent,
    ended: &Shutdown,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let Some(address) = settings.metrics_listen else { return Ok(()) };
    let (tls, suites) = (settings.tls.metrics.as_ref(), &settings.tls.cipher_suites);
    let tls = certificate(tls, suites, ended, tasks)?;
    admin::serve_on(listen(address, tls.as_ref()).await?, shown, ended.clone())?;
    Ok(())
}

/// A pool's watch, scheduler and signals.
fn start(
    target: &PoolTarget,
    settings: &EppSettings,
    cluster: Option<&Cluster>,
    common: Common<'_>,
) -> anyhow::Result<RunningPool> {
    let watched = watch_pool(target, cluster)?;
    let plan = &settings.plan.plan;
    let sheds = !plan.features.flow_control;
    let mut scheduling = SchedulerSettings { sheds, ..SchedulerSettings::default() };
    // Pools share the plug-ins, and no pool gets as many requests in the life of a process.
    let at = settings.pools.iter().position(|pool| pool == target).unwrap_or_default();
    scheduling.tickets_above = (at as u64) << 48;
    scheduling.tier_weights = settings.tier_weights;
    scheduling.placement.block_size = settings.block_size;
    // A block of the index takes up to 20 bytes.
    scheduling.placement.index.max_bytes = settings.max_index_blocks.saturating_mul(20);
    scheduling.placement.index.max_predicted = settings.max_index_blocks;
    if let Some(KvCost { model, weights, sessions }) = plan.kv_cost {
        (scheduling.placement.cost, scheduling.placement.weights) = (model, weights);
        scheduling.placement.sessions = sessions;
    }
    // Until an engine's own event comes, it is taken to hold what it was just sent.
    scheduling.placement.early_prediction_ttl = Some(early_prediction(target, settings));
    let scheduler = Scheduler::new(metered(&plan.program, &common.metrics.plugins), scheduling);
    let pool = Pool::new(target.full_name(), watched.view(), scheduler, rand::random());
    let alike = settings.pools.iter().filter(|other| other.name == target.name).count();
    let pool = Arc::new(if alike > 1 { pool.by_whole_name() } else { pool });
    let signals = Signals::start(&pool, target, settings, common.signals)?;
    let mut tasks = JoinSet::new();
    let following = pool.clone();
    tasks.spawn(async move { pool::follow(following, |view| signals.follow(view)).await });
    Ok(RunningPool { pool, target: target.clone(), _watched: watched, _tasks: tasks })
}

fn watch_pool(target: &PoolTarget, cluster: Option<&Cluster>) -> anyhow::Result<PoolWatch> {
    let cluster = || cluster.context("the pool comes from Kubernetes, and there is no cluster");
    Ok(match &target.source {
        PoolSource::File { path, followed } => {
            file::follow(path, followed.then_some(file::POLL_DEFAULT))
        }
        PoolSource::Kubernetes { group } => {
            let pool =
                PoolRef { group: group.clone(), ..PoolRef::new(&target.namespace, &target.name) };
            cluster()?.watch(pool, None)
        }
        PoolSource::Selector { selector, ports } => {
            let spec = PoolSpec::standalone(selector, ports)?;
            cluster()?.watch(PoolRef::new(&target.namespace, &target.name), Some(spec))
        }
    })
}

/// Time for which an engine that publishes events counts as holding a prompt that was sent to it.
/// Its events cannot be compared with prompts that nobody tokenizes, and so predictions last
/// without a tokenizer.
fn early_prediction(target: &PoolTarget, settings: &EppSettings) -> Duration {
    let plan = &settings.plan.plan;
    if let Some(ttl) = plan.precise.as_ref().and_then(|precise| precise.speculative_ttl) {
        return ttl;
    }
    let exact = target.tokenizer != TokenizerSettings::default()
        || settings.agent_port.is_some()
        || matches!(plan.tokens, Some(Tokens::Model { .. }));
    match exact {
        true => Duration::from_secs(2),
        false => stator_placement::PlacementSettings::default().prediction_ttl,
    }
}

fn director(
    running: &RunningPool,
    settings: &EppSettings,
    metrics: &Arc<EppMetrics>,
    renderer: Option<Arc<Renderer>>,
) -> PoolDirector {
    let plan = &settings.plan.plan;
    let handler = &plan.program.handler;
    // Only handlers that split requests have decisions to count.
    let splits = handler.type_name.ends_with("disagg-profile-handler")
        || &*handler.type_name == "pd-profile-handler";
    let names = splits.then(|| (handler.name.to_string(), handler.type_name.to_string()));
    let (name, reporters) = (running.pool.name(), plan.reporters.clone());
    let observe = Observe::new(name, metrics.clone(), reporters, names);
    let choices = DirectorSettings {
        parsers: crate::plan::parsers(plan),
        fields: settings.fields.clone(),
        unknown_fields: settings.unknown_fields,
        refuse_unscreened: settings.refuse_unscreened,
        interest: settings.interest.max(match plan.response_path {
            ResponsePath::Nothing => Interest::Nothing,
            ResponsePath::Headers => Interest::Headers,
            ResponsePath::Body => Interest::Body,
        }),
        leaves_early: settings.leaves_early,
        scores: settings.scores,
        fallbacks: settings.fallbacks,
        token_ids: settings.forward_ids,
        in_flight: plan.in_flight,
        identities: plan.agent_identity.clone(),
        media: crate::plan::media(plan),
        renderer,
        verify_served: plan.verifies_served,
        pins: settings.pins,
        reads_text: !plan.program.producers.is_empty(),
    };
    PoolDirector::new(running.pool.clone(), choices, observe)
}

fn build() -> Build {
    let build_ref = format!("v{}", env!("CARGO_PKG_VERSION"));
    Build { commit: option_env!("STATOR_COMMIT").unwrap_or_default().into(), build_ref }
}

/// The cluster, where a pool or an option needs one.
async fn cluster(settings: &EppSettings) -> anyhow::Result<Option<Cluster>> {
    let needed = |target: &PoolTarget| !matches!(target.source, PoolSource::File { .. });
    if !settings.pools.iter().any(needed) && !settings.leader_election {
        return Ok(None);
    }
    let cluster = Cluster::connect(settings.kubeconfig.as_deref()).await?;
    Ok(Some(cluster.with_node_labels(settings.plan.plan.topology.clone())))
}

/// Takes part in the election of a leader, where there is one.
fn elect(settings: &EppSettings, cluster: Option<&Cluster>) -> Option<Election> {
    let (true, Some(cluster)) = (settings.leader_election, cluster) else { return None };
    let PoolTarget { namespace, name, .. } = &settings.pools[0];
    let identity =
        std::env::var("POD_NAME").unwrap_or_else(|_| format!("{:016x}", rand::random::<u64>()));
    Some(cluster.elector(namespace, name, &identity).start())
}

/// Asks the cluster who may read metrics. While it does not answer, nobody may.
fn gate(cluster: &Cluster) -> MetricsGate {
    let reviewer = Arc::new(Reviewer::new(cluster));
    Arc::new(move |token: Option<String>| {
        let reviewer = reviewer.clone();
        Box::pin(async move {
            let token = token.ok_or(StatusCode::UNAUTHORIZED)?;
            match reviewer.authorize(&token, "/metrics").await {
                Ok(ReadAccess::Granted) => Ok(()),
                Ok(ReadAccess::Denied) => Err(StatusCode::FORBIDDEN),
                Ok(ReadAccess::Unknown) => Err(StatusCode::UNAUTHORIZED),
                Err(error) => {
                    tracing::warn!(%error, "cannot ask who may read metrics");
                    Err(StatusCode::SERVICE_UNAVAILABLE)
                }
            }
        })
    })
}

/// TLS settings of a port, or `None` for plain text. Files to be followed are followed until
/// `ended`.
fn certificate(
    tls: Option<&tls::ServerSettings>,
    suites: &CipherSuites,
    ended: &Shutdown,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let Some(tls) = tls else { return Ok(None) };
    let (config, reload) = tls::server_config_with(tls, suites)?;
    if let Some(reload) = reload {
        tasks.spawn(reload.run(ended.clone()));
    }
    Ok(Some(config))
}

async fn listen(address: SocketAddr, tls: Option<&Arc<ServerConfig>>) -> anyhow::Result<Listener> {
    let listener = bind(address).await?;
    Ok(match tls {
        Some(config) => Listener::tls(listener, config.clone()),
        None => Listener::plain(listener),
    })
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

fn report(served: Result<(), tonic::transport::Error>) {
    if let Err(error) = served {
        tracing::error!(%error, "a server failed");
    }
}
