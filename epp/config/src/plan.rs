//! What a picker runs, as a configuration says.

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
    /// What decides where requests go.
    pub program: Program,
    /// How much of the answers plug-ins must see.
    pub response_path: ResponsePath,
    /// What reads request bodies, in the order in which they are asked; at least one.
    pub parsers: Vec<Parser>,
    /// Where tokens of prompts come from; `None` if no plug-in wants any.
    pub tokens: Option<Tokens>,
    /// How the precise index is kept; `None` if no plug-in asks for one.
    pub precise: Option<Precise>,
    /// The placement core's cost; `None` if no plug-in asks for it.
    pub kv_cost: Option<KvCost>,
    /// What a request counts for while it is in flight.
    pub in_flight: InFlightLoad,
    /// Labels of nodes that endpoints must carry; none if no plug-in goes by them.
    pub topology: Vec<String>,
    /// How metrics of endpoints are read; `None` if they are not.
    pub metrics: Option<Metrics>,
    /// The file with the endpoints; `None` if they come from Kubernetes.
    pub discovery: Option<FileDiscovery>,
    /// Where the fairness identity of a request comes from if no header says it, first to last.
    pub agent_identity: Vec<IdSource>,
    /// Numbers about each request for the data plane.
    pub reporters: Vec<AttributeReporter>,
    /// Whether answers are checked to come from the chosen endpoint.
    pub verifies_served: bool,
    /// How full the pool is.
    pub detector: Detector,
    /// How requests wait; used if [`Features::flow_control`] is on.
    pub flow_control: FlowControl,
    /// Which features are on.
    pub features: Features,
}

/// Features that have a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Whether requests wait here: gate `flowControl`, off by default.
    pub flow_control: bool,
}

/// How much of an answer plug-ins must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResponsePath {
    /// Nothing: where a request goes is all that counts.
    Nothing,
    /// Its head: headers are added to it, or read.
    Headers,
    /// All of it: what is in flight is counted, or the answer is measured.
    Body,
}

/// What reads request bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parser {
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

impl Parser {
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

/// How metrics of endpoints are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where.
    pub source: HttpSource,
    /// What they mean.
    pub extractor: MetricsExtractor,
}

/// How requests wait.
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
    /// What the band of any other priority above 0 is like.
    pub default_band: Band,
    /// What the band of any other priority below 0 is like.
    pub default_negative_band: Band,
    /// How full the pool may be for a band to dispatch.
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
    /// Which flow is next.
    pub fairness: Fairness,
    /// Which request of a flow is next.
    pub ordering: Ordering,
}
