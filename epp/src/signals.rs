//! Signals of a pool's endpoints, wired to the pool.

use crate::config::{EppSettings, PoolTarget};
use crate::pool::Pool;
use parking_lot::Mutex;
use stator_epp_plugins::settings::PodFilter;
use stator_epp_pool::PoolView;
use stator_epp_scheduler::Endpoint;
use stator_epp_signals::agents::{AgentFeeds, AgentSettings};
use stator_epp_signals::engine::{EngineFeeds, EngineSettings};
use stator_epp_signals::scrape::Scraper;
use stator_epp_signals::tokenizer::{AgentSource, HubSource, Provision, TokenizerSource};
use stator_epp_signals::{LoadSink, SignalMetrics, WorkerSink};
use stator_fleet::{ClientSettings, FleetMetrics};
use stator_http::TlsOptions;
use stator_runtime::Lane;
use stator_runtime::metrics::Metrics;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time between two looks at a tokenizer's source.
const TOKENIZER_POLL: Duration = Duration::from_secs(5);

/// Followers of all signals of a pool's endpoints. Dropping the value ends them.
pub(crate) struct Signals {
    followers: Arc<Followers>,
    _tasks: JoinSet<()>,
}

/// The followers of each kind of signal.
struct Followers {
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    agents_of: AgentSettings,
    scraper: Scraper,
    engines: Option<Publishers>,
    agents: AgentFeeds,
    /// Addresses of agents, for readers of the model's files.
    addresses: watch::Sender<Vec<SocketAddr>>,
}

/// Parts of the process that the signals of all pools share.
#[derive(Clone, Copy)]
pub(crate) struct SignalHost<'a> {
    /// Registry of the process's metrics.
    pub registry: &'a Metrics,
    /// Thread that reads metrics pages.
    pub scraping: &'a Lane,
}

impl Signals {
    /// Starts to listen for a pool; nobody is listened to before [`Signals::follow`].
    ///
    /// # Errors
    ///
    /// When the settings of metrics pages cannot be used, for example because of certificates.
    pub(crate) fn start(
        pool: &Arc<Pool>,
        target: &PoolTarget,
        settings: &EppSettings,
        host: SignalHost<'_>,
    ) -> anyhow::Result<Self> {
        let (metrics, fleet) = (SignalMetrics::default(), FleetMetrics::default());
        host.registry.register(|registry| {
            let labels = [("pool".into(), pool.name().to_owned().into())];
            let registry = registry.sub_registry_with_labels(labels.into_iter());
            metrics.register(registry);
            fleet.register(registry);
        });
        pool.show(metrics.clone());
        let loads: Arc<dyn LoadSink> = pool.clone();
        let workers: Arc<dyn WorkerSink> = pool.clone();
        let (scrape, mappings) = crate::plan::scraping(settings)?;
        let engines = settings.kv_events.as_ref().map(|events| {
            let settings = EngineSettings {
                port: events.ports.map(|ports| ports.live),
                replay_port: events.ports.and_then(|ports| ports.replay),
                bind: events.bind.clone(),
                topic: events.topic.clone(),
                pages: Some((scrape.clone(), mappings.clone())),
                ..EngineSettings::new(settings.block_size)
            };
            let feeds = EngineFeeds::new(settings, workers.clone(), metrics.clone());
            Publishers { pods: events.pods.clone(), feeds }
        });
        let client = ClientSettings { dial: settings.dial.clone(), ..ClientSettings::default() };
        let agents_of = AgentSettings {
            port: settings.agent_port,
            client: client.clone(),
            ..AgentSettings::new(settings.block_size)
        };
        let scraper = Scraper::new(scrape, mappings, loads.clone(), metrics.clone());
        // On a thread of its own: no pick waits while a page is read.
        let scraper = scraper.on(host.scraping.handle());
        let agents = AgentFeeds::new(agents_of.clone(), loads, workers, (metrics.clone(), fleet));
        let addresses = watch::Sender::new(Vec::new());
        let mut tasks = JoinSet::new();
        let model = target.tokenizer.model.as_deref();
        let model = model.or_else(|| crate::plan::tokenizer_model(&settings.plan.plan));
        let agents_have = AgentSource { addresses: addresses.subscribe(), client };
        let hub = model.map(|model| HubSource {
            cache: hub_cache(),
            repo: model.to_owned(),
            revision: "main".into(),
            endpoint: settings.hub_endpoint.clone(),
            tls: TlsOptions::default(),
        });
        let source = source(target.tokenizer.path.as_deref(), hub, agents_have);
        let name = model.unwrap_or(pool.name());
        tasks.spawn(tokenize(name.to_owned(), source, metrics, pool.clone()));
        let mut unfollowed = agents.unfollowed();
        let endpoints = Mutex::default();
        let followers =
            Arc::new(Followers { endpoints, agents_of, scraper, engines, agents, addresses });
        let follower = followers.clone();
        tasks.spawn(async move {
            while unfollowed.changed().await.is_ok() {
                follower.follow(None);
            }
        });
        Ok(Self { followers, _tasks: tasks })
    }

    /// Listens to exactly the endpoints of `view`: to the agents of those that have one, to
    /// metrics pages and events of the others, and of those whose agents cannot be followed.
    pub(crate) fn follow(&self, view: &PoolView) {
        self.followers.follow(Some(&view.endpoints));
    }
}

/// Engines that publish what they hold, among those without an agent.
struct Publishers {
    pods: PodFilter,
    feeds: EngineFeeds,
}

impl Publishers {
    fn follow(&self, endpoints: &[Arc<Endpoint>]) {
        let meant = endpoints.iter().filter(|endpoint| self.pods.selects(endpoint));
        self.feeds.follow(&meant.cloned().collect::<Vec<_>>());
    }
}

impl Followers {
    /// Listens to these endpoints; `None` is those from before, as their agents are now.
    fn follow(&self, wanted: Option<&[Arc<Endpoint>]>) {
        let mut endpoints = self.endpoints.lock();
        if let Some(wanted) = wanted {
            endpoints.clear();
            endpoints.extend_from_slice(wanted);
        }
        let has_agent = |endpoint: &&Arc<Endpoint>| self.agents_of.agent(endpoint).is_some();
        let with: Vec<_> = endpoints.iter().filter(has_agent).cloned().collect();
        self.agents.follow(&with);
        let unfollowed = self.agents.unfollowed();
        let unfollowed = unfollowed.borrow();
        let alone = |endpoint: &&Arc<Endpoint>| {
            !has_agent(endpoint) || unfollowed.contains(&endpoint.worker)
        };
        let without: Vec<_> = endpoints.iter().filter(alone).cloned().collect();
        drop(unfollowed);
        self.scraper.follow(&without);
        if let Some(engines) = &self.engines {
            engines.follow(&without);
        }
        let addresses = with.iter().filter_map(|endpoint| self.agents_of.agent(endpoint)).collect();
        self.addresses.send_if_modified(|known| std::mem::replace(known, addresses) != *known);
    }
}

/// Source of the tokenizer: a folder before a hub before the agents.
fn source(folder: Option<&Path>, hub: Option<HubSource>, agents: AgentSource) -> TokenizerSource {
    match (folder, hub) {
        (Some(folder), _) => TokenizerSource::Folder(folder.to_owned()),
        (None, Some(hub)) => TokenizerSource::Hub(hub),
        (None, None) => TokenizerSource::Agents(agents),
    }
}

/// The hub's cache on this machine, where its own tools keep it.
fn hub_cache() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = set("HF_HOME").or_else(|| Some(set("HOME")?.join(".cache/huggingface")));
    home.unwrap_or_else(|| "/".into()).join("hub")
}

/// Gives a pool its tokenizer as it comes and changes.
async fn tokenize(name: String, source: TokenizerSource, metrics: SignalMetrics, pool: Arc<Pool>) {
    if let TokenizerSource::Agents(agents) = &source {
        // Without agents prompts are compared as text, which is no failure.
        let mut addresses = agents.addresses.clone();
        if addresses.wait_for(|known| !known.is_empty()).await.is_err() {
            return;
        }
    }
    let provision = Provision::start(&name, source, TOKENIZER_POLL, metrics);
    let mut state = provision.state();
    loop {
        let model = state.borrow_and_update().model().cloned();
        pool.set_tokenizer(model);
        if state.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "signals_tests.rs"]
mod tests;
