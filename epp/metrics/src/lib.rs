//! The endpoint picker's metrics: those of the llm-d router by name, label and bucket, their
//! deprecated twins, and a few of ours.
//!
//! Recording is a handful of atomic additions on counters found once per request; text is made,
//! pools are asked and twins are summed up when somebody reads the metrics. Nothing here decides
//! anything, opens a socket or knows Kubernetes or Envoy. What a client can choose (names of
//! models, fairness ids) never makes more than a bounded number of series, see [`Requests`].
//!
//! Start reading at [`EppMetrics`], then [`RequestMetrics`] for what one request records. All
//! names stand in `names`, all buckets in [`buckets`].

mod bounded;
pub mod buckets;
mod decisions;
mod encoder;
mod exposition;
mod family;
mod feeds;
mod flow;
mod histogram;
mod latency;
mod names;
mod plugins;
mod pools;
mod process;
mod programs;
mod reclaimed;
mod request;
mod requests;
mod snapshot;
mod streams;
#[cfg(test)]
mod tests;

pub use decisions::{Decisions, Disaggregation, PluginName};
pub use encoder::EncoderCache;
pub use flow::{FlowMetrics, FlowOutcome, WaitingRequest};
pub use latency::LatencyMetrics;
pub use plugins::{PluginMetrics, PluginTimer, PrefixIndexer};
pub use pools::{PoolView, Pools};
pub use process::{Build, Picks, Process, Tokenization, UnscreenedReason};
pub use programs::{Program, Programs};
pub use reclaimed::ReclaimMetrics;
pub use request::{ErrorCode, FinishedRequest, RequestMetrics, RunningRequest};
pub use requests::{RequestLabels, Requests};
pub use snapshot::{
    BandSnapshot, EndpointSnapshot, FeedSnapshot, FeedsSnapshot, FlowInFlight, FlowSnapshot,
    LoadSnapshot, PoolSnapshot, SkippedEvents, SourceSnapshot, Use,
};
pub use streams::{OpenStream, Streams};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// All metrics of a picker.
#[derive(Debug)]
pub struct EppMetrics {
    /// Requests and their ends, by model and flow.
    pub requests: Requests,
    /// Decisions about requests.
    pub decisions: Decisions,
    /// Time that plug-ins take, and their lookups.
    pub plugins: Arc<PluginMetrics>,
    /// Requests that wait for room.
    pub flow: FlowMetrics,
    /// Service that programs get, if flows share by the tokens that they used.
    pub programs: Programs,
    /// Levels of pools, read when the metrics are.
    pub pools: Pools,
    /// Streams of data planes.
    pub streams: Streams,
    /// The process as a whole.
    pub process: Process,
}

impl EppMetrics {
    /// Makes the metrics of this build known to the process's registry; once per process.
    pub fn register(build: Build, registry: &mut Registry) -> Arc<Self> {
        let requests = Requests::default();
        let metrics = Arc::new(Self {
            plugins: Arc::new(PluginMetrics::new(requests.models().clone())),
            pools: Pools::new(requests.fairness_ids().clone()),
            requests,
            decisions: Decisions::default(),
            flow: FlowMetrics::default(),
            programs: Programs::default(),
            streams: Streams::default(),
            process: Process::new(build),
        });
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }
}

impl Collector for EppMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.requests.encode(&mut encoder)?;
        self.decisions.encode(&mut encoder)?;
        self.plugins.encode(&mut encoder)?;
        self.flow.encode(&mut encoder)?;
        self.programs.encode(&mut encoder)?;
        self.pools.encode(&mut encoder)?;
        self.streams.encode(&mut encoder)?;
        self.process.encode(&mut encoder)
    }
}
