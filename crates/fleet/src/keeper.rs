//! The owner of what follows the fleet: which agents and models are there, and who tells of them.

use crate::agent::AgentTask;
use crate::client::{AgentClient, LINK_WAIT};
use crate::doubts::{Doubts, Verdict};
use crate::fleet_event::FleetEvent;
use crate::metrics::FleetMetrics;
use crate::pools::Pools;
use crate::settings::FleetSettings;
use stator_discovery::{AgentChange, Agents, Update};
use stator_protos::discovery::{AgentRecord, ModelRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Wait after a failed attempt to get a model's files.
const FILES_BACKOFF: Duration = Duration::from_millis(200);
/// Wait after a failed attempt to begin to look for agents.
const DISCOVERY_RETRY: Duration = Duration::from_secs(1);
/// Longest wait at the start for agents that were found to tell their models.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks for models to forget.
const UPKEEP_PAUSE: Duration = Duration::from_secs(1);

/// Owner of the tasks that follow agents.
pub(super) struct Keeper<P: Pools> {
    settings: FleetSettings,
    agents: BTreeMap<String, Agent>,
    /// Agents that contradict others; they are met when one of those leaves.
    refused: BTreeMap<String, AgentRecord>,
    /// Agents for which discovery does not vouch any more.
    doubts: Doubts,
    models: BTreeMap<String, Model<P::Pool>>,
    start: Start,
    pools: Arc<P>,
    events: mpsc::Sender<FleetEvent<P::Pool>>,
    metrics: FleetMetrics,
}

struct Agent {
    record: watch::Sender<AgentRecord>,
    client: Arc<AgentClient>,
    /// Following the agent, and announcing its model; aborted with the agent.
    _tasks: JoinSet<()>,
}

impl Agent {
    /// Whether nobody but the agent itself says that it is there.
    fn set_suspect(&self, suspect: bool) {
        if self.client.set_suspect(suspect) {
            // So that its task tells the pool.
            self.record.send_modify(|_| ());
        }
    }
}

/// A model, kept for a while when its last agent leaves: its requests wait for a worker, and are not
/// told that it never was.
struct Model<Pool> {
    record: ModelRecord,
    pool: Arc<Pool>,
    announced: Arc<Announced>,
    /// Since when it has no agent.
    vacant_since: Option<Instant>,
    /// Maintains the pool for as long as the model is known.
    _upkeep: JoinSet<()>,
}

/// Whether a model was announced: once, by the first of its agents that answers.
#[derive(Debug, Default)]
struct Announced {
    once: OnceCell<()>,
    done: watch::Sender<bool>,
}

/// Knowledge of the fleet while the process starts.
#[derive(Default)]
struct Start {
    /// The time at which the first agent was found; `None` before.
    found: Option<Instant>,
    /// Whether discovery has told of all agents.
    looked: bool,
    settled: bool,
    /// Waits for models to be announced.
    settling: JoinSet<()>,
}

impl<P: Pools> Keeper<P> {
    /// A keeper that follows nobody yet.
    pub(super) fn new(
        settings: FleetSettings,
        metrics: FleetMetrics,
        pools: P,
        events: mpsc::Sender<FleetEvent<P::Pool>>,
    ) -> Self {
        Self {
            agents: BTreeMap::new(),
            refused: BTreeMap::new(),
            models: BTreeMap::new(),
            start: Start::default(),
            doubts: Doubts::new(settings.client.clone()),
            pools: Arc::new(pools),
            events,
            metrics,
            settings,
        }
    }

    /// Follows the fleet for ever.
    pub(super) async fn run(mut self) {
        let mut agents = self.agents().await;
        let (sender, mut updates) = mpsc::channel(1);
        // A task of its own, because a look must not be broken off.
        let mut looking = JoinSet::new();
        looking.spawn(async move { while sender.send(agents.next().await).await.is_ok() {} });
        let mut upkeep = tokio::time::interval(UPKEEP_PAUSE);
        upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(update) = updates.recv() => self.update(update),
                verdict = self.doubts.next() => self.judge(verdict),
                now = upkeep.tick() => {
                    if self.start.found.is_some_and(|found| now - found >= SETTLE_MAX) {
                        self.settle();
                    }
                    self.forget(now).await;
                }
            }
            self.count();
            if self.start.looked && !self.doubts.are_pending() {
                self.settle();
            }
        }
    }

    fn update(&mut self, update: Update) {
        let Update { changes, malformed, looked } = update;
        for (agent, fault) in malformed {
            self.metrics.records_refused.inc();
            tracing::warn!(agent, fault, "a discovery record is malformed");
        }
        for change in changes {
            self.change(change);
        }
        self.start.looked |= looked;
        if self.start.found.is_none() && (looked || !self.agents.is_empty()) {
            self.start.found = Some(Instant::now());
        }
    }

    /// Says that the fleet is known, once the models found so far are announced.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.start.settled, true) {
            return;
        }
        let models: Vec<_> = self.models.values().map(|model| model.announced.clone()).collect();
        let events = self.events.clone();
        self.start.settling.spawn(async move {
            let all = async {
                for model in models {
                    // Fails only where the model is forgotten meanwhile.
                    let _ = model.done.subscribe().wait_for(|done| *done).await;
                }
            };
            if tokio::time::timeout(SETTLE_MAX, all).await.is_err() {
                tracing::warn!(waited = ?SETTLE_MAX, "not every agent has told its model");
            }
            // A receiver that is gone needs no models.
            let _ = events.send(FleetEvent::Settled).await;
        });
    }

    /// Forgets the models that have had no agent for too long.
    async fn forget(&mut self, now: Instant) {
        let served: BTreeSet<String> =
            self.agents.values().map(|agent| agent.record.borrow().model.name.clone()).collect();
        let mut forgotten = Vec::new();
        for (name, model) in &mut self.models {
            model.vacant_since = match served.contains(name) {
                true => None,
                false => model.vacant_since.or(Some(now)),
            };
            if model.vacant_since.is_some_and(|since| now - since >= self.settings.model_linger) {
                forgotten.push(name.clone());
            }
        }
        for model in forgotten.iter().filter_map(|name| self.models.remove(name)) {
            tracing::info!(model = model.record.name, "a model is gone with its workers");
            self.pools.close(&model.pool);
            // A receiver that is gone needs no models.
            let _ = self.events.send(FleetEvent::ModelDown { pool: model.pool }).await;
        }
    }

    fn count(&self) {
        let suspects = self.agents.values().filter(|agent| agent.client.is_suspect()).count();
        self.metrics.agents.set(self.agents.len() as i64);
        self.metrics.agents_suspect.set(suspects as i64);
        self.metrics.discovery.set_unrenewed(2 * suspects > self.agents.len());
    }

    /// Begins to follow. What a back-end's configuration names may come later: files of a secret,
    /// for example.
    async fn agents(&self) -> Agents {
        let FleetSettings { discovery, poll, client, .. } = &self.settings;
        loop {
            let metrics = self.metrics.discovery.clone();
            match Agents::follow(discovery, *poll, &client.dial, metrics).await {
                Ok(agents) => return agents,
                Err(error) => tracing::error!(%error, "cannot look for agents"),
            }
            tokio::time::sleep(DISCOVERY_RETRY).await;
        }
    }

    fn change(&mut self, change: AgentChange) {
        match change {
            AgentChange::Down(agent) => self.leave(&agent),
            AgentChange::Lapsed(record) => self.doubt(Arc::unwrap_or_clone(record)),
            AgentChange::Up(record) => {
                self.doubts.settle(&record.agent_id);
                self.up(Arc::unwrap_or_clone(record), false);
            }
        }
    }

    fn judge(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Lives(record) => {
                let agent = record.agent_id.clone();
                self.up(record.clone(), true);
                if let Some(agent) = self.agents.get(&agent) {
                    self.doubts.watch(record, agent.client.clone());
                }
            }
            Verdict::Silent(record) => {
                self.leave(&record.agent_id);
                self.doubts.ask(record);
            }
            Verdict::Forgotten => {}
        }
    }

    /// Discovery does not vouch for an agent any more: the agent itself is asked.
    fn doubt(&mut self, record: AgentRecord) {
        self.refused.remove(&record.agent_id);
        let Some(agent) = self.agents.get(&record.agent_id) else {
            return self.doubts.ask(record);
        };
        tracing::debug!(agent = record.agent_id, "discovery vouches for an agent no more");
        agent.set_suspect(true);
        self.doubts.watch(record, agent.client.clone());
    }

    fn leave(&mut self, agent: &str) {
        self.doubts.settle(agent);
        if self.agents.remove(agent).is_some() {
            tracing::info!(agent, "agent left");
        }
        self.refused.remove(agent);
        for record in std::mem::take(&mut self.refused).into_values() {
            self.meet(record);
        }
    }

    fn up(&mut self, record: AgentRecord, suspect: bool) {
        let name = record.agent_id.clone();
        match self.agents.get(&name) {
            Some(agent) if same_place(&agent.record.borrow(), &record) => {
                agent.record.send_replace(record);
            }
            known => {
                if known.is_some() {
                    // Its successor is met anew, with connections of its own.
                    self.agents.remove(&name);
                }
                self.meet(record);
            }
        }
        if let Some(agent) = self.agents.get(&name) {
            agent.set_suspect(suspect);
        }
    }

    fn meet(&mut self, record: AgentRecord) {
        self.refused.remove(&record.agent_id);
        let Some((pool, announced)) = self.model(&record) else {
            self.metrics.records_refused.inc();
            tracing::warn!(
                agent = record.agent_id,
                model = record.model.name,
                "agent refused: others serve a model of this name with another description"
            );
            self.refused.insert(record.agent_id.clone(), record);
            return;
        };
        let client = match AgentClient::connect(&record.endpoint, &self.settings.client) {
            Ok(client) => Arc::new(client),
            Err(error) => {
                self.metrics.records_refused.inc();
                let (agent, endpoint) = (&record.agent_id, &record.endpoint);
                tracing::warn!(agent, endpoint, %error, "agent refused: it cannot be reached");
                return;
            }
        };
        tracing::info!(
            agent = record.agent_id,
            endpoint = record.endpoint,
            workers = record.workers.len(),
            "agent found"
        );
        // The task of the agent hears of later records here; dropping the agent ends the task.
        let (sender, receiver) = watch::channel(record.clone());
        let mut tasks = JoinSet::new();
        let task = AgentTask::new(pool.clone(), client.clone(), receiver, self.metrics.clone());
        tasks.spawn(task.run());
        if !*announced.done.borrow() {
            let announcement = Announcement {
                model: record.model.name.clone(),
                pool,
                announced,
                pools: self.pools.clone(),
                events: self.events.clone(),
            };
            tasks.spawn(announcement.make(client.clone()));
        }
        self.agents.insert(record.agent_id, Agent { record: sender, client, _tasks: tasks });
    }

    /// The pool for an agent's model. `None` when others serve a different model by its name.
    fn model(&mut self, record: &AgentRecord) -> Option<(Arc<P::Pool>, Arc<Announced>)> {
        let name = &record.model.name;
        let fits = |model: &&Model<P::Pool>| model.record == record.model;
        if let Some(model) = self.models.get(name).filter(fits) {
            return Some((model.pool.clone(), model.announced.clone()));
        }
        if self.agents.values().any(|agent| agent.record.borrow().model.name == *name) {
            return None;
        }
        let pool = self.pools.open(&record.model)?;
        let announced = Arc::new(Announced::default());
        let mut upkeep = JoinSet::new();
        upkeep.spawn(self.pools.maintain(pool.clone()));
        let model = Model {
            record: record.model.clone(),
            pool: pool.clone(),
            announced: announced.clone(),
            vacant_since: None,
            _upkeep: upkeep,
        };
        if let Some(former) = self.models.insert(name.clone(), model) {
            // No worker will come for whoever waits there.
            self.pools.close(&former.pool);
        }
        Some((pool, announced))
    }
}

/// Whether a record describes the same process at the same place.
fn same_place(a: &AgentRecord, b: &AgentRecord) -> bool {
    let place = |record: &AgentRecord| {
        let AgentRecord { endpoint, events_endpoint, replay_endpoint, model, .. } = record.clone();
        (endpoint, record.serves_events, events_endpoint, replay_endpoint, model)
    };
    place(a) == place(b)
}

/// Announces a model to whoever serves it, once.
struct Announcement<P: Pools> {
    model: String,
    pool: Arc<P::Pool>,
    announced: Arc<Announced>,
    pools: Arc<P>,
    events: mpsc::Sender<FleetEvent<P::Pool>>,
}

impl<P: Pools> Announcement<P> {
    /// Gets the model's files from an agent, whichever of them is first, and sends the event.
    async fn make(self, client: Arc<AgentClient>) {
        let name = &self.model;
        loop {
            let attempt = self.announced.once.get_or_try_init(|| self.attempt(&client));
            match attempt.await {
                Ok(()) => {
                    self.announced.done.send_replace(true);
                    return;
                }
                Err(status) => {
                    tracing::warn!(model = name, %status, "cannot get the model's files");
                }
            }
            tokio::time::sleep(FILES_BACKOFF).await;
        }
    }

    async fn attempt(&self, client: &AgentClient) -> Result<(), tonic::Status> {
        let files = client.model_files(&self.model).await?;
        // The receiver sends a new model requests at once. The agent answers, so its link is about to
        // be up; if it is not, others' may be.
        let mut links = client.links_up();
        let _ = tokio::time::timeout(LINK_WAIT, links.wait_for(|up| *up > 0)).await;
        self.pools.ready().await;
        // A receiver that is gone needs no models.
        let _ = self.events.send(FleetEvent::ModelUp { pool: self.pool.clone(), files }).await;
        Ok(())
    }
}
