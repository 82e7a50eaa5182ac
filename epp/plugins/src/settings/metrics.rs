//! Settings of what is read from endpoints.

use super::PluginSettings;
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::PluginParts;
use std::time::Duration;

/// Settings for fetching a page from each endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSource {
    /// With or without TLS.
    pub scheme: Scheme,
    /// Path of the page.
    pub path: String,
    /// Port instead of the endpoint's own.
    pub port: Option<u16>,
    /// Whether the labels `metricsAddress` and `metricsPort` of an endpoint say where its page is.
    pub by_labels: bool,
    /// Whether any certificate will do.
    pub insecure_skip_verify: bool,
    /// Authorities to trust instead of the system's, as a PEM file.
    pub ca_cert_path: Option<String>,
    /// Certificate to show, and its key, as PEM files.
    pub client_cert: Option<(String, String)>,
    /// Time between two reads; `None` takes the picker's own.
    pub interval: Option<Duration>,
}

/// With or without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without.
    Http,
    /// With.
    Https,
}

/// Settings of `core-metrics-extractor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsExtractor {
    /// Label of a pod that names its engine; `None` where configuration leaves it open.
    pub engine_label: Option<String>,
    /// Engine of pods without the label.
    pub default_engine: String,
    /// Engines beside the built-in ones, or instead of them.
    pub engines: Vec<EngineSpecs>,
}

/// Names of the values on an engine's metrics page, each as `name{label=value,...}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSpecs {
    /// The engine's name, the value of the label.
    pub name: String,
    /// Waiting requests.
    pub waiting: Option<String>,
    /// Running requests.
    pub running: Option<String>,
    /// KV cache usage.
    pub kv_usage: Option<String>,
    /// LoRA adapters.
    pub lora: Option<String>,
    /// Cache configuration, told by labels.
    pub cache_info: Option<String>,
    /// Label of the block size in it, `block_size` by default.
    pub block_size_label: Option<String>,
    /// Label of the number of blocks in it, `num_gpu_blocks` by default.
    pub blocks_label: Option<String>,
    /// Block size, told by a value.
    pub block_size: Option<String>,
    /// Number of blocks, told by a value.
    pub blocks: Option<String>,
}

/// Engines that are known without configuration.
///
/// Source: the core metrics extractor of the llm-d router.
const BUILT_IN: [&str; 5] = ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton"];

/// `metrics-data-source`.
pub(crate) fn metrics_source(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let source = http_source(params, "/metrics", Scheme::Http);
    context.settle(PluginSettings::MetricsSource(source))
}

/// `models-data-source`.
pub(crate) fn models_source(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    http_source(params, "/v1/models", Scheme::Http);
    context.settle(PluginSettings::ModelsSource)
}

/// `core-metrics-extractor`.
pub(crate) fn metrics_extractor(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    let label = params.text("engineLabelKey");
    let default_engine = params.text("defaultEngine").unwrap_or_else(|| "vllm".to_owned());
    let engines = params.list("engineConfigs", engine);
    let known = BUILT_IN.contains(&default_engine.as_str())
        || engines.iter().any(|engine| engine.name == default_engine);
    if !known {
        params.wrong("defaultEngine", format!("no engine is called {default_engine:?}"));
    }
    for (position, engine) in engines.iter().enumerate() {
        if engines[..position].iter().any(|other| other.name == engine.name) {
            let name = &engine.name;
            params.wrong("engineConfigs", format!("engine {name:?} is there more than once"));
        }
    }
    context.settle(PluginSettings::MetricsExtractor(MetricsExtractor {
        engine_label: label,
        default_engine,
        engines,
    }))
}

/// `multicluster-metrics-data-source`: the metrics page of each cluster's picker, over a verified
/// connection unless configured otherwise. The labels `metricsAddress` and `metricsPort` of an
/// endpoint say where it is.
///
/// Source: the multi-cluster plug-ins of the llm-d router.
pub(crate) fn cluster_metrics_source(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    let verifies = !params.has("insecureSkipVerify");
    let source = http_source(params, "/metrics", Scheme::Https);
    let insecure_skip_verify = source.insecure_skip_verify && !verifies;
    let source = HttpSource { by_labels: true, insecure_skip_verify, ..source };
    context.settle(PluginSettings::MetricsSource(source))
}

/// `multicluster-metrics-extractor`: how full a cluster is, from the averages that its picker
/// tells: `kvCacheUtilizationMetric` and `queueSizeMetric`.
///
/// Source: the multi-cluster plug-ins of the llm-d router.
pub(crate) fn cluster_metrics_extractor(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    /// Name of the engine that every endpoint is taken to have. No pod can have it as a label.
    const CLUSTER: &str = "a cluster's picker";
    let kv = "llm_d_epp_average_kv_cache_utilization";
    let queue = "llm_d_epp_average_queue_size";
    let cluster = EngineSpecs {
        name: CLUSTER.to_owned(),
        kv_usage: params.text("kvCacheUtilizationMetric").or_else(|| Some(kv.to_owned())),
        waiting: params.text("queueSizeMetric").or_else(|| Some(queue.to_owned())),
        ..EngineSpecs::default()
    };
    context.settle(PluginSettings::MetricsExtractor(MetricsExtractor {
        engine_label: None,
        default_engine: CLUSTER.to_owned(),
        engines: vec![cluster],
    }))
}

fn http_source(params: &mut Params<'_>, path: &str, scheme: Scheme) -> HttpSource {
    let (cert, key) = (params.text("clientCertPath"), params.text("clientKeyPath"));
    if cert.is_some() != key.is_some() {
        params.wrong("clientCertPath", "needs clientKeyPath, and the other way round");
    }
    // Absent and zero both leave the interval to the flag.
    let interval = params.has("interval");
    let every = params.duration("interval", Duration::ZERO);
    let path = params.text("path").unwrap_or_else(|| path.to_owned());
    if !path.starts_with('/') {
        params.wrong("path", format!("{path:?} does not begin with /"));
    }
    let port = params.whole("port", 0, 0..=65535) as u16;
    let schemes = [("http", Scheme::Http), ("https", Scheme::Https)];
    let given = params.has("scheme");
    let chosen = params.choice("scheme", &schemes);
    HttpSource {
        scheme: if given { chosen } else { scheme },
        path,
        port: (port > 0).then_some(port),
        by_labels: false,
        insecure_skip_verify: params.flag("insecureSkipVerify", true),
        ca_cert_path: params.text("caCertPath"),
        client_cert: cert.zip(key),
        interval: (interval && !every.is_zero()).then_some(every),
    }
}

fn engine(params: &mut Params<'_>) -> EngineSpecs {
    EngineSpecs {
        name: params.required_text("name"),
        waiting: params.text("queuedRequestsSpec"),
        running: params.text("runningRequestsSpec"),
        kv_usage: params.text("kvUsageSpec"),
        lora: params.text("loraSpec"),
        cache_info: params.text("cacheInfoSpec"),
        block_size_label: params.text("cacheBlockSizeLabelName"),
        blocks_label: params.text("cacheNumBlocksLabelName"),
        block_size: params.text("cacheBlockSizeSpec"),
        blocks: params.text("cacheNumBlocksSpec"),
    }
}
