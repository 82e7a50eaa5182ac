//! Follows the endpoints that have a stator agent beside their engine.
//!
//! An agent says who it is and which workers it has; from there on its events, snapshots and load
//! are followed as every part of a fleet follows them ([`stator_fleet::follow_agent`]). The
//! endpoint at a pod's n-th port is the agent's n-th worker. An agent that cannot be followed is
//! told of ([`AgentFeeds::unfollowed`]), so that its engine is heard in another way, and is asked
//! on.

use crate::roster::Roster;
use crate::{LoadSink, SignalMetrics, WorkerSink};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use stator_epp_scheduler::{CacheConfig, Endpoint, Equipment, Lora};
use stator_fleet::{AgentClient, ClientSettings, FleetMetrics, KvSink, Members, follow_agent};
use stator_placement::Worker;
use stator_protos::discovery::{AgentRecord, ProfileRecord};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Label of a pod whose value is the port of its agent.
pub const AGENT_PORT_LABEL: &str = "stator.dev/agent-port";

/// Longest wait for an agent to say who it is.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Which endpoints have an agent, and how it is followed.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Port of the agents of pods without [`AGENT_PORT_LABEL`]; `None`: they have none.
    pub port: Option<u16>,
    /// How often an agent is asked who it is, 1 s by default: lives and draining show there.
    pub poll: Duration,
    /// Tokens per block of our index; an agent with other blocks is not followed.
    pub block_size: NonZeroU32,
    /// Connections to agents: over TLS where [`ClientSettings::dial`] says whom to trust.
    pub client: ClientSettings,
}

impl AgentSettings {
    /// The default settings for an index of such blocks.
    pub fn new(block_size: NonZeroU32) -> Self {
        let client = ClientSettings::default();
        Self { port: None, poll: Duration::from_secs(1), block_size, client }
    }

    /// Where an endpoint's agent is; `None` if it has none, or its label is no port.
    pub fn agent(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let port = match endpoint.label(AGENT_PORT_LABEL) {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => self.port?,
        };
        Some(SocketAddr::new(endpoint.address.ip(), port))
    }
}

/// Follows agents in the background. Dropping it ends that.
pub struct AgentFeeds {
    shared: Arc<Shared>,
    roster: Mutex<Roster<Plan>>,
}

struct Shared {
    settings: AgentSettings,
    load: Arc<dyn LoadSink>,
    workers: Arc<dyn WorkerSink>,
    metrics: SignalMetrics,
    fleet_metrics: FleetMetrics,
    /// Endpoints whose agents cannot be followed.
    unfollowed: watch::Sender<FxHashSet<WorkerRank>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Another life of the pod is followed anew.
    uid: Arc<str>,
    agent: SocketAddr,
}

impl std::fmt::Debug for AgentFeeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentFeeds")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl AgentFeeds {
    /// Follows nobody yet. `fleet_metrics` count what the feeds do.
    pub fn new(
        settings: AgentSettings,
        load: Arc<dyn LoadSink>,
        workers: Arc<dyn WorkerSink>,
        metrics: (SignalMetrics, FleetMetrics),
    ) -> Self {
        let (metrics, fleet_metrics) = metrics;
        let unfollowed = watch::Sender::default();
        let shared = Shared { settings, load, workers, metrics, fleet_metrics, unfollowed };
        Self { shared: Arc::new(shared), roster: Mutex::default() }
    }

    /// Follows the agents of exactly these endpoints from now on; those without an agent are
    /// passed over. Must be called within a Tokio runtime.
    pub fn follow(&self, endpoints: &[Arc<Endpoint>]) {
        let mut wanted = FxHashMap::default();
        for endpoint in endpoints {
            if let Some(agent) = self.shared.settings.agent(endpoint) {
                wanted.insert(endpoint.worker, Plan { uid: endpoint.uid.clone(), agent });
            }
        }
        let mut roster = self.roster.lock();
        self.shared.set_unfollowed(|unfollowed| {
            let before = unfollowed.len();
            unfollowed.retain(|worker| wanted.contains_key(worker));
            unfollowed.len() < before
        });
        roster.update(wanted, |worker, plan| follow(self.shared.clone(), worker, plan.agent));
        self.shared.metrics.agents.set(roster.len() as i64);
    }

    /// The endpoints whose agents cannot be followed now: nobody answers there, or what answers
    /// does not fit our index. Their engines are to be heard in another way.
    pub fn unfollowed(&self) -> watch::Receiver<FxHashSet<WorkerRank>> {
        self.shared.unfollowed.subscribe()
    }
}

impl Shared {
    /// Changes which agents are not followed; `change` says whether it did.
    fn set_unfollowed(&self, change: impl FnOnce(&mut FxHashSet<WorkerRank>) -> bool) -> bool {
        self.unfollowed.send_if_modified(|unfollowed| {
            let changed = change(unfollowed);
            self.metrics.agents_unfollowed.set(unfollowed.len() as i64);
            changed
        })
    }
}

/// Why an agent is not followed.
enum Fault {
    /// It does not say who it is.
    Silent(String),
    /// What it says does not fit.
    Unfit(String),
}

/// Follows one endpoint's agent until dropped.
async fn follow(shared: Arc<Shared>, worker: WorkerRank, agent: SocketAddr) {
    let settings = &shared.settings;
    shared.set_unfollowed(|unfollowed| unfollowed.remove(&worker));
    let endpoint = settings.client.dial.endpoint(agent);
    let client = match AgentClient::connect(&endpoint, &settings.client) {
        Ok(client) => Arc::new(client),
        Err(error) => {
            tracing::error!(%agent, %error, "not an address of an agent");
            return;
        }
    };
    let mut feed: Option<Feed> = None;
    let mut polls = tokio::time::interval(settings.poll);
    polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        polls.tick().await;
        match describe(&client, &shared, worker, agent).await {
            Ok(record) => {
                shared.set_unfollowed(|unfollowed| unfollowed.remove(&worker));
                if let Some(feed) = feed.as_ref().filter(|feed| feed.fits(&record)) {
                    feed.record.send_if_modified(|known| {
                        let changed = *known != record;
                        *known = record;
                        changed
                    });
                } else {
                    // The old one first: its workers leave before they come again.
                    drop(feed.take());
                    feed = Some(Feed::start(&shared, worker, client.clone(), record));
                }
            }
            Err(fault) => {
                shared.metrics.agents_failed.inc();
                let reason = match fault {
                    // The feed notices by itself if the agent is gone.
                    Fault::Silent(reason) => reason,
                    Fault::Unfit(reason) => {
                        if feed.take().is_some() {
                            // That takes it for gone, and its engine is there.
                            shared.load.accepting(worker, true);
                        }
                        reason
                    }
                };
                let begins =
                    feed.is_none() && shared.set_unfollowed(|unfollowed| unfollowed.insert(worker));
                if begins {
                    tracing::warn!(%worker, %agent, reason, "an agent cannot be followed");
                } else {
                    tracing::debug!(%worker, %agent, reason, "an agent cannot be followed");
                }
            }
        }
    }
}

/// The agent's record as far as it concerns the endpoint `worker`, and with addresses that are
/// reached from here.
async fn describe(
    client: &AgentClient,
    shared: &Shared,
    worker: WorkerRank,
    agent: SocketAddr,
) -> Result<AgentRecord, Fault> {
    let mut record = match tokio::time::timeout(DESCRIBE_TIMEOUT, client.describe()).await {
        Ok(record) => record.map_err(|status| Fault::Silent(status.to_string()))?,
        Err(_) => return Err(Fault::Silent(format!("no answer within {DESCRIBE_TIMEOUT:?}"))),
    };
    let (found, ours) = (record.model.block_size, shared.settings.block_size.get());
    if found != ours {
        return Err(Fault::Unfit(format!("its blocks have {found} tokens, ours {ours}")));
    }
    let place = usize::from(worker.rank);
    let Some(theirs) = record.workers.get(place).copied() else {
        let found = record.workers.len();
        return Err(Fault::Unfit(format!("it has {found} workers, none for port {place}")));
    };
    record.workers = vec![theirs];
    for endpoint in [&mut record.events_endpoint, &mut record.replay_endpoint] {
        reached_at(endpoint, agent);
    }
    // Only discovery by directory has leases.
    record.lease_expires_unix_ms = 0;
    Ok(record)
}

/// Puts the agent's address in the place of the host: an agent may know itself by another name.
fn reached_at(endpoint: &mut String, agent: SocketAddr) {
    let port = endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    if let Some(port) = port.and_then(|(_, port)| port.parse().ok()) {
        *endpoint = format!("tcp://{}", SocketAddr::new(agent.ip(), port));
    }
}

/// The task that follows an agent as it described itself.
struct Feed {
    record: watch::Sender<AgentRecord>,
    _task: JoinSet<()>,
}

impl Feed {
    fn start(
        shared: &Arc<Shared>,
        worker: WorkerRank,
        client: Arc<AgentClient>,
        record: AgentRecord,
    ) -> Self {
        let sink = Arc::new(EndpointSink { shared: shared.clone(), worker });
        let (record, receiver) = watch::channel(record);
        let mut task = JoinSet::new();
        task.spawn(follow_agent(sink, client, receiver, shared.fleet_metrics.clone()));
        Self { record, _task: task }
    }

    /// Whether a new description is of the same sockets.
    fn fits(&self, record: &AgentRecord) -> bool {
        let known = self.record.borrow();
        known.agent_id == record.agent_id
            && known.events_endpoint == record.events_endpoint
            && known.replay_endpoint == record.replay_endpoint
    }
}

/// Tells the picker of its endpoint what an agent tells of its worker.
struct EndpointSink {
    shared: Arc<Shared>,
    worker: WorkerRank,
}

impl Members for EndpointSink {
    fn join(&self, worker: Worker, client: &Arc<AgentClient>) -> bool {
        let block_size = self.shared.settings.block_size.get();
        let equipment = equipment(&client.profile(), worker.total_blocks, block_size);
        self.shared.load.agent_equipment(self.worker, equipment);
        self.shared.workers.life(self.worker, worker.generation);
        self.shared.load.accepting(self.worker, worker.accepting);
        true
    }

    fn leave(&self, _: WorkerRank, _: &Arc<AgentClient>) {
        self.shared.load.accepting(self.worker, false);
        self.shared.load.load_unknown(self.worker);
        self.shared.workers.unknown(self.worker);
    }

    fn refresh(&self, _: &mut dyn Iterator<Item = WorkerRank>) {}

    /// A worker that another agent has is asked for again no more often.
    fn refresh_interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn load(&self, _: WorkerRank, generation: Generation, load: Load) {
        self.shared.load.agent_load(self.worker, generation, load);
    }
}

impl KvSink for EndpointSink {
    fn apply(&self, _: WorkerRank, generation: Generation, events: &[KvEvent]) {
        self.shared.workers.apply(self.worker, generation, events);
    }

    fn replace(&self, _: WorkerRank, generation: Generation, blocks: Vec<(SequenceHash, Medium)>) {
        self.shared.workers.replace(self.worker, generation, blocks);
    }

    fn unknown(&self, _: WorkerRank) {
        self.shared.workers.unknown(self.worker);
    }
}

/// What a worker of an agent has. `block_size` is the agent's, in tokens.
fn equipment(profile: &ProfileRecord, total_blocks: u32, block_size: u32) -> Equipment {
    let ProfileRecord { adapters, max_adapters, .. } = profile;
    let serves = !adapters.is_empty() || *max_adapters > 0;
    let lora = || Lora { max: *max_adapters, running: adapters.clone(), waiting: Vec::new() };
    let cache = CacheConfig { block_size, blocks: total_blocks };
    Equipment { lora: serves.then(lora), cache: (total_blocks > 0).then_some(cache) }
}

#[cfg(test)]
mod tests;
