//! Names of HTTP headers and metadata that stator processes read and set.

/// Identity of a request, kept or made at the edge and returned to the client.
pub const REQUEST_ID: &str = "x-request-id";
/// W3C trace context, passed on to workers.
pub const TRACEPARENT: &str = "traceparent";

/// Companion of `traceparent`: vendors' own state of the trace.
pub const TRACESTATE: &str = "tracestate";
/// Owner of a request, for fair sharing between clients.
pub const FAIRNESS_ID: &str = "x-llm-d-inference-fairness-id";
/// API key in a header of its own, as Anthropic's clients send it.
pub const API_KEY: &str = "x-api-key";
/// API key as clients of OpenAI's models at Azure send it.
pub const AZURE_KEY: &str = "api-key";
/// Names of a request's fields that changed nothing, on its answer.
pub const IGNORED: &str = "x-stator-ignored";
/// The tenant that a request is for: its prompts share no cached prefix with those of others.
///
/// Source: the headers of NVIDIA Dynamo's frontend.
pub const TENANT_ID: &str = "x-tenant-id";
/// The session that a request belongs to: our name, Dynamo's, and that of one agent which both
/// Dynamo and the llm-d router know. The first that is there counts.
pub const SESSION: [&str; 3] = ["x-session-id", "x-dynamo-session-id", "x-claude-code-session-id"];
/// Labels that the worker of a request must have, with commas between them: `pool=batch, zone=a`.
/// One with a weight is preferred instead: `gpu=h200;weight=0.5`.
pub const LABELS: &str = "x-stator-labels";
/// Longest wait for room, see [`crate::duration`].
pub const TTL: &str = "x-llm-d-inference-ttl";
/// Objective for the time to the first token, in milliseconds, and its deprecated name.
pub const SLO_TTFT: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];
/// The worker that served a request, set on responses.
pub const WORKER_ID: &str = "x-stator-worker-id";

/// The worker that is to answer, in decimal, and its rank. The first that is there counts.
///
/// Source: the headers of NVIDIA Dynamo with their older names, as for the next group.
pub const WORKER_PINS: [&str; 2] = ["x-dynamo-worker-instance-id", "x-worker-instance-id"];
/// Rank of the worker that is to answer.
pub const RANK_PINS: [&str; 3] = ["x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank"];
/// The worker that is to compute the prompt, in decimal.
pub const PREFILL_PINS: [&str; 2] = ["x-dynamo-prefill-instance-id", "x-prefill-instance-id"];
/// Rank of the worker that is to compute the prompt.
pub const PREFILL_RANK_PINS: [&str; 2] = ["x-dynamo-prefill-dp-rank", "x-prefill-dp-rank"];

/// The endpoint that a request goes to, `ip:port`: a header and a key in [`LB_NAMESPACE`].
///
/// Source: the endpoint picker protocol of the Gateway API Inference Extension, proposal 004, as
/// for the other names of this group.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Namespace of the dynamic metadata in which a picker repeats the destination.
pub const LB_NAMESPACE: &str = "envoy.lb";
/// Namespace of the metadata in which a data plane names the endpoints it allows.
pub const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// Key of the allowed endpoints in [`SUBSET_NAMESPACE`].
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Key of the endpoint that gave the answer in [`LB_NAMESPACE`].
pub const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Key of the scores of all candidates in [`LB_NAMESPACE`].
pub const SCORES: &str = "x-gateway-destination-endpoint-scores";
/// Why a request was dropped, on the answer that refuses it.
pub const DROPPED_REASON: &str = "x-llm-d-request-dropped-reason";

/// Agents that lend the leading blocks of a request's prompt, for the engine that computes the prompt:
/// see [`crate::holders`]. Set by an endpoint picker, read beside the engine.
pub const KV_HOLDERS: &str = "x-stator-kv-holders";

/// Prefix of the names of our own headers. A client's copy of one never reaches a worker.
pub const OWN_PREFIX: &str = "x-stator-";

/// Prefix of SGLang's headers that override fields of a body.
pub const OVERRIDE_PREFIX: &str = "x-override-";

/// Headers that steer pickers, sidecars and engines, in lower case. A client's copy of one never
/// reaches a worker: it could choose the worker, or make one connect to any address.
///
/// Source: the system and disaggregation headers of the llm-d router with their deprecated
/// aliases, and the worker headers of Dynamo with theirs.
pub const ROUTING: [&str; 36] = [
    DESTINATION,
    SUBSET,
    SERVED,
    SCORES,
    "x-gateway-destination-endpoint-fallback",
    DROPPED_REASON,
    WORKER_ID,
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    FAIRNESS_ID,
    "x-gateway-inference-fairness-id",
    TTL,
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    SLO_TTFT[0],
    SLO_TTFT[1],
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    WORKER_PINS[0],
    WORKER_PINS[1],
    PREFILL_PINS[0],
    PREFILL_PINS[1],
    RANK_PINS[0],
    RANK_PINS[1],
    RANK_PINS[2],
    PREFILL_RANK_PINS[0],
    PREFILL_RANK_PINS[1],
    "x-dynamo-routing-mode",
    "x-dynamo-epp-booking-id",
];
