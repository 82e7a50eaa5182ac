//! Pools and their endpoints.

use super::{TwinLabels, alpha, twin};
use crate::exposition::Metric;

const POOL: TwinLabels = &[("name", "name")];
const ENDPOINT: TwinLabels = &[("name", "name"), ("model_server_endpoint", "model_server_pod")];
const STAGE: TwinLabels = &[("inference_pool", "inference_pool"), ("stage", "stage")];

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
    alpha("llm_d_epp_ready_endpoints", "Endpoints that take new requests"),
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
