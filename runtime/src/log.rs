//! Logs: structured events on standard error.

use clap::ValueEnum;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Log flags, the same for every role.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// What to log: a level (error, warn, info, debug, trace), or directives such as
    /// `info,stator_proxy=debug`.
    #[arg(long, env = "STATOR_LOG_LEVEL", default_value = "info", value_name = "FILTER")]
    pub log_level: String,

    /// How log lines look.
    #[arg(long, env = "STATOR_LOG_FORMAT", default_value = "text", value_enum)]
    pub log_format: Format,
}

/// Starts logging for the process.
///
/// # Errors
///
/// When the filter does not parse, or logging was started before.
pub fn init(args: &LogArgs) -> anyhow::Result<()> {
    // The ZMQ library warns of sockets that are gone already when it tidies up; who wants to hear
    // that says `zeromq=warn`.
    let filter = EnvFilter::try_new(format!("zeromq=error,{}", args.log_level))
        .map_err(|error| anyhow::anyhow!("log-level: {:?}: {error}", args.log_level))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match args.log_format {
        Format::Text => builder.try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
