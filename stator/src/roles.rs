//! The roles as a newcomer meets them: the settings of a first day, examples, and the settings that
//! only experts change.

use crate::expert_settings::{HANDOVER_DETAILS, PICKER_DETAILS, ROUTER_DETAILS, SIMULATE_DETAILS};
use crate::role_help::RoleHelp;
use stator_proxy::COST_FLAGS;

/// Limits of what one client may hold and how long it may take.
const CLIENT_LIMITS: &[&str] = &[
    "max-bodies-bytes",
    "max-header-bytes",
    "max-streams-per-connection",
    "address-share-percent",
    "header-timeout-ms",
    "keep-alive-timeout-ms",
    "body-timeout-ms",
    "body-deadline-ms",
    "write-timeout-ms",
];

/// Limits of what one API key may hold, and ask for in a minute.
const KEY_LIMITS: &[&str] = &["key-share-percent", "requests-per-minute", "tokens-per-minute"];

/// Treatment of requests that is right for nearly everybody.
const API_DETAILS: &[&str] = &[
    "unknown-fields",
    "cors-origins",
    "client-ca-file",
    "kserve-grpc-port",
    "prefix-secret-file",
    "tool-call-parser",
    "reasoning-parser",
];

/// Bounds of responses that are kept.
const KEPT_RESPONSES: &[&str] = &[
    "responses-max-bytes",
    "responses-store",
    "responses-max",
    "responses-ttl-s",
    "stream-comment-ms",
];

/// Forecasts and times of the planner that are right for nearly everybody.
const PLANNER_DETAILS: &[&str] = &[
    "prefill-timing",
    "metrics-ca-file",
    "load-predictor-log1p",
    "kalman-q-level",
    "kalman-q-trend",
    "kalman-r",
    "batch-max",
    "step-tokens",
    "osl",
    "cache-life-s",
    "cold-s",
];

/// Limits that hardly matter on one machine.
const UP_DETAILS: &[&str] = &[
    "agent-silence-ms",
    "model-linger-s",
    "max-waiting",
    "pooling",
    "sim-step-ms",
    "kv-socket-dir",
    "kv-key-file",
    "kv-disk-write-mb-s",
    "kv-object-gb",
    "kv-tenant-share-percent",
    "kv-pin-share-percent",
    "kv-pin-max-s",
    "kv-metrics-names",
];

/// Further paths of engines behind a proxy.
const PASSAGE_DETAILS: &[&str] = &["pass-paths"];

/// Watch over a started engine, and buffers of the agent.
const AGENT_DETAILS: &[&str] = &[
    "serve-adapters",
    "engine-hang-timeout-s",
    "engine-restarts",
    "kv-socket-dir",
    "kv-key-file",
    "kv-disk-write-mb-s",
    "kv-object-gb",
    "kv-tenant-share-percent",
    "kv-pin-share-percent",
    "kv-pin-max-s",
    "kv-metrics-names",
    "engine-follower",
    "outlive",
    "kv-nixl",
    "kv-handover-mb",
    "pooling",
    "sim-step-ms",
    "engine-stop-grace-s",
    "engine-metrics-max-bytes",
    "canary-idle-s",
    "prefill-silence-ms",
    "trtllm-schedule",
    "lease-ms",
    "event-log-bytes",
    "load-interval-ms",
    "max-requests-per-stream",
];

/// The material of made-up prompts.
const BENCH_DETAILS: &[&str] = &[
    "quickack",
    "pid-children",
    "words",
    "vocab-size",
    "length-spread",
    "limit",
    "profile-prompts",
    "profile-batches",
    "profile-tokens",
    "profile-repeats",
    "profile-step-tokens",
    "profile-gpus",
];

/// All roles, in the order of `stator --help`.
pub(crate) const ROLES: [RoleHelp; 13] = [
    RoleHelp {
        name: "up",
        about: "A proxy, agents and their workers on this machine",
        first: &[
            "http-port",
            "http-host",
            "workers",
            "engine",
            "model",
            "model-name",
            "total-blocks",
            "sim-preset",
            "router-mode",
            "api-keys-file",
        ],
        examples: [
            ("stator up", "two workers with the bundled model, on port 8000"),
            ("stator up --model /models/Qwen3-0.6B --workers 1", "a model of yours, on the CPU"),
        ],
        experts: &[
            CLIENT_LIMITS,
            KEY_LIMITS,
            API_DETAILS,
            KEPT_RESPONSES,
            COST_FLAGS,
            ROUTER_DETAILS,
            UP_DETAILS,
        ],
    },
    RoleHelp {
        name: "proxy",
        about: "The OpenAI endpoint over the workers of all agents",
        first: &[
            "http-host",
            "http-port",
            "discovery",
            "api-keys-file",
            "secure-serving",
            "trusted-gateways",
            "active-requests-threshold",
            "router-split",
            "max-concurrent-requests",
            "peers",
        ],
        examples: [
            ("stator proxy", "before the agents of this machine, on port 8000"),
            (
                "stator proxy --http-host 0.0.0.0 --discovery etcd://10.0.0.1:2379 --api-keys-file keys",
                "before a fleet, for clients with a key",
            ),
        ],
        experts: &[
            CLIENT_LIMITS,
            KEY_LIMITS,
            API_DETAILS,
            KEPT_RESPONSES,
            COST_FLAGS,
            ROUTER_DETAILS,
            PASSAGE_DETAILS,
        ],
    },
    RoleHelp {
        name: "sidecar",
        about: "The proxy beside one engine, in place of llm-d's routing sidecar",
        first: &[
            "http-port",
            "engine-port",
            "connector",
            "prefill-allow",
            "prefill-fallback",
            "prefill-timeout-ms",
            "data-parallel-size",
            "pass-fields",
            "decode-chunk-size",
            "secure-serving",
        ],
        examples: [
            ("stator sidecar --engine-port 8200 --connector nixlv2", "beside a vLLM that decodes"),
            (
                "stator sidecar --connector sglang --prefill-allow 10.1.0.0/16",
                "beside SGLang, with prompts computed in one network alone",
            ),
        ],
        experts: &[CLIENT_LIMITS, HANDOVER_DETAILS, PASSAGE_DETAILS, &["unknown-fields"]],
    },
    RoleHelp {
        name: "epp",
        about: "The endpoint picker of a gateway",
        first: &[
            "pool-name",
            "pool-namespace",
            "endpoints-file",
            "config-file",
            "tokenizer-path",
            "kv-events-port",
            "agent-port",
            "peers",
            "response-path",
            "explain",
        ],
        examples: [
            ("stator epp --pool-name vllm", "for the InferencePool `vllm` of this namespace"),
            (
                "stator epp --endpoints-file endpoints.yaml --secure-serving=false",
                "for the endpoints of a file, without Kubernetes",
            ),
        ],
        experts: &[PICKER_DETAILS],
    },
    RoleHelp {
        name: "agent",
        about: "Starts or follows an engine, and publishes its KV events and load",
        first: &[
            "engine",
            "model",
            "attach",
            "role",
            "listen",
            "metrics-port",
            "request-tls-cert-dir",
            "advertise-host",
            "discovery",
            "fleet-secret-file",
        ],
        examples: [
            ("stator agent --engine vllm --model /models/Qwen3-8B", "starts vLLM"),
            (
                "stator agent --engine sglang --attach http://127.0.0.1:30000",
                "follows a running SGLang",
            ),
        ],
        experts: &[AGENT_DETAILS],
    },
    RoleHelp {
        name: "operate",
        about: "Asks an agent to do something to its engine",
        first: &[
            "agent",
            "operations-token-file",
            "request-tls-ca-file",
            "request-tls-cert-dir",
            "request-tls-server-name",
        ],
        examples: [
            ("stator operate reset-cache", "makes this machine's engine forget cached prefixes"),
            (
                "stator operate --agent http://10.0.0.7:7000 kv-status",
                "shows the KV tiers of another machine's agent",
            ),
        ],
        experts: &[],
    },
    RoleHelp {
        name: "chat",
        about: "A conversation with a model, in a terminal or a pipe",
        first: &[
            "model",
            "system",
            "max-tokens",
            "temperature",
            "tools-file",
            "hide-reasoning",
            "api-key",
            "ca-file",
            "insecure",
        ],
        examples: [
            ("stator chat", "with the first model of the server on port 8000"),
            (
                "stator chat https://llm.example.org --model org/name",
                "with a model of a server over TLS",
            ),
        ],
        experts: &[],
    },
    RoleHelp {
        name: "bench",
        about: "Load on any endpoint of the OpenAI API, and trace replay",
        first: &[
            "url",
            "model",
            "concurrency",
            "requests",
            "duration",
            "rate",
            "prompt-tokens",
            "output-tokens",
            "trace",
            "html",
        ],
        examples: [
            ("stator bench --concurrency 32 --duration 30s", "32 requests at a time, on port 8000"),
            (
                "stator bench --url http://10.0.0.1:8000 --trace trace.jsonl --html report.html",
                "replays a trace, and writes a page with plots",
            ),
        ],
        experts: &[BENCH_DETAILS],
    },
    RoleHelp {
        name: "plan",
        about: "Deployment for a model, a kind of GPU and two latency targets",
        first: &[
            "model", "gpu", "gpus", "isl", "osl", "rate", "ttft-ms", "itl-ms", "html", "manifest",
        ],
        examples: [
            (
                "stator plan --model Qwen3-32B --gpu h100-sxm --gpus 16 --rate 12",
                "the fewest GPUs for 12 requests a second",
            ),
            (
                "stator plan --model Qwen3-32B --gpu h200-sxm --gpus 8 --itl-ms 25 --html plan.html",
                "the most of 8 GPUs, and a page with plots",
            ),
        ],
        experts: &[&["seed", "tables"]],
    },
    RoleHelp {
        name: "planner",
        about: "Counts the workers that a fleet needs, and asks for them",
        first: &[
            "models",
            "optimization-target",
            "ttft-ms",
            "itl-ms",
            "timing",
            "metrics-url",
            "mode",
            "replicas-file",
            "scale",
            "discovery",
        ],
        examples: [
            (
                "stator planner --models org/name --out advice.json",
                "advice for a fleet, changing nothing",
            ),
            (
                "stator planner --models org/name --mode disaggregated --optimization-target sla \
                 --timing h100-llama-8b --metrics-url http://127.0.0.1:9090/metrics \
                 --replicas-file replicas.json",
                "the fewest workers within latency targets, for a supervisor that follows the file",
            ),
        ],
        experts: &[PLANNER_DETAILS],
    },
    RoleHelp {
        name: "simulate",
        about: "Placement policies on a simulated fleet, in virtual time",
        first: &[
            "policy",
            "mix",
            "trace",
            "rate",
            "workers",
            "prefill",
            "decode",
            "seeds",
            "deaths-per-hour",
            "html",
        ],
        examples: [
            ("stator simulate --mix chat --rate 12", "all policies on a made-up workload"),
            (
                "stator simulate --policy stator,round-robin --prefill 2 --decode 6",
                "two policies, with prefill and decode on workers of their own",
            ),
        ],
        experts: &[SIMULATE_DETAILS],
    },
    RoleHelp {
        name: "operator",
        about: "Manifests of NVIDIA Dynamo's operator, and the objects that they lead to",
        first: &["images", "models", "keep-modules"],
        examples: [
            (
                "stator operator explain graph.yaml",
                "prints the objects, and what has no counterpart",
            ),
            ("stator operator crds", "prints the custom resource definitions"),
        ],
        experts: &[],
    },
    RoleHelp {
        name: "doctor",
        about: "Says what is wrong with a machine or a cluster, and what to do about it",
        first: &[
            "model",
            "engine",
            "ports",
            "clock",
            "namespace",
            "roles",
            "account",
            "kubeconfig",
            "json",
        ],
        examples: [
            ("stator doctor", "this machine, before `stator up`"),
            (
                "stator doctor cluster --namespace graphs --roles operator --account stator-operator",
                "a cluster, and the rights of an operator in it",
            ),
        ],
        experts: &[],
    },
];
