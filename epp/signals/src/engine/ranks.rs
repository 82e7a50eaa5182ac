//! Follows an engine that may have several data-parallel ranks behind one port.

use super::settings::EngineSettings;
use super::union::{RANKS_MAX, Union};
use crate::scrape::{Mappings, ScrapeSettings};
use crate::{SignalMetrics, WorkerSink};
use stator_epp_scheduler::Endpoint;
use stator_http::Origin;
use stator_protos::WorkerRank;
use stator_signals::events::{FollowSettings, Follower, Source};
use stator_signals::report::{Engine, PollSettings, Poller};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Time between two looks at an engine's metrics page for its ranks. An engine has them for life,
/// but another may be started in its place.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// One engine, by all ranks that its metrics page reports: rank r publishes at the port of rank 0
/// plus r, with numbers and lives of its own. Until a page is read, and if it reports one rank
/// only, the endpoint's own rank is followed.
///
/// Source: vLLM's label `engine` and SGLang's `dp_rank`, and how both number their ports.
pub(super) struct Ranks {
    pub worker: WorkerRank,
    pub ip: IpAddr,
    pub settings: EngineSettings,
    pub sink: Arc<dyn WorkerSink>,
    pub metrics: SignalMetrics,
    pub page: Poller,
}

/// Page on which an engine reports its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankPage {
    engine: Engine,
    pub address: SocketAddr,
}

impl RankPage {
    /// The page of an endpoint's engine; `None` if its pages report no ranks.
    pub(super) fn of(
        endpoint: &Endpoint,
        scrape: &ScrapeSettings,
        mappings: &Mappings,
    ) -> Option<Self> {
        let engine = match mappings.engine(endpoint) {
            "vllm" => Engine::Vllm,
            "sglang" => Engine::Sglang,
            _ => return None,
        };
        let port = scrape.port.unwrap_or(endpoint.address.port());
        Some(Self { engine, address: SocketAddr::new(endpoint.address.ip(), port) })
    }

    /// Reads the page, as `scrape` says.
    pub(super) fn poller(self, scrape: &ScrapeSettings) -> Poller {
        let ScrapeSettings { path, tls, timeout, page_bytes_max, .. } = scrape;
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        let settings =
            PollSettings { timeout: *timeout, page_bytes_max: *page_bytes_max, bearer: None };
        Poller::new(self.engine, Origin { host, port, tls: tls.clone() }, path, settings)
    }
}

impl Ranks {
    /// Follows the engine until dropped.
    pub(super) async fn run(mut self) {
        let mut ranks = BTreeSet::from([self.worker.rank]);
        let mut followers = self.follow(&ranks);
        loop {
            if let Some(reported) = self.look().await.filter(|reported| *reported != ranks) {
                tracing::info!(worker = %self.worker, ranks = ?reported, "an engine's ranks");
                // None of them says anything any more before the next ones do.
                followers.shutdown().await;
                ranks = reported;
                followers = self.follow(&ranks);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The ranks that the page tells of; `None` where there is no page, or it tells nothing.
    async fn look(&mut self) -> Option<BTreeSet<u16>> {
        let page = match self.page.poll().await {
            Ok(page) => page,
            Err(error) => {
                tracing::debug!(worker = %self.worker, %error, "no ranks of an engine");
                return None;
            }
        };
        let reported: BTreeSet<_> = page.reports.iter().map(|report| report.rank).collect();
        match reported.len() {
            0 => None,
            1 => Some([self.worker.rank].into()),
            ranks => {
                if ranks > RANKS_MAX {
                    tracing::warn!(worker = %self.worker, ranks, RANKS_MAX, "too many ranks");
                }
                Some(reported.into_iter().take(RANKS_MAX).collect())
            }
        }
    }

    fn follow(&self, ranks: &BTreeSet<u16>) -> JoinSet<()> {
        let sinks: Vec<Arc<dyn WorkerSink>> = match ranks.len() {
            1 => vec![self.sink.clone()],
            count => Union::sinks(count, self.worker, self.sink.clone()),
        };
        let ranks = ranks.iter().zip(sinks).enumerate();
        let followers = ranks.filter_map(|(at, (rank, sink))| self.follower(at, *rank, sink));
        followers.map(Follower::run).collect()
    }

    /// A follower of the rank at this place among the ranks; `None` where engines are not
    /// connected to.
    fn follower(&self, at: usize, rank: u16, sink: Arc<dyn WorkerSink>) -> Option<Follower> {
        let EngineSettings { block_size, blocks_max, .. } = self.settings;
        let subscription = self.settings.subscription(self.ip, rank)?;
        let replay_endpoint = self.settings.replay_endpoint(self.ip, rank);
        let source = Source::Zmq { subscription, replay_endpoint };
        let settings = FollowSettings { block_size, blocks_max };
        let follower = Follower::new(self.worker, source, settings, sink);
        let counts = self.metrics.feeds.of(self.worker, at);
        Some(follower.counted(self.metrics.follow.clone(), counts))
    }
}
