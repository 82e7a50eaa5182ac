//! The longest lists of settings that only experts change.

/// Limits and thresholds of placement.
pub(crate) const ROUTER_DETAILS: &[&str] = &[
    "router-active-request-expiry-s",
    "router-predicted-ttl-s",
    "router-lru-blocks",
    "router-index-max-bytes",
    "router-split-uncached-tokens",
    "router-split-uncached-share",
    "router-split-prefill-tokens",
    "active-prefill-tokens-threshold-frac",
];

/// Places of MoRI-IO's engines, and retries of prefill.
pub(crate) const HANDOVER_DETAILS: &[&str] = &[
    "moriio-parallel-dispatch",
    "moriio-parallel-decode-wait-timeout",
    "moriio-decode-handshake-port",
    "moriio-decode-notify-port",
    "moriio-prefill-handshake-port",
    "moriio-prefill-notify-port",
    "moriio-tp-size",
    "moriio-dp-size",
    "moriio-dp-size-local",
    "moriio-remote-hosts",
    "moriio-decode-hosts",
    "prefill-max-retries",
    "prefill-retry-backoff",
    "encode-timeout-ms",
];

/// Limits of the picker's streams, and flags that are accepted for compatibility.
pub(crate) const PICKER_DETAILS: &[&str] = &[
    "grpc-max-recv-msg-size",
    "max-concurrent-streams",
    "max-index-blocks",
    "refresh-metrics-interval",
    "metrics-staleness-threshold",
    "max-bodies-bytes",
    "max-header-bytes",
    "max-headers",
    "max-streamed-bytes",
    "unknown-fields",
    "enable-grpc-stream-metrics",
    "grpc-max-send-msg-size",
    "refresh-prometheus-metrics-interval",
    "enable-pprof",
    "health-checking",
    "zap-devel",
    "zap-stacktrace-level",
    "zap-time-encoding",
];

/// Details of the simulated fleet, its edges and its faults.
pub(crate) const SIMULATE_DETAILS: &[&str] = &[
    "host-gb-s",
    "host-policy",
    "disk-gb-s",
    "disk-write-gb-s",
    "disk-latency-ms",
    "host-selective",
    "disk-admission",
    "object-gb-s",
    "object-write-gb-s",
    "object-latency-ms",
    "object-known-ms",
    "local-gb-s",
    "remote-gb-s",
    "host-workers",
    "report-interval-ms",
    "event-delay-ms",
    "peer-interval-ms",
    "peer-delay-ms",
    "adapter-copies",
    "stragglers",
    "straggler-slowdown",
    "event-loss",
    "report-loss",
    "resync-ms",
];
