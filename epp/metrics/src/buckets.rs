//! Upper bounds of histogram buckets, ascending; the last bucket, without a bound, is not among
//! them.
//!
//! Source: `pkg/epp/metrics` of the llm-d router. Dashboards compute quantiles over replicas of
//! both pickers, so that every bound must be equal, 32778 included.

/// Whole requests, in seconds: 5 ms to 1 hour.
pub const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];

/// Time to first token, in seconds: as whole requests, to 2 minutes.
pub const TTFT_SECONDS: &[f64] = REQUEST_SECONDS.split_at(24).0;

/// Predicted time to first token, in seconds: as whole requests, which it is where first tokens
/// are not timed.
pub const PREDICTED_TTFT_SECONDS: &[f64] = REQUEST_SECONDS;

/// Predicted mean time per output token, in seconds.
pub const PREDICTED_TPOT_SECONDS: &[f64] = &[
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0, 90.0, 120.0,
    180.0, 270.0, 360.0,
];

/// Predictions of latencies, in seconds.
pub const PREDICTION_SECONDS: &[f64] =
    &[0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Mean time per output token of streamed answers, in seconds.
pub const TPOT_SECONDS: &[f64] = &[
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.6, 0.8, 1.0, 2.0,
];

/// Gaps between the chunks of streamed answers, in seconds.
pub const ITL_SECONDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];

/// Duration of a request divided by its output tokens, in seconds.
pub const NTPOT_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Decisions and plug-ins, in seconds.
pub const DECISION_SECONDS: &[f64] =
    &[0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];

/// Waits of flow control, in seconds.
pub const QUEUE_SECONDS: &[f64] = &[
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

/// A request's way through the picker, in seconds.
pub const REQUEST_PROCESSING_SECONDS: &[f64] = &[
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
];

/// The picker's work on an answer, in seconds.
pub const RESPONSE_PROCESSING_SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// Life of a data plane's stream, in seconds.
pub const STREAM_SECONDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Lookups of the KV index, in seconds: the default of Prometheus's Go client.
pub const LOOKUP_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bodies of requests, in bytes: 64 to 1 GiB in powers of two.
pub const REQUEST_BYTES: &[f64] = &[
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
    32768.0,
    65536.0,
    131072.0,
    262144.0,
    524288.0,
    1048576.0,
    2097152.0,
    4194304.0,
    8388608.0,
    16777216.0,
    33554432.0,
    67108864.0,
    134217728.0,
    268435456.0,
    536870912.0,
    1073741824.0,
];

/// Bodies of answers, in bytes.
pub const RESPONSE_BYTES: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    32778.0, 65536.0,
];

/// Tokens of prompts, cached ones too. 32778 is a slip in the source that its tests pin.
pub const INPUT_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    32778.0, 65536.0, 131072.0, 262144.0, 524288.0, 1048576.0,
];

/// Tokens of answers.
pub const OUTPUT_TOKENS: &[f64] = INPUT_TOKENS.split_at(12).0;

/// Share of a prompt that the prefix index knows, 0 to 1.
pub const HIT_RATIO: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Bytes of a prompt that the prefix index knows.
pub const HIT_BYTES: &[f64] = &[
    0.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0,
    65536.0,
];
