//! Checked settings of plug-ins whose work other rooms do.

mod endpoints;
mod flow;
mod load;
mod media;
mod metrics;
mod plain;
mod precise;
mod tokens;

pub use endpoints::FileDiscovery;
pub use flow::{Fairness, HoldbackShape, Ordering, ProgramAware, TurnPriority, UsageLimit};
pub use load::{Concurrency, ConcurrencyMode, Detector, InFlightLoad, Utilization};
pub use media::{Frames, ImageEstimate, MediaEstimate, VideoEstimate, VideoFacts};
pub use metrics::{EngineSpecs, HttpSource, MetricsExtractor, Scheme};
pub use precise::{KvEvents, PodFilter, Precise};
pub use tokens::{Render, Tokens};

pub(crate) use endpoints::file_discovery;
pub(crate) use flow::{
    deficit_round_robin, edf, fcfs, global_strict, priority_holdback, program_aware, round_robin,
    shortest_prompt, slo_deadline, soft_reflective, static_limit, virtual_tokens,
};
pub(crate) use load::{concurrency_detector, in_flight_load, utilization_detector};
pub(crate) use metrics::{
    cluster_metrics_extractor, cluster_metrics_source, metrics_extractor, metrics_source,
    models_source,
};
pub(crate) use plain::{k8s_source, plain};
pub(crate) use precise::{precise, precise_producer};
pub(crate) use tokens::token_producer;

use crate::reporter::AttributeReporter;
use crate::session::IdSource;

/// Work that another room does for a plug-in.
#[derive(Clone, Debug)]
pub enum PluginSettings {
    /// Tokenize prompts, or estimate their tokens.
    Tokens(Tokens),
    /// Follow what engines report to hold.
    Precise(Precise),
    /// Count tokens in flight.
    InFlightLoad(InFlightLoad),
    /// Say how full a pool is.
    Detector(Detector),
    /// Read metrics from endpoints.
    MetricsSource(HttpSource),
    /// Read the models that endpoints serve.
    ModelsSource,
    /// Make sense of metrics.
    MetricsExtractor(MetricsExtractor),
    /// Read endpoints from a file.
    FileDiscovery(FileDiscovery),
    /// Order the requests of a flow.
    Ordering(Ordering),
    /// Choose between flows.
    Fairness(Fairness),
    /// Limit priority bands.
    UsageLimit(UsageLimit),
    /// Take a session's identity from here.
    SessionId(IdSource),
    /// Take an agent's identity from the first of these; it stands for an absent fairness id.
    AgentIdentity(Vec<IdSource>),
    /// Tell the data plane a number about each request.
    AttributeReporter(AttributeReporter),
}

#[cfg(test)]
mod tests;
