//! Settings of a picker, as its configuration gives them.

use stator_epp_plugins::settings::{
    Detector, Fairness, FileDiscovery, HttpSource, InFlightLoad, MetricsExtractor, Ordering,
    Precise, Tokens, UsageLimit,
};
use stator_epp_plugins::{AttributeReporter, IdSource, KvCost};
use stator_epp_scheduler::Program;
use std::time::Duration;

/// Everything that a configuration decides. A value of this type is valid.
#[derive(Clone)]
pub struct Plan {
    /// Plug-ins that decide where requests go.
    pub program: Program,
    /// Part of an answer that plug-ins must see.
    pub response_path: ResponsePath,
    /// Parsers of request bodies, in the order in which they are asked; at least one.
    pub parsers: Vec<ParserKind>,
    /// Source of the tokens of prompts; `None` if no plug-in wants any.
    pub tokens: Option<Tokens>,
    /// Settings of the precise index; `None` if no plug-in asks for one.
    pub precise: Option<Precise>,
    /// The placement core's cost; `None` if no plug-in asks for it.
    pub kv_cost: Option<KvCost>,
    /// Load that a request adds while it is in flight.
    pub in_flight: InFlightLoad,
    /// Labels of nodes that endpoints must carry; none if no plug-in goes by them.
    pub topology: Vec<String>,
    /// Settings for reading the metrics of endpoints; `None` if nobody reads them.
    pub metrics: Option<MetricsSettings>,
    /// The file with the endpoints; `None` if they come from Kubernetes.
    pub discovery: Option<FileDiscovery>,
    /// Sources of a request's fairness identity if no header gives it, first to last.
    pub agent_identity: Vec<IdSource>,
    /// Numbers about each request for the data plane.
    pub reporters: Vec<AttributeReporter>,
    /// Whether answers are checked to come from the chosen endpoint.
    pub verifies_served: bool,
    /// Measure of the pool's saturation.
    pub detector: Detector,
    /// Settings of the waiting queues; used if [`Features::flow_control`] is on.
    pub flow_control: FlowControl,
    /// Features that are switched on or off.
    pub features: Features,
}

/// Features that have a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Whether requests wait here: gate `flowControl`, off by default.
    pub flow_control: bool,
}

/// Part of an answer that plug-ins must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResponsePath {
    /// Nothing: only the destination of a request counts.
    Nothing,
    /// Its head: headers are added to it, or read.
    Headers,
    /// All of it: what is in flight is counted, or the answer is measured.
    Body,
}

/// A parser of request bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParserKind {
    /// `openai-parser`.
    OpenAi,
    /// `anthropic-parser`.
    Anthropic,
    /// `vllmhttp-parser`.
    VllmHttp,
    /// `sglanghttp-parser`.
    SglangHttp,
    /// `vllmgrpc-parser`.
    VllmGrpc,
    /// `vertexai-parser`.
    VertexAi,
    /// `passthrough-parser`.
    Passthrough,
}

impl ParserKind {
    const ALL: [Self; 7] = [
        Self::OpenAi,
        Self::Anthropic,
        Self::VllmHttp,
        Self::SglangHttp,
        Self::VllmGrpc,
        Self::VertexAi,
        Self::Passthrough,
    ];

    /// The parser of a type name.
    pub(crate) fn of(type_name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|parser| parser.name() == type_name)
    }

    /// Its type name.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai-parser",
            Self::Anthropic => "anthropic-parser",
            Self::VllmHttp => "vllmhttp-parser",
            Self::SglangHttp => "sglanghttp-parser",
            Self::VllmGrpc => "vllmgrpc-parser",
            Self::VertexAi => "vertexai-parser",
            Self::Passthrough => "passthrough-parser",
        }
    }
}

/// Settings for reading the metrics of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Address and interval of the pages.
    pub source: HttpSource,
    /// Names of the values on a page.
    pub extractor: MetricsExtractor,
}

/// Settings of the queues in which requests wait.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowControl {
    /// Most bytes of bodies that wait at once, in all bands; `None` is without limit.
    pub max_bytes: Option<u64>,
    /// Most requests that wait at once, in all bands; `None` is without limit.
    pub max_requests: Option<u64>,
    /// Most prompt tokens that wait at once, in all bands; `None` is without limit.
    pub max_tokens: Option<u64>,
    /// Longest wait while the pool has no endpoint; `None` waits as long as the client does.
    pub no_endpoint_ttl: Option<Duration>,
    /// Bands with a priority of their own, the highest first. There is one of priority 0.
    pub bands: Vec<Band>,
    /// Template of the bands of all other priorities above 0.
    pub default_band: Band,
    /// Template of the bands of all other priorities below 0.
    pub default_negative_band: Band,
    /// Saturation of the pool up to which a band dispatches.
    pub usage_limit: UsageLimit,
    /// Whether running requests of a negative priority give way to those that wait above them.
    pub eviction: bool,
}

/// Requests of one priority.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// The priority; of no meaning in a template.
    pub priority: i32,
    /// Most bytes of bodies that wait at once, above 0.
    pub max_bytes: u64,
    /// Most requests that wait at once, above 0.
    pub max_requests: u64,
    /// Most prompt tokens that wait at once; `None` is without limit.
    pub max_tokens: Option<u64>,
    /// Longest wait while the pool has an endpoint; `None` waits as long as the client does.
    pub ttl: Option<Duration>,
    /// Order of a band's flows.
    pub fairness: Fairness,
    /// Order of a flow's requests.
    pub ordering: Ordering,
}
