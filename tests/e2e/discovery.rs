//! Agents in a directory under the real binary, and agents in a real cluster and in a real etcd,
//! through the crate that both sides of discovery use: the objects and keys, the rights of the
//! manifests, and what outages may take away.

mod binaries;
mod directory;
mod etcd;
mod kubernetes;

use stator_discovery::{AgentChange, Agents, DiscoveryMetrics, DiscoverySource, Registration};
use stator_protos::discovery::{AgentRecord, ModelRecord, ProfileRecord, WorkerRecord};
use stator_protos::{Generation, WorkerId, WorkerRank};
use stator_runtime::Shutdown;
use stator_runtime::dial::Dial;
use stator_runtime::metrics::Metrics;
use stator_runtime::shutdown::Trigger;
use stator_tests::{DEADLINE, soon};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// An agent's record, with an identity that is larger than what floating point can hold.
fn record(agent: &str) -> AgentRecord {
    let worker = WorkerRank { worker: WorkerId(u64::MAX - 1), rank: 0 };
    AgentRecord {
        agent_id: agent.into(),
        endpoint: "http://127.0.0.1:7000".into(),
        serves_events: false,
        events_endpoint: "tcp://127.0.0.1:5557".into(),
        replay_endpoint: "tcp://127.0.0.1:5558".into(),
        model: ModelRecord { name: "m".into(), context_length: 64, block_size: 16, vocab_size: 10 },
        workers: vec![WorkerRecord { worker, generation: Generation(7), total_blocks: 9 }],
        accepting: true,
        profile: ProfileRecord { labels: vec!["gpu=h100".into()], ..ProfileRecord::default() },
        lease_ms: 0,
        lease_expires_unix_ms: 0,
    }
}

/// An agent that registers, and does nothing else.
struct Agent {
    record: watch::Sender<AgentRecord>,
    stop: Trigger,
    task: JoinHandle<()>,
}

impl Agent {
    fn start(registration: Registration, name: &str) -> Self {
        let (record, receiver) = watch::channel(record(name));
        let (stop, shutdown) = Shutdown::new();
        let task = tokio::spawn(registration.run(receiver, shutdown));
        Self { record, stop, task }
    }

    /// Ends in good order.
    async fn end(self) {
        self.stop.set();
        soon("the agent withdraws", self.task).await.unwrap();
    }

    /// Dies without a word.
    fn die(self) {
        self.task.abort();
    }
}

/// What a follower knows.
struct Followed {
    agents: Agents,
    metrics: Metrics,
    there: BTreeMap<String, Arc<AgentRecord>>,
}

impl Followed {
    async fn new(source: &DiscoverySource) -> Self {
        let (metrics, discovery) = (Metrics::default(), DiscoveryMetrics::default());
        metrics.register(|registry| discovery.register(registry));
        let (poll, dial) = (Duration::from_millis(20), Dial::default());
        let agents = Agents::follow(source, poll, &dial, discovery).await;
        Self { agents: agents.expect("it is configured"), metrics, there: BTreeMap::new() }
    }

    async fn next(&mut self) {
        for change in self.agents.next().await.changes {
            match change {
                AgentChange::Up(record) => drop(self.there.insert(record.agent_id.clone(), record)),
                AgentChange::Lapsed(record) => drop(self.there.remove(&record.agent_id)),
                AgentChange::Down(agent) => drop(self.there.remove(&agent)),
            }
        }
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let come = async {
            while !done(self) {
                self.next().await;
            }
        };
        let has_come = tokio::time::timeout(DEADLINE, come).await.is_ok();
        assert!(has_come, "{what}: after {DEADLINE:?} there are {:?}", self.there.keys());
    }

    /// Waits until exactly these agents are there.
    async fn until_there(&mut self, names: &[&str]) {
        self.until(&format!("{names:?} are there"), |known| known.there.keys().eq(names)).await;
    }

    /// Waits until what is known is old news, or is no longer.
    async fn until_stale(&mut self, stale: bool) {
        let what = if stale { "discovery is lost" } else { "discovery is back" };
        self.until(what, |known| known.is_stale() == stale).await;
    }

    fn is_stale(&self) -> bool {
        self.metrics.render().lines().any(|line| line == "discovery_stale 1")
    }
}
