//! Plug-ins, the KV index, and the KV events that it is told of.

use super::{MODELS, TwinLabels, alpha, twin};
use crate::exposition::Metric;

/// Labels of [`PLUGIN_DURATION`], in order.
pub(crate) const PLUGIN_LABELS: [&str; 3] = ["extension_point", "plugin_type", "plugin_name"];
/// Values of the label that [`SCOPE_VIOLATIONS`] has beside [`PLUGIN_LABELS`].
pub(crate) const ACCESSES: [(&str, &str); 2] = [("access", "read"), ("access", "write")];
/// Labels of the prefix indexer's metrics, in order.
pub(crate) const INDEXER_LABELS: [&str; 2] = ["plugin_name", "plugin_type"];
/// Labels of [`ENCODER_QUERIES`], in order.
pub(crate) const ENCODER_QUERY_LABELS: [&str; 3] = ["plugin_type", "plugin_name", "modality"];
/// Labels of [`ENCODER_HITS`], in order.
pub(crate) const ENCODER_HIT_LABELS: [&str; 4] = ["plugin_type", "plugin_name", "pod", "modality"];
/// Labels of [`ENCODER_HIT_RATIO`], in order.
pub(crate) const ENCODER_LABELS: [&str; 2] = ["plugin_type", "plugin_name"];
/// Labels of predicted latencies, in order; two metrics have `type` behind them.
pub(crate) const LATENCY_LABELS: [&str; 4] =
    ["plugin_name", "plugin_type", "model_name", "target_model_name"];

const PLUGIN: TwinLabels = &[
    ("extension_point", "extension_point"),
    ("plugin_type", "plugin_type"),
    ("plugin_name", "plugin_name"),
];
const MODELS_TYPE: TwinLabels = &[MODELS[0], MODELS[1], ("type", "type")];
const FEED: TwinLabels = &[("pod_identifier", "pod_identifier")];
const FEED_ERROR: TwinLabels = &[FEED[0], ("operation", "operation")];

pub(crate) const PLUGIN_DURATION: Metric = twin(
    alpha("llm_d_epp_plugin_duration_seconds", "Seconds that a plug-in takes"),
    "inference_extension_plugin_duration_seconds",
    PLUGIN,
);
pub(crate) const SCOPE_VIOLATIONS: Metric = alpha(
    "llm_d_epp_plugin_data_scope_violations",
    "Reads and writes of endpoints that were refused to a plug-in; always 0, because its interface \
     has only what it may use",
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
