//! Follows the KV events of endpoints whose engines have no agent, as
//! [`stator_engine_signals::events`] does it: vLLM's and SGLang's, over ZMQ.
//!
//! Not followed: engines that connect to a collector instead of listening, TensorRT-LLM (whose
//! events are drained by reading, so that only an agent may read them), and the ranks beyond the
//! first of an engine that has several behind one port.

use crate::roster::Roster;
use crate::{SignalMetrics, WorkerSink};
use parking_lot::Mutex;
use stator_engine_signals::events::{FollowSettings, Follower, NEWS_MAX, Source};
use stator_epp_scheduler::Endpoint;
use stator_fleet::subscribe::Subscription;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Where engines publish, and what is kept of it.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Port of rank 0's events, 5557 by default; rank r is at this plus r.
    pub port: u16,
    /// Port of rank 0's replays, if engines have one; rank r is at this plus r.
    pub replay_port: Option<u16>,
    /// What the topics of wanted messages begin with; everything by default.
    pub topic: String,
    /// Tokens per block of our index. Engines whose blocks have a multiple of this or divide it are
    /// followed, others are not.
    pub block_size: NonZeroU32,
    /// Blocks of one engine that are known at once; 4 Mi by default. Further ones are ignored.
    pub blocks_max: usize,
}

impl EngineSettings {
    /// The default settings for an index of such blocks.
    pub fn new(block_size: NonZeroU32) -> Self {
        Self {
            port: 5557,
            replay_port: None,
            topic: String::new(),
            block_size,
            blocks_max: 1 << 22,
        }
    }
}

/// Follows the events of engines in the background. Dropping it ends that.
pub struct EngineFeeds {
    settings: EngineSettings,
    sink: Arc<dyn WorkerSink>,
    metrics: SignalMetrics,
    roster: Mutex<Roster<Plan>>,
}

/// What a task needs to know of its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Another life of the pod is followed anew.
    uid: Arc<str>,
    subscription: Subscription,
    replay_endpoint: Option<String>,
}

impl std::fmt::Debug for EngineFeeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineFeeds").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl EngineFeeds {
    /// Follows nobody yet.
    pub fn new(
        settings: EngineSettings,
        sink: Arc<dyn WorkerSink>,
        metrics: SignalMetrics,
    ) -> Self {
        Self { settings, sink, metrics, roster: Mutex::default() }
    }

    /// Follows exactly these endpoints from now on. Must be called within a Tokio runtime.
    pub fn follow(&self, endpoints: &[Arc<Endpoint>]) {
        let wanted = endpoints.iter().map(|endpoint| (endpoint.worker, self.plan(endpoint)));
        let name = |endpoint: &Endpoint| format!("{}/{}", endpoint.namespace, endpoint.name).into();
        let names = endpoints.iter().map(|endpoint| (endpoint.worker, name(endpoint)));
        self.metrics.feeds.follow(names, NEWS_MAX);
        let mut roster = self.roster.lock();
        roster.update(wanted.collect(), |worker, plan| {
            let Plan { subscription, replay_endpoint, .. } = plan;
            let EngineSettings { block_size, blocks_max, .. } = self.settings;
            let settings = FollowSettings { block_size, blocks_max };
            let source = Source::Zmq { subscription, replay_endpoint };
            let (sink, counts) = (self.sink.clone(), self.metrics.feeds.of(worker));
            let follower = Follower::new(worker, source, settings, sink);
            follower.counted(self.metrics.follow.clone(), counts).run()
        });
        self.metrics.engines.set(roster.len() as i64);
    }

    fn plan(&self, endpoint: &Endpoint) -> Plan {
        let EngineSettings { port, replay_port, topic, .. } = &self.settings;
        let at = |port: u16| {
            let port = port.saturating_add(endpoint.worker.rank);
            format!("tcp://{}", SocketAddr::new(endpoint.address.ip(), port))
        };
        let subscription =
            Subscription { endpoint: at(*port), prefixes: vec![topic.clone()], silence: None };
        Plan { uid: endpoint.uid.clone(), subscription, replay_endpoint: replay_port.map(at) }
    }
}

#[cfg(test)]
mod tests;
