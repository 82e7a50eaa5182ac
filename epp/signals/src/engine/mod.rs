//! Follows the KV events of endpoints whose engines have no agent, as
//! [`stator_signals::events`] does it: vLLM's and SGLang's, over ZMQ.
//!
//! If an engine has several data-parallel ranks behind one port, as its metrics page reports, all
//! are followed, and a block of any rank is the endpoint's: the engine chooses the rank.
//!
//! Not followed: TensorRT-LLM (whose events are drained by reading, so that only an agent may read
//! them), the ranks beyond the first of an engine that connects to us, and ranks on other machines
//! than the one with the port.

mod collector;
mod ranks;
mod settings;
mod union;

pub use settings::EngineSettings;

use crate::roster::Roster;
use crate::{SignalMetrics, WorkerSink};
use collector::Collector;
use parking_lot::Mutex;
use ranks::{RankPage, Ranks};
use rustc_hash::FxHashMap;
use stator_epp_scheduler::Endpoint;
use stator_events::subscribe::{self, Subscription};
use stator_protos::{WorkerId, WorkerRank};
use stator_signals::events::{FollowSettings, Follower, NEWS_MAX, Source};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Follows the events of engines in the background. Dropping it ends that.
pub struct EngineFeeds {
    settings: EngineSettings,
    sink: Arc<dyn WorkerSink>,
    metrics: SignalMetrics,
    /// Receiver of the engines that connect to the picker.
    collector: Option<Collector>,
    roster: Mutex<Roster<Plan>>,
}

/// Facts about an endpoint by which its task works; a change starts the task anew.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Identity of the pod's life: another life of the pod is followed anew.
    uid: Arc<str>,
    /// `None` if the picker does not connect to the engine.
    subscription: Option<Subscription>,
    replay_endpoint: Option<String>,
    /// Page that may report further ranks behind the same port.
    page: Option<RankPage>,
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
        let mut ports = FxHashMap::<WorkerId, usize>::default();
        for endpoint in endpoints {
            *ports.entry(endpoint.worker.worker).or_default() += 1;
        }
        let wanted = endpoints.iter().map(|endpoint| {
            // Where a pod has several ports, each is a rank: no page need tell of further ones.
            let has_one_port = ports[&endpoint.worker.worker] == 1;
            (endpoint.worker, self.plan(endpoint, has_one_port))
        });
        let name = |endpoint: &Endpoint| format!("{}/{}", endpoint.namespace, endpoint.name).into();
        let names = endpoints.iter().map(|endpoint| (endpoint.worker, name(endpoint)));
        self.metrics.feeds.follow(names, NEWS_MAX);
        if let Some(collector) = &self.collector {
            collector.follow(endpoints);
        }
        let mut roster = self.roster.lock();
        roster.update(
            wanted.collect(),
            |worker, plan| -> Pin<Box<dyn Future<Output = ()> + Send>> {
                match self.ranks(worker, &plan) {
                    Some(ranks) => Box::pin(ranks.run()),
                    None => Box::pin(self.one(worker, plan)),
                }
            },
        );
        self.metrics.engines.set(roster.len() as i64);
    }

    /// Follows all ranks of an engine that may tell of them; `None` for any other.
    fn ranks(&self, worker: WorkerRank, plan: &Plan) -> Option<Ranks> {
        let (page, (scrape, _)) = (plan.page?, self.settings.pages.as_ref()?);
        Some(Ranks {
            worker,
            ip: page.address.ip(),
            settings: self.settings.clone(),
            sink: self.sink.clone(),
            metrics: self.metrics.clone(),
            page: page.poller(scrape),
        })
    }

    /// Follows an engine of one rank, or one rank of an engine.
    fn one(&self, worker: WorkerRank, plan: Plan) -> impl Future<Output = ()> + Send + use<> {
        let (source, subscriber) = self.source(worker, plan);
        let EngineSettings { block_size, blocks_max, .. } = self.settings;
        let settings = FollowSettings { block_size, blocks_max };
        let (sink, counts) = (self.sink.clone(), self.metrics.feeds.of(worker, 0));
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
    }

    /// Source of a worker's messages. An engine either listens or connects, so that its events come
    /// one way; if both are possible, the task that hears them sends them on.
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

    fn plan(&self, endpoint: &Endpoint, has_one_port: bool) -> Plan {
        let (ip, rank) = (endpoint.address.ip(), endpoint.worker.rank);
        // Engines that connect do so each rank to a port of its own, of which we have the first.
        let may_tell = has_one_port && self.settings.port.is_some() && self.collector.is_none();
        let pages = self.settings.pages.as_ref().filter(|_| may_tell);
        Plan {
            uid: endpoint.uid.clone(),
            subscription: self.settings.subscription(ip, rank),
            replay_endpoint: self.settings.replay_endpoint(ip, rank),
            page: pages.and_then(|(scrape, mappings)| RankPage::of(endpoint, scrape, mappings)),
        }
    }
}

#[cfg(test)]
mod tests;
