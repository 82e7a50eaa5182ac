//! Logs: structured events on standard error.

use crate::trace::{self, Spans, Traces};
use clap::ValueEnum;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Format of log lines.
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
    /// Log filter: a level (error, warn, info, debug, trace), or directives such as
    /// `info,stator_proxy=debug`.
    #[arg(long, env = "STATOR_LOG_LEVEL", default_value = "info", value_name = "FILTER")]
    pub log_level: String,

    /// Format of log lines.
    #[arg(long, env = "STATOR_LOG_FORMAT", default_value = "text", value_enum)]
    pub log_format: Format,
}

/// Starts logging for the process, and traces where the environment asks for them. `service`
/// names the process in traces unless the environment does: `stator-proxy`.
///
/// What it returns is to be held until the process ends: dropping it sends the last traces.
///
/// # Errors
///
/// When the filter does not parse, traces cannot be sent, or logging was started before.
pub fn init(args: &LogArgs, service: &str) -> anyhow::Result<Traces> {
    let settings = trace::TraceSettings::from_env(service, |name| std::env::var(name).ok())?;
    let (spans, traces) = trace::start(settings)?;
    subscriber(args, spans)?
        .try_init()
        .map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))?;
    Ok(traces)
}

/// Lines on standard error for what `args` lets through, and `spans` beside them.
pub(crate) fn subscriber(
    args: &LogArgs,
    spans: Option<Spans>,
) -> anyhow::Result<impl Subscriber + Send + Sync + use<>> {
    // The Kubernetes library calls each failed connection an error; those
    // who make it say so themselves, once. Spans for traces are not for the log.
    let quiet = format!("kube_client=off,{}=off", trace::TARGET);
    let filter = EnvFilter::try_new(format!("{quiet},{}", args.log_level))
        .map_err(|error| anyhow::anyhow!("log-level: {:?}: {error}", args.log_level))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match args.log_format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    // One list, because each layer here has a filter of its own: what none of them wants is then
    // skipped where it is called. A `None` in place of `spans` would count as one that wants all.
    let layers: Vec<_> = spans.into_iter().chain([lines.with_filter(filter).boxed()]).collect();
    Ok(tracing_subscriber::registry().with(layers))
}

/// Counts an event that may come very often and is logged seldom.
#[derive(Debug, Default)]
pub struct Occurrences {
    unlogged: u64,
    logged: Option<Instant>,
}

impl Occurrences {
    /// Notes that the event happened at `now`. Returns how often it happened since the last log
    /// line, if a line is due: at the first time, and then once per `period` at most.
    pub fn note(&mut self, now: Instant, period: Duration) -> Option<u64> {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now.duration_since(logged) < period) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_once_per_period_and_none_is_forgotten() {
        let (mut occurrences, begin) = (Occurrences::default(), Instant::now());
        let mut note =
            |ms| occurrences.note(begin + Duration::from_millis(ms), Duration::from_secs(10));
        assert_eq!(note(0), Some(1));
        assert_eq!((note(100), note(9_900)), (None, None));
        assert_eq!(note(10_000), Some(3));
        assert_eq!(note(10_100), None);
    }
}
