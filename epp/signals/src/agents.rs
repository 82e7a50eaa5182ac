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
use stator_events::KvSink;
use stator_fleet::{AgentClient, ClientSettings, FleetMetrics, Members, Records, follow_agent};
use stator_placement::Worker;
use stator_placement::profile::profile;
use stator_protos::discovery::{AgentRecord, ProfileRecord};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerRank};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Label of a pod whose value is the port of its agent.
pub const AGENT_PORT_LABEL: &str = "stator.dev/agent-port";

/// Longest wait for an agent to say who it is.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings for finding and following the agents of endpoints.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Port of the agents of pods without [`AGENT_PORT_LABEL`]; `None`: they have none.
    pub port: Option<u16>,
    /// Wait before a silent agent is asked again, 1 s by default.
    pub retry: Duration,
    /// Tokens per block of our index; an agent with other blocks is not followed.
    pub block_size: NonZeroU32,
    /// Connections to agents: over TLS where [`ClientSettings::dial`] says whom to trust.
    pub client: ClientSettings,
}

impl AgentSettings {
    /// The default settings for an index of such blocks.
    pub fn new(block_size: NonZeroU32) -> Self {
        let client = ClientSettings::default();
        Self { port: None, retry: Duration::from_secs(1), block_size, client }
    }

    /// Address of an endpoint's agent; `None` if it has none, or its label is no port.
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

/// Follows one endpoint's agent until dropped.
async fn follow(shared: Arc<Shared>, worker: WorkerRank, agent: SocketAddr) {
    shared.set_unfollowed(|unfollowed| unfollowed.remove(&worker));
    let endpoint = shared.settings.client.dial.endpoint(agent);
    let client = match AgentClient::connect(&endpoint, &shared.settings.client) {
        Ok(client) => Arc::new(client),
        Err(error) => {
            tracing::error!(%agent, %error, "not an address of an agent");
            return;
        }
    };
    let mut tries = tokio::time::interval(shared.settings.retry);
    tries.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pod = Pod { shared, worker, agent, client, known: None, feed: None };
    loop {
        beside(&mut pod.feed, tries.tick()).await;
        // The feed notices by itself if the agent is gone.
        let reason = pod.listen().await;
        pod.cannot_be_followed(&reason);
    }
}

/// An endpoint whose agent is followed.
struct Pod {
    shared: Arc<Shared>,
    worker: WorkerRank,
    agent: SocketAddr,
    client: Arc<AgentClient>,
    /// The agent, and which of its workers is the endpoint's: the others may come and go.
    known: Option<(String, WorkerRank)>,
    feed: Option<Feed>,
}

impl Pod {
    /// Obeys what the agent says of itself, until it is silent; returns why.
    async fn listen(&mut self) -> String {
        let first = tokio::time::timeout(DESCRIBE_TIMEOUT, first_record(&self.client));
        let (mut records, mut record) = match beside(&mut self.feed, first).await {
            Ok(Ok(first)) => first,
            Ok(Err(reason)) => return reason,
            Err(_) => return format!("no answer within {DESCRIBE_TIMEOUT:?}"),
        };
        loop {
            self.obey(record);
            record = match beside(&mut self.feed, records.next()).await {
                Ok(record) => record,
                Err(status) => return status.to_string(),
            };
        }
    }

    fn obey(&mut self, record: AgentRecord) {
        let record = match self.narrowed(record) {
            Ok(record) => record,
            Err(reason) => {
                if self.feed.take().is_some() {
                    // That takes it for gone, and its engine is there.
                    self.shared.load.accepting(self.worker, true);
                }
                return self.cannot_be_followed(&reason);
            }
        };
        self.shared.set_unfollowed(|unfollowed| unfollowed.remove(&self.worker));
        if let Some(feed) = self.feed.as_ref().filter(|feed| feed.fits(&record)) {
            feed.record.send_if_modified(|known| {
                let changed = *known != record;
                *known = record;
                changed
            });
            return;
        }
        // The old one first: its workers leave before they come again.
        drop(self.feed.take());
        if record.workers.is_empty() {
            // Nobody who could leave has come.
            self.shared.load.accepting(self.worker, false);
        }
        self.feed = Some(Feed::start(&self.shared, self.worker, self.client.clone(), record));
    }

    fn cannot_be_followed(&self, reason: &str) {
        self.shared.metrics.agents_failed.inc();
        let (worker, agent) = (self.worker, self.agent);
        let begins = self.feed.is_none()
            && self.shared.set_unfollowed(|unfollowed| unfollowed.insert(worker));
        if begins {
            tracing::warn!(%worker, %agent, reason, "an agent cannot be followed");
        } else {
            tracing::debug!(%worker, %agent, reason, "an agent cannot be followed");
        }
    }

    /// The agent's record as far as it concerns the endpoint, with addresses that are reached from
    /// here. It has no worker while the endpoint's is down.
    ///
    /// # Errors
    ///
    /// The reason for which the agent does not fit.
    fn narrowed(&mut self, mut record: AgentRecord) -> Result<AgentRecord, String> {
        let (found, ours) = (record.model.block_size, self.shared.settings.block_size.get());
        if found != ours {
            return Err(format!("its blocks have {found} tokens, ours {ours}"));
        }
        let place = usize::from(self.worker.rank);
        let known = self.known.as_ref().filter(|(agent_id, _)| *agent_id == record.agent_id);
        let theirs = match known {
            Some((_, known)) => record.workers.iter().find(|theirs| theirs.worker == *known),
            None => record.workers.get(place),
        };
        match theirs.copied() {
            Some(theirs) => {
                self.known = Some((record.agent_id.clone(), theirs.worker));
                record.workers = vec![theirs];
            }
            // Its engine is not there, or not any more.
            None if known.is_some() || record.workers.is_empty() => record.workers.clear(),
            None => {
                let found = record.workers.len();
                return Err(format!("it has {found} workers, none for port {place}"));
            }
        }
        for endpoint in [&mut record.events_endpoint, &mut record.replay_endpoint] {
            reached_at(endpoint, self.agent);
        }
        // Only discovery by directory has leases.
        record.lease_expires_unix_ms = 0;
        Ok(record)
    }
}

async fn first_record(client: &AgentClient) -> Result<(Records, AgentRecord), String> {
    let mut records = client.records().await.map_err(|status| status.to_string())?;
    let record = records.next().await.map_err(|status| status.to_string())?;
    Ok((records, record))
}

/// Waits for `other` while the feed goes on.
async fn beside<T>(feed: &mut Option<Feed>, other: impl Future<Output = T>) -> T {
    let Some(feed) = feed else { return other.await };
    tokio::select! {
        value = other => value,
        () = &mut feed.task => unreachable!("it ends with the sender of its record"),
    }
}

/// Puts the agent's address in the place of the host: an agent may know itself by another name.
fn reached_at(endpoint: &mut String, agent: SocketAddr) {
    let port = endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    if let Some(port) = port.and_then(|(_, port)| port.parse().ok()) {
        *endpoint = format!("tcp://{}", SocketAddr::new(agent.ip(), port));
    }
}

/// The task that follows an agent, by the description that the agent gave.
struct Feed {
    record: watch::Sender<AgentRecord>,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
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
        let task = Box::pin(follow_agent(sink, client, receiver, shared.fleet_metrics.clone()));
        Self { record, task }
    }

    /// Whether a new description is of the same sockets.
    fn fits(&self, record: &AgentRecord) -> bool {
        let known = self.record.borrow();
        known.agent_id == record.agent_id
            && known.serves_events == record.serves_events
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
        let equipment = equipment(&client.profile(), &worker, block_size);
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

    /// Seldom: nothing here depends on time, and no worker has to be asked for twice.
    fn refresh_interval(&self) -> Duration {
        Duration::from_secs(60)
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

/// Equipment of an agent's worker. `block_size` is the agent's, in tokens.
fn equipment(record: &ProfileRecord, worker: &Worker, block_size: u32) -> Equipment {
    let ProfileRecord { adapters, max_adapters, .. } = record;
    let serves = !adapters.is_empty() || *max_adapters > 0;
    let lora = || Lora { max: *max_adapters, running: adapters.clone(), waiting: Vec::new() };
    let cache = CacheConfig { block_size, blocks: worker.total_blocks };
    Equipment {
        lora: serves.then(lora),
        cache: (worker.total_blocks > 0).then_some(cache),
        worker: Some(worker.worker),
        profile: profile(record),
        lends_at: record.kv_transfer.as_deref().map(Arc::from),
    }
}

#[cfg(test)]
mod tests;
