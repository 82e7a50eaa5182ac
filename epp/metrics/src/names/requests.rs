//! Requests, and what is decided about them.

use super::{MODELS, TwinLabels, alpha, twin};
use crate::exposition::Metric;

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

const MODEL: TwinLabels = &[("model_name", "model_name")];
const MODELS_PRIORITY: TwinLabels = &[MODELS[0], MODELS[1], ("priority", "priority")];
const MODELS_CODE: TwinLabels = &[MODELS[0], MODELS[1], ("error_code", "error_code")];
const ATTEMPT: TwinLabels = &[
    ("status", "status"),
    MODELS[1],
    ("endpoint_name", "pod_name"),
    ("namespace", "namespace"),
    ("port", "port"),
];
const REWRITE: TwinLabels =
    &[("model_rewrite_name", "model_rewrite_name"), MODELS[0], ("target_model", "target_model")];
const DISAGG: TwinLabels = &[MODELS[0], ("decision_type", "decision_type")];

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
