//! Logs and traces, by the names that the llm-d router has for them.

use clap::{ArgAction, Args, ValueEnum};
use stator_runtime::log::{Format, LogArgs};

/// Logs and traces, by the names that the llm-d router has for them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct TelemetryArgs {
    /// Verbosity of the log: to 3 as at level info, 4 our own debug, from 5 our own trace. No
    /// effect beside --log-level or --zap-log-level.
    #[arg(short = 'v', long = "v", env = "STATOR_V", value_name = "N")]
    pub verbosity: Option<u32>,

    /// Level of the log: debug, info, error, panic, or a number as for -v. No effect beside
    /// --log-level.
    #[arg(long, env = "STATOR_ZAP_LOG_LEVEL", value_name = "LEVEL", value_parser = zap_level)]
    pub zap_log_level: Option<ZapLevel>,

    /// Format of log lines. No effect beside --log-format.
    #[arg(long, env = "STATOR_ZAP_ENCODER", value_name = "ENCODER")]
    pub zap_encoder: Option<ZapEncoder>,

    /// Sends traces where the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`).
    #[arg(long, env = "STATOR_TRACING", default_value_t = true, action = ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_name = "BOOL")]
    pub tracing: bool,
}

/// Log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZapLevel {
    /// Failures.
    Error,
    /// Events that an operator should know.
    Info,
    /// Our own details.
    Debug,
    /// As much as with this number for `-v`.
    Verbosity(u32),
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ZapEncoder {
    /// One JSON object per event.
    Json,
    /// One readable line per event.
    Console,
}

impl TelemetryArgs {
    /// The log's settings: `own` flags where they were `chosen`, by their ids, else these.
    pub fn log(&self, own: &LogArgs, chosen: impl Fn(&str) -> bool) -> LogArgs {
        let level = self.zap_log_level.or(self.verbosity.map(ZapLevel::Verbosity));
        let format = self.zap_encoder.map(|encoder| match encoder {
            ZapEncoder::Json => Format::Json,
            ZapEncoder::Console => Format::Text,
        });
        LogArgs {
            log_level: match level {
                Some(level) if !chosen("log_level") => level.filter().to_owned(),
                _ => own.log_level.clone(),
            },
            log_format: format.filter(|_| !chosen("log_format")).unwrap_or(own.log_format),
        }
    }
}

impl ZapLevel {
    /// The log's filter. Details are those of our own crates: libraries' would drown them.
    fn filter(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Info | Self::Verbosity(0..=3) => "info",
            Self::Debug | Self::Verbosity(4) => "info,stator=debug",
            Self::Verbosity(5..) => "info,stator=trace",
        }
    }
}

fn zap_level(text: &str) -> Result<ZapLevel, String> {
    match text.to_ascii_lowercase().as_str() {
        "error" | "panic" => Ok(ZapLevel::Error),
        "info" => Ok(ZapLevel::Info),
        "debug" => Ok(ZapLevel::Debug),
        number => number
            .parse()
            .map(ZapLevel::Verbosity)
            .map_err(|_| format!("{text:?} is not debug, info, error, panic or a number")),
    }
}
