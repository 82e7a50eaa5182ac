//! Follows the KV events of endpoints whose engines have no agent, as
//! [`stator_engine_signals::events`] does it: vLLM's and SGLang's, over ZMQ.
//!
//! Not followed: TensorRT-LLM (whose events are drained by reading, so that only an agent may read
//! them), and the ranks beyond the first of an engine that has several behind one port.

mod collector;

use crate::roster::Roster;
use crate::{SignalMetrics, WorkerSink};
use collector::Collector;
use parking_lot::Mutex;
use stator_engine_signals::events::{FollowSettings, Follower, NEWS_MAX, Source};
use stator_epp_scheduler::Endpoint;
use stator_fleet::subscribe::{self, Subscription};
use stator_protos::WorkerRank;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Where engines publish, and what is kept of it.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Port of rank 0's events, 5557 by default; rank r is at this plus r. `None`: engines are
    /// not connected to.
    pub port: Option<u16>,
    /// Where engines connect to, `tcp://address:port`; nowhere by default.
    pub bind: Option<String>,
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
            port: Some(5557),
            bind: None,
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
    /// Hears those that connect.
    collector: Option<Collector>,
    roster: Mutex<Roster<Plan>>,
}

/// What a task needs to know of its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Another life of the pod is followed anew.
    uid: Arc<str>,
    /// `None` where the engine is not connected to.
    subscription: Option<Subscription>,
    replay_endpoint: Option<String>,
}

impl std::fmt::Debug for EngineFeeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineFeeds").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl EngineFeeds {
    /// Follows nobody yet. Where engines are to connect, must be called within a Tokio runtime.
    pub fn new(
        settings: EngineSettings,
        sink: Arc<dyn WorkerSink>,
        metrics: SignalMetrics,
    ) -> Self {
        let bind = settings.bind.clone();
        let collector = bind.map(|endpoint| Collector::start(endpoint, settings.topic.clone()));
        Self { settings, sink, metrics, collector, roster: Mutex::default() }
    }

    /// Follows exactly these endpoints from now on. Must be called within a Tokio runtime.
    pub fn follow(&self, endpoints: &[Arc<Endpoint>]) {
        let wanted = endpoints.iter().map(|endpoint| (endpoint.worker, self.plan(endpoint)));
        let name = |endpoint: &Endpoint| format!("{}/{}", endpoint.namespace, endpoint.name).into();
        let names = endpoints.iter().map(|endpoint| (endpoint.worker, name(endpoint)));
        self.metrics.feeds.follow(names, NEWS_MAX);
        if let Some(collector) = &self.collector {
            collector.follow(endpoints);
        }
        let mut roster = self.roster.lock();
        roster.update(wanted.collect(), |worker, plan| {
            let (source, subscriber) = self.source(worker, plan);
            let EngineSettings { block_size, blocks_max, .. } = self.settings;
            let settings = FollowSettings { block_size, blocks_max };
            let (sink, counts) = (self.sink.clone(), self.metrics.feeds.of(worker));
            let follower = Follower::new(worker, source, settings, sink);
            let run = follower.counted(self.metrics.follow.clone(), counts).run();
            async move {
                let subscriber = async {
                    match subscriber {
                        Some(subscriber) => subscriber.await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = run => {}
                    () = subscriber => {}
                }
            }
        });
        self.metrics.engines.set(roster.len() as i64);
    }

    /// Where a worker's messages come from. An engine either listens or connects, so that what it
    /// publishes comes one way; where both are possible, whoever hears it sends it on.
    fn source(
        &self,
        worker: WorkerRank,
        Plan { subscription, replay_endpoint, .. }: Plan,
    ) -> (Source, Option<impl Future<Output = ()> + Send + use<>>) {
        match (&self.collector, subscription) {
            (None, Some(subscription)) => (Source::Zmq { subscription, replay_endpoint }, None),
            (Some(collector), subscription) => {
                let (sender, news) = collector.open(worker);
                let subscriber = subscription.map(|found| subscribe::follow(found, sender));
                (Source::Collected { news, replay_endpoint }, subscriber)
            }
            (None, None) => {
                // Nobody is followed, and nothing comes.
                let (_, news) = mpsc::channel(1);
                (Source::Collected { news, replay_endpoint }, None)
            }
        }
    }

    fn plan(&self, endpoint: &Endpoint) -> Plan {
        let EngineSettings { port, replay_port, topic, .. } = &self.settings;
        let at = |port: u16| {
            let port = port.saturating_add(endpoint.worker.rank);
            format!("tcp://{}", SocketAddr::new(endpoint.address.ip(), port))
        };
        let subscription = port.map(|port| Subscription {
            endpoint: at(port),
            prefixes: vec![topic.clone()],
            silence: None,
        });
        Plan { uid: endpoint.uid.clone(), subscription, replay_endpoint: replay_port.map(at) }
    }
}

#[cfg(test)]
mod tests;
