//! Flags of the llm-d router for which there is nothing to do here.

use super::values::{duration, size};
use clap::{ArgAction, Args, ValueEnum};
use std::time::Duration;

/// Flags that are checked and otherwise without effect, so that a deployment's arguments go on
/// working. All of them are optional, to tell which were given.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Accepted for compatibility")]
pub struct CompatArgs {
    /// No effect: messages to data planes are chunks of at most 62000 bytes in full duplex, and
    /// else as large as the one body that they replace.
    #[arg(long, env = "STATOR_GRPC_MAX_SEND_MSG_SIZE", value_name = "SIZE", value_parser = size)]
    pub grpc_max_send_msg_size: Option<u64>,

    /// No effect: metrics are computed when they are read.
    #[arg(long, env = "STATOR_REFRESH_PROMETHEUS_METRICS_INTERVAL", value_name = "DURATION",
          value_parser = duration)]
    pub refresh_prometheus_metrics_interval: Option<Duration>,

    /// No effect: there are no profiles to read.
    #[arg(long, env = "STATOR_ENABLE_PPROF", action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub enable_pprof: Option<bool>,

    /// No effect: health is always served.
    #[arg(long, env = "STATOR_HEALTH_CHECKING", action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub health_checking: Option<bool>,

    /// No effect: use --zap-log-level and --zap-encoder.
    #[arg(long, env = "STATOR_ZAP_DEVEL", action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub zap_devel: Option<bool>,

    /// No effect: the log has no stack traces.
    #[arg(long, env = "STATOR_ZAP_STACKTRACE_LEVEL", value_name = "LEVEL")]
    pub zap_stacktrace_level: Option<StackTraceLevel>,

    /// No effect: times in the log are those of RFC 3339.
    #[arg(long, env = "STATOR_ZAP_TIME_ENCODING", value_name = "ENCODING")]
    pub zap_time_encoding: Option<TimeEncoding>,
}

/// Level from which zap logs stack traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StackTraceLevel {
    /// All but details.
    Info,
    /// Errors.
    Error,
    /// The end of the process.
    Panic,
}

/// Zap's format of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum TimeEncoding {
    /// Seconds since 1970.
    Epoch,
    /// Milliseconds since 1970.
    Millis,
    /// Nanoseconds since 1970.
    Nano,
    /// ISO 8601.
    Iso8601,
    /// RFC 3339, in seconds.
    Rfc3339,
    /// RFC 3339, in nanoseconds.
    Rfc3339nano,
}

impl CompatArgs {
    /// The flags that were given, by name.
    pub(in crate::config) fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("--grpc-max-send-msg-size", self.grpc_max_send_msg_size.is_some()),
            (
                "--refresh-prometheus-metrics-interval",
                self.refresh_prometheus_metrics_interval.is_some(),
            ),
            ("--enable-pprof", self.enable_pprof.is_some()),
            ("--health-checking", self.health_checking.is_some()),
            ("--zap-devel", self.zap_devel.is_some()),
            ("--zap-stacktrace-level", self.zap_stacktrace_level.is_some()),
            ("--zap-time-encoding", self.zap_time_encoding.is_some()),
        ];
        flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect()
    }
}
