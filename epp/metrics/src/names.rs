//! The name, the help and the deprecated twin of every metric; a counter's without `_total`.
//!
//! Source: `docs/metrics.md` of the llm-d router for names, labels and twins; the help is ours.
//! The router's tests want `[ALPHA] ` before it, and behind that which name a twin stands for.

use crate::exposition::{Metric, Twin};

type Kept = &'static [(&'static str, &'static str)];

/// Labels of [`crate::RequestLabels`], in order.
pub(crate) const REQUEST_LABELS: [&str; 4] =
    ["model_name", "target_model_name", "fairness_id", "priority"];
/// Labels of [`SCHEDULER_ATTEMPTS`], in order.
pub(crate) const ATTEMPT_LABELS: [&str; 5] =
    ["status", "target_model_name", "endpoint_name", "namespace", "port"];
/// Labels of [`REWRITES`], in order.
pub(crate) const REWRITE_LABELS: [&str; 3] = ["model_rewrite_name", "model_name", "target_model"];
/// Labels of [`DISAGG_DECISIONS`] and [`PD_DECISIONS`], in order.
pub(crate) const DISAGG_LABELS: [&str; 4] =
    ["plugin_name", "plugin_type", "model_name", "decision_type"];
/// Labels of [`PLUGIN_DURATION`], in order.
pub(crate) const PLUGIN_LABELS: [&str; 3] = ["extension_point", "plugin_type", "plugin_name"];
/// Labels of the prefix indexer's metrics, in order.
pub(crate) const INDEXER_LABELS: [&str; 2] = ["plugin_name", "plugin_type"];
/// Labels of [`ENCODER_QUERIES`], in order.
pub(crate) const ENCODER_QUERY_LABELS: [&str; 3] = ["plugin_type", "plugin_name", "modality"];
/// Labels of [`ENCODER_HITS`], in order.
pub(crate) const ENCODER_HIT_LABELS: [&str; 4] = ["plugin_type", "plugin_name", "pod", "modality"];
/// Labels of [`ENCODER_HIT_RATIO`], in order.
pub(crate) const ENCODER_LABELS: [&str; 2] = ["plugin_type", "plugin_name"];
/// Labels of what is told of predicted latencies, in order; two metrics have `type` behind them.
pub(crate) const LATENCY_LABELS: [&str; 4] =
    ["plugin_name", "plugin_type", "model_name", "target_model_name"];
/// Labels of [`FLOW_SIZE`] and [`FLOW_BYTES`], in order.
pub(crate) const FLOW_LABELS: [&str; 5] =
    ["fairness_id", "priority", "inference_pool", "model_name", "target_model_name"];
/// Labels of [`FLOW_WAIT`], in order.
pub(crate) const FLOW_WAIT_LABELS: [&str; 6] =
    ["fairness_id", "priority", "outcome", "inference_pool", "model_name", "target_model_name"];
/// Labels of [`FLOW_ENQUEUE`], in order.
pub(crate) const FLOW_ENQUEUE_LABELS: [&str; 3] = ["fairness_id", "priority", "outcome"];
/// Labels of [`FLOW_REQUESTS`], in order.
pub(crate) const FLOW_OUTCOME_LABELS: [&str; 3] = ["outcome", "priority", "inference_pool"];

const MODELS: Kept = &[("model_name", "model_name"), ("target_model_name", "target_model_name")];
const MODEL: Kept = &[("model_name", "model_name")];
const MODELS_PRIORITY: Kept = &[MODELS[0], MODELS[1], ("priority", "priority")];
const MODELS_TYPE: Kept = &[MODELS[0], MODELS[1], ("type", "type")];
const MODELS_CODE: Kept = &[MODELS[0], MODELS[1], ("error_code", "error_code")];
const POOL: Kept = &[("name", "name")];
const ATTEMPT: Kept = &[
    ("status", "status"),
    MODELS[1],
    ("endpoint_name", "pod_name"),
    ("namespace", "namespace"),
    ("port", "port"),
];
const REWRITE: Kept =
    &[("model_rewrite_name", "model_rewrite_name"), MODELS[0], ("target_model", "target_model")];
const DISAGG: Kept = &[MODELS[0], ("decision_type", "decision_type")];
const PLUGIN: Kept = &[
    ("extension_point", "extension_point"),
    ("plugin_type", "plugin_type"),
    ("plugin_name", "plugin_name"),
];
const ENDPOINT: Kept = &[("name", "name"), ("model_server_endpoint", "model_server_pod")];
const BUILD: Kept = &[("commit", "commit"), ("build_ref", "build_ref")];
const STAGE: Kept = &[("inference_pool", "inference_pool"), ("stage", "stage")];
const SOURCE: Kept = &[("source_type", "source_type")];
const FEED: Kept = &[("pod_identifier", "pod_identifier")];
const FEED_ERROR: Kept = &[FEED[0], ("operation", "operation")];
const FAIRNESS: (&str, &str) = ("fairness_id", "fairness_id");
const PRIORITY: (&str, &str) = ("priority", "priority");
const OUTCOME: (&str, &str) = ("outcome", "outcome");
const FLOW: Kept = &[FAIRNESS, PRIORITY, STAGE[0], MODELS[0], MODELS[1]];
const FLOW_OUTCOME: Kept = &[FAIRNESS, PRIORITY, OUTCOME, STAGE[0], MODELS[0], MODELS[1]];
const ENQUEUE: Kept = &[FAIRNESS, PRIORITY, OUTCOME];
const OUTCOMES: Kept = &[OUTCOME, PRIORITY, STAGE[0]];
const BAND: Kept = &[PRIORITY, STAGE[0]];
const GLOBAL: Kept = &[STAGE[0]];
const EXTRACTOR: Kept = &[SOURCE[0], ("extractor_type", "extractor_type")];

/// A metric of the llm-d router.
const fn alpha(name: &'static str, help: &'static str) -> Metric {
    Metric { name, stage: "[ALPHA] ", help, twin: None }
}

/// The same, with the name and the labels that it had before.
const fn twin(metric: Metric, name: &'static str, labels: Kept) -> Metric {
    Metric { twin: Some(Twin { name, labels }), ..metric }
}

/// One of ours.
const fn own(name: &'static str, help: &'static str) -> Metric {
    Metric { name, stage: "", help, twin: None }
}

// Requests.

pub(crate) const REQUESTS: Metric = twin(
    alpha("llm_d_epp_request", "Requests that were understood"),
    "inference_objective_request",
    MODELS_PRIORITY,
);
pub(crate) const REQUEST_ERRORS: Metric = twin(
    alpha("llm_d_epp_request_error", "Requests that failed, by the reason the client was given"),
    "inference_objective_request_error",
    MODELS_CODE,
);
pub(crate) const REQUEST_RUNNING: Metric = twin(
    alpha("llm_d_epp_request_running", "Requests without a complete answer yet"),
    "inference_objective_running_requests",
    MODEL,
);
pub(crate) const REQUEST_DURATION: Metric = twin(
    alpha("llm_d_epp_request_duration_seconds", "Seconds from a request to the end of its answer"),
    "inference_objective_request_duration_seconds",
    MODELS,
);
pub(crate) const REQUEST_SIZE: Metric = twin(
    alpha("llm_d_epp_request_size_bytes", "Bytes of request bodies"),
    "inference_objective_request_sizes",
    MODELS,
);
pub(crate) const RESPONSE_SIZE: Metric = twin(
    alpha("llm_d_epp_response_size_bytes", "Bytes of response bodies"),
    "inference_objective_response_sizes",
    MODELS,
);
pub(crate) const INPUT_TOKENS: Metric = twin(
    alpha("llm_d_epp_request_input_tokens", "Tokens of prompts, as engines count them"),
    "inference_objective_input_tokens",
    MODELS,
);
pub(crate) const OUTPUT_TOKENS: Metric = twin(
    alpha("llm_d_epp_request_output_tokens", "Tokens of answers, as engines count them"),
    "inference_objective_output_tokens",
    MODELS,
);
pub(crate) const CACHED_TOKENS: Metric = twin(
    alpha("llm_d_epp_request_cached_tokens", "Tokens of prompts that engines had in their cache"),
    "inference_objective_prompt_cached_tokens",
    MODELS,
);
pub(crate) const NTPOT: Metric = twin(
    alpha("llm_d_epp_request_ntpot_seconds", "Seconds of a request per token of its answer"),
    "inference_objective_normalized_time_per_output_token_seconds",
    MODELS,
);
pub(crate) const TTFT: Metric =
    alpha("llm_d_epp_request_ttft_seconds", "Seconds from a request to its first token");
pub(crate) const TPOT: Metric = alpha(
    "llm_d_epp_request_streaming_tpot_seconds",
    "Seconds per token of a streamed answer after the first token",
);
pub(crate) const ITL: Metric = alpha(
    "llm_d_epp_request_streaming_itl_seconds",
    "Seconds between the chunks of streamed answers",
);

// Decisions.

pub(crate) const SCHEDULER_DURATION: Metric = twin(
    alpha("llm_d_epp_scheduler_e2e_duration_seconds", "Seconds to choose an endpoint"),
    "inference_extension_scheduler_e2e_duration_seconds",
    &[],
);
pub(crate) const SCHEDULER_ATTEMPTS: Metric = twin(
    alpha("llm_d_epp_scheduler_attempts", "Attempts to choose an endpoint, and which was chosen"),
    "inference_extension_scheduler_attempts",
    ATTEMPT,
);
pub(crate) const REWRITES: Metric = twin(
    alpha("llm_d_epp_model_rewrite_decisions", "Requests sent to another model, by the rule"),
    "inference_extension_model_rewrite_decisions",
    REWRITE,
);
pub(crate) const DISAGG_DECISIONS: Metric = twin(
    alpha("llm_d_epp_disagg_decision", "Requests by the stages that work on them apart"),
    "llm_d_inference_scheduler_disagg_decision",
    DISAGG,
);
pub(crate) const PD_DECISIONS: Metric = twin(
    alpha("llm_d_epp_pd_decision", "Requests by whether prefill and decode work on them apart"),
    "llm_d_inference_scheduler_pd_decision",
    DISAGG,
);

// Plug-ins and the KV index.

pub(crate) const PLUGIN_DURATION: Metric = twin(
    alpha("llm_d_epp_plugin_duration_seconds", "Seconds that a plug-in takes"),
    "inference_extension_plugin_duration_seconds",
    PLUGIN,
);
pub(crate) const INDEXER_SIZE: Metric = twin(
    alpha("llm_d_epp_prefix_indexer_size", "Entries of the approximate prefix index"),
    "inference_extension_prefix_indexer_size",
    &[],
);
pub(crate) const INDEXER_HIT_RATIO: Metric = twin(
    alpha("llm_d_epp_prefix_indexer_hit_ratio", "Share of a prompt found in the prefix index"),
    "inference_extension_prefix_indexer_hit_ratio",
    &[],
);
pub(crate) const INDEXER_HIT_BYTES: Metric = twin(
    alpha("llm_d_epp_prefix_indexer_hit_bytes", "Bytes of a prompt found in the prefix index"),
    "inference_extension_prefix_indexer_hit_bytes",
    &[],
);
pub(crate) const ENCODER_QUERIES: Metric = alpha(
    "llm_d_epp_encoder_cache_queries",
    "Images, sounds and videos of prompts that were looked for in encoder caches",
);
pub(crate) const ENCODER_HITS: Metric = alpha(
    "llm_d_epp_encoder_cache_hits",
    "Images, sounds and videos of prompts that an endpoint is believed to hold",
);
pub(crate) const ENCODER_HIT_RATIO: Metric = alpha(
    "llm_d_epp_encoder_cache_hit_ratio",
    "Share of a prompt's images, sounds and videos that an endpoint is believed to hold",
);
pub(crate) const LATENCY_LAST: Metric = twin(
    alpha(
        "llm_d_epp_inference_request_metric",
        "Latencies of the last request in seconds, what was predicted of them, how long that took, \
         and whether an objective was missed",
    ),
    "inference_objective_inference_request_metric",
    MODELS_TYPE,
);
pub(crate) const PREDICTED_TTFT: Metric = twin(
    alpha("llm_d_epp_request_predicted_ttft_seconds", "Predicted seconds to the first token"),
    "inference_objective_request_predicted_ttft_seconds",
    MODELS,
);
pub(crate) const PREDICTED_TPOT: Metric = twin(
    alpha(
        "llm_d_epp_request_predicted_tpot_seconds",
        "Predicted seconds per token after the first",
    ),
    "inference_objective_request_predicted_tpot_seconds",
    MODELS,
);
pub(crate) const TTFT_PREDICTION: Metric = twin(
    alpha(
        "llm_d_epp_request_ttft_prediction_duration_seconds",
        "Seconds to predict both latencies of a request for all endpoints",
    ),
    "inference_objective_request_ttft_prediction_duration_seconds",
    MODELS,
);
pub(crate) const TPOT_PREDICTION: Metric = twin(
    alpha(
        "llm_d_epp_request_tpot_prediction_duration_seconds",
        "Seconds to predict both latencies of a request for all endpoints",
    ),
    "inference_objective_request_tpot_prediction_duration_seconds",
    MODELS,
);
pub(crate) const SLO_VIOLATIONS: Metric = twin(
    alpha("llm_d_epp_request_slo_violation", "Requests that missed an objective for a latency"),
    "inference_objective_request_slo_violation",
    MODELS_TYPE,
);
pub(crate) const INDEX_LOOKUPS: Metric = twin(
    alpha("llm_d_epp_kv_cache_index_lookup_requests", "Lookups of the KV index"),
    "kvcache_index_lookup_requests",
    &[],
);
pub(crate) const INDEX_HITS: Metric = twin(
    alpha("llm_d_epp_kv_cache_index_lookup_hits", "Leading blocks that the best endpoint held"),
    "kvcache_index_lookup_hits",
    &[],
);
pub(crate) const INDEX_MAX_HITS: Metric = twin(
    alpha("llm_d_epp_kv_cache_index_max_pod_hit_count", "Most leading blocks of one endpoint"),
    "kvcache_index_max_pod_hit_count",
    &[],
);
pub(crate) const INDEX_LATENCY: Metric = twin(
    alpha("llm_d_epp_kv_cache_index_lookup_latency_seconds", "Seconds that a lookup takes"),
    "kvcache_index_lookup_latency_seconds",
    &[],
);
pub(crate) const INDEX_EVICTIONS: Metric = twin(
    alpha("llm_d_epp_kv_cache_index_evictions", "Blocks that the index forgot for lack of room"),
    "kvcache_index_evictions",
    &[],
);

pub(crate) const INDEX_ADMISSIONS: Metric = twin(
    alpha("llm_d_epp_kv_cache_index_admissions", "Blocks that the KV index was told of"),
    "kvcache_index_admissions",
    &[],
);

// KV events of engines.

pub(crate) const FEEDS: Metric = twin(
    alpha("llm_d_epp_kv_cache_events_active_subscribers", "Engines whose KV events are followed"),
    "kvcache_kvevents_active_subscribers",
    &[],
);
pub(crate) const FEED_MESSAGES: Metric = twin(
    alpha("llm_d_epp_kv_cache_events_messages_received", "Messages of KV events that came"),
    "kvcache_kvevents_messages_received",
    FEED,
);
pub(crate) const FEED_RECONNECTIONS: Metric = twin(
    alpha(
        "llm_d_epp_kv_cache_events_subscriber_reconnections",
        "Times a lost feed was found again",
    ),
    "kvcache_kvevents_subscriber_reconnections",
    FEED,
);
pub(crate) const FEED_ERRORS: Metric = twin(
    alpha("llm_d_epp_kv_cache_events_zmq_errors", "Messages and replays of engines that failed"),
    "kvcache_kvevents_zmq_errors",
    FEED_ERROR,
);
pub(crate) const FEED_QUEUE: Metric = twin(
    alpha("llm_d_epp_kv_cache_events_pool_queue_depth", "Messages of KV events that wait"),
    "kvcache_kvevents_pool_queue_depth",
    &[],
);
pub(crate) const FEED_CAPACITY: Metric = twin(
    alpha("llm_d_epp_kv_cache_events_pool_capacity", "Messages of KV events that may wait"),
    "kvcache_kvevents_pool_capacity",
    &[],
);
pub(crate) const REMOVALS_SUPPRESSED: Metric = twin(
    alpha(
        "llm_d_epp_kv_cache_events_dedup_removed_hashes_suppressed",
        "Removed blocks of which their engine holds another copy",
    ),
    "kvcache_kvevents_dedup_removed_hashes_suppressed",
    &[],
);
pub(crate) const REMOVALS_FORWARDED: Metric = twin(
    alpha(
        "llm_d_epp_kv_cache_events_dedup_removed_hashes_forwarded",
        "Removed blocks that their engine holds no more",
    ),
    "kvcache_kvevents_dedup_removed_hashes_forwarded",
    &[],
);
pub(crate) const STORES_SKIPPED: Metric = alpha(
    "llm_d_epp_kv_cache_events_stores_skipped",
    "Stored events that say nothing about prefixes",
);
pub(crate) const REMOVALS_SKIPPED: Metric = alpha(
    "llm_d_epp_kv_cache_events_removals_skipped",
    "Removed events that say nothing about prefixes",
);

// Pools.

pub(crate) const AVERAGE_KV: Metric = twin(
    alpha("llm_d_epp_average_kv_cache_utilization", "Mean use of the endpoints' KV cache, 0 to 1"),
    "inference_pool_average_kv_cache_utilization",
    POOL,
);
pub(crate) const AVERAGE_QUEUE: Metric = twin(
    alpha("llm_d_epp_average_queue_size", "Mean number of requests that wait at an endpoint"),
    "inference_pool_average_queue_size",
    POOL,
);
pub(crate) const AVERAGE_RUNNING: Metric = twin(
    alpha("llm_d_epp_average_running_requests", "Mean number of requests that an endpoint runs"),
    "inference_pool_average_running_requests",
    POOL,
);
pub(crate) const STD_DEV_KV: Metric = alpha(
    "llm_d_epp_std_dev_kv_cache_utilization",
    "Standard deviation of the use of KV cache between endpoints",
);
pub(crate) const STD_DEV_QUEUE: Metric = alpha(
    "llm_d_epp_std_dev_queue_size",
    "Standard deviation of the requests that wait between endpoints",
);
pub(crate) const STD_DEV_RUNNING: Metric = alpha(
    "llm_d_epp_std_dev_running_requests",
    "Standard deviation of the requests that run between endpoints",
);
pub(crate) const READY_ENDPOINTS: Metric = twin(
    alpha("llm_d_epp_ready_endpoints", "Endpoints that take requests"),
    "inference_pool_ready_pods",
    POOL,
);
pub(crate) const ENDPOINT_QUEUE: Metric = twin(
    alpha("llm_d_epp_per_endpoint_queue_size", "Requests that wait at an endpoint"),
    "inference_pool_per_pod_queue_size",
    ENDPOINT,
);
pub(crate) const INFLIGHT_REQUESTS: Metric =
    alpha("llm_d_epp_inflight_requests", "Requests sent to an endpoint and not over");
pub(crate) const INFLIGHT_TOKENS: Metric = alpha(
    "llm_d_epp_inflight_tokens",
    "Tokens of requests sent to an endpoint, yet to be computed",
);
pub(crate) const SATURATION: Metric = twin(
    alpha("llm_d_epp_flow_control_pool_saturation", "How full a pool is; 1 and more is full"),
    "inference_extension_flow_control_pool_saturation",
    STAGE,
);
pub(crate) const STALE_ENDPOINTS: Metric = alpha(
    "llm_d_epp_flow_control_stale_endpoints",
    "Endpoints whose last report is too old to count, or that never reported",
);

// Flow control.

pub(crate) const FLOW_WAIT: Metric = twin(
    alpha("llm_d_epp_flow_control_request_queue_duration_seconds", "Seconds that requests waited"),
    "inference_extension_flow_control_request_queue_duration_seconds",
    FLOW_OUTCOME,
);
pub(crate) const FLOW_CYCLE: Metric = twin(
    alpha(
        "llm_d_epp_flow_control_dispatch_cycle_duration_seconds",
        "Seconds to find out which waiting requests go on",
    ),
    "inference_extension_flow_control_dispatch_cycle_duration_seconds",
    &[],
);
pub(crate) const FLOW_ENQUEUE: Metric = twin(
    alpha(
        "llm_d_epp_flow_control_request_enqueue_duration_seconds",
        "Seconds to let a request into its queue, or to refuse it",
    ),
    "inference_extension_flow_control_request_enqueue_duration_seconds",
    ENQUEUE,
);
pub(crate) const FLOW_SIZE: Metric = twin(
    alpha("llm_d_epp_flow_control_queue_size", "Requests that wait in the picker"),
    "inference_extension_flow_control_queue_size",
    FLOW,
);
pub(crate) const FLOW_BYTES: Metric = twin(
    alpha("llm_d_epp_flow_control_queue_bytes", "Bytes of bodies that wait in the picker"),
    "inference_extension_flow_control_queue_bytes",
    FLOW,
);
pub(crate) const FLOW_REQUESTS: Metric = twin(
    alpha("llm_d_epp_flow_control_requests", "Requests that left flow control, by how they did"),
    "inference_extension_flow_control_requests",
    OUTCOMES,
);
pub(crate) const BAND_REQUESTS: Metric = twin(
    alpha(
        "llm_d_epp_flow_control_capacity_utilization_requests",
        "Waiting requests of a priority against how many may wait; 1 is full",
    ),
    "inference_extension_flow_control_capacity_utilization_requests",
    BAND,
);
pub(crate) const BAND_BYTES: Metric = twin(
    alpha(
        "llm_d_epp_flow_control_capacity_utilization_bytes",
        "Waiting bytes of a priority against how many may wait; 1 is full",
    ),
    "inference_extension_flow_control_capacity_utilization_bytes",
    BAND,
);
pub(crate) const GLOBAL_REQUESTS: Metric = twin(
    alpha(
        "llm_d_epp_flow_control_global_capacity_utilization_requests",
        "Waiting requests of a pool against how many may wait; 1 is full",
    ),
    "inference_extension_flow_control_global_capacity_utilization_requests",
    GLOBAL,
);
pub(crate) const GLOBAL_BYTES: Metric = twin(
    alpha(
        "llm_d_epp_flow_control_global_capacity_utilization_bytes",
        "Waiting bytes of a pool against how many may wait; 1 is full",
    ),
    "inference_extension_flow_control_global_capacity_utilization_bytes",
    GLOBAL,
);

pub(crate) const PROGRAM_FAIRNESS: Metric = alpha(
    "llm_d_epp_program_aware_jains_fairness_index",
    "Jain's index of the programs' mean waits; 1 is perfectly fair",
);
pub(crate) const PROGRAM_WAIT: Metric = alpha(
    "llm_d_epp_program_aware_avg_wait_time_milliseconds",
    "Mean milliseconds that a program's requests waited, since its first",
);
pub(crate) const PROGRAM_SERVICE: Metric = alpha(
    "llm_d_epp_program_aware_attained_service_tokens",
    "Tokens that a program used, less those forgotten by half-lives, those of answers counted twice",
);

// Streams and the process.

pub(crate) const STREAMS: Metric =
    alpha("llm_d_epp_extproc_streams", "Streams of data planes that ended, by gRPC status");
pub(crate) const STREAMS_INFLIGHT: Metric =
    alpha("llm_d_epp_extproc_streams_inflight", "Streams of data planes that are open");
pub(crate) const STREAM_DURATION: Metric =
    alpha("llm_d_epp_extproc_stream_duration_seconds", "Seconds that a stream was open");
pub(crate) const REQUEST_PROCESSING: Metric = alpha(
    "llm_d_epp_request_processing_duration_seconds",
    "Seconds that the picker takes from a request's head until its body is sent on",
);
pub(crate) const RESPONSE_PROCESSING: Metric = alpha(
    "llm_d_epp_response_processing_duration_seconds",
    "Seconds of the picker's work on an answer",
);
pub(crate) const POLL_ERRORS: Metric = twin(
    alpha("llm_d_epp_datalayer_poll_errors", "Reads of a data source that failed"),
    "llm_d_inference_scheduler_datalayer_poll_errors",
    SOURCE,
);
pub(crate) const EXTRACT_ERRORS: Metric = twin(
    alpha("llm_d_epp_datalayer_extract_errors", "Answers of a data source that lacked something"),
    "llm_d_inference_scheduler_datalayer_extract_errors",
    EXTRACTOR,
);
pub(crate) const INFO: Metric = twin(
    alpha("llm_d_epp_info", "The build that runs; always 1"),
    "inference_extension_info",
    BUILD,
);
pub(crate) const PICKS_HONOURED: Metric =
    own("stator_epp_picks_honoured", "Answers that came from the endpoint that was picked");
pub(crate) const PICKS_NOT_HONOURED: Metric =
    own("stator_epp_picks_not_honoured", "Answers that came from another endpoint than the picked");
pub(crate) const TOKENIZATION: Metric =
    own("stator_epp_tokenization", "Requests by how their prompt was turned into tokens");
