//! Requests that wait for room, and the programs that share it.

use super::{MODELS, TwinLabels, alpha, twin};
use crate::exposition::Metric;

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

const FAIRNESS: (&str, &str) = ("fairness_id", "fairness_id");
const PRIORITY: (&str, &str) = ("priority", "priority");
const OUTCOME: (&str, &str) = ("outcome", "outcome");
const POOL: (&str, &str) = ("inference_pool", "inference_pool");
const FLOW: TwinLabels = &[FAIRNESS, PRIORITY, POOL, MODELS[0], MODELS[1]];
const FLOW_OUTCOME: TwinLabels = &[FAIRNESS, PRIORITY, OUTCOME, POOL, MODELS[0], MODELS[1]];
const ENQUEUE: TwinLabels = &[FAIRNESS, PRIORITY, OUTCOME];
const OUTCOMES: TwinLabels = &[OUTCOME, PRIORITY, POOL];
const BAND: TwinLabels = &[PRIORITY, POOL];
const GLOBAL: TwinLabels = &[POOL];

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

pub(crate) const REVOCATIONS_ISSUED: Metric = alpha(
    "llm_d_epp_flow_control_revocations_issued",
    "Running requests that were told to give way to waiting ones",
);
pub(crate) const REVOCATIONS: Metric = alpha(
    "llm_d_epp_flow_control_revocations",
    "Running requests that gave way, or did not end in time",
);
pub(crate) const RECLAIM_TARGET: Metric = alpha(
    "llm_d_epp_flow_control_reclaim_target",
    "Saturation above what the waiting request that last found no room allows",
);
pub(crate) const PENDING_RECLAIM: Metric = alpha(
    "llm_d_epp_flow_control_pending_reclaim",
    "Saturation that revoked requests are taken to free and may not have freed yet",
);
pub(crate) const REVOCATION_CONFIRMATION: Metric = alpha(
    "llm_d_epp_flow_control_revocation_confirmation_seconds",
    "Seconds from the revocation of a running request to its end",
);
