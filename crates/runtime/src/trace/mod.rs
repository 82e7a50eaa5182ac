//! Traces: spans of requests, sent over OTLP (gRPC) to a collector.
//!
//! They are on where the standard environment names a collector, and free where it does not: a
//! span with [`TARGET`] then has no listener, which `tracing` remembers per call site. Such a span
//! is `tracing::info_span!(target: trace::TARGET, "pick", otel.kind = "server", model)`: its
//! fields are the attributes. Fields named `otel.` (`name`, `kind`, `status_code`) are
//! tracing-opentelemetry's. The log never shows these spans, so that nothing is told twice.

mod context;
mod export;
mod settings;
mod stages;
#[cfg(test)]
mod tests;

pub use context::{Parent, parent_from, traceparent_of, tracestate_of};
pub(crate) use settings::TraceSettings;
pub use stages::Stages;

pub use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::time::Duration;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, Registry};

/// The target of every span and event that is for traces. Its levels are `INFO` and above.
pub const TARGET: &str = "otel";

/// Longest time that the end of the process waits for a collector to take the last spans.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Only OTLP over gRPC is spoken.
    #[error("{variable}: {value:?} is not supported, only \"grpc\" is")]
    Protocol {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The exporter refused its settings, mostly the endpoint.
    #[error("cannot send traces to {endpoint:?}: {error}")]
    Exporter {
        /// The collector's URL.
        endpoint: String,
        /// Why.
        error: opentelemetry_otlp::ExporterBuildError,
    },
    /// The thread that sends could not be started.
    #[error("cannot start the thread that sends traces: {0}")]
    Thread(#[from] std::io::Error),
}

/// Keeps traces flowing; to be held for as long as the process runs. Dropping it sends what is
/// left and waits [`FLUSH_LIMIT`] for that, at most.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the sending of traces"]
pub struct Traces(Option<SdkTracerProvider>);

/// Takes the spans of [`TARGET`].
pub(crate) type Spans = Box<dyn Layer<Registry> + Send + Sync>;

/// A layer that takes spans, and what sends them; neither where traces are off. Finished spans
/// wait in a queue of 2048, or what `OTEL_BSP_MAX_QUEUE_SIZE` says; what does not fit is lost.
pub(crate) fn start(
    settings: Option<TraceSettings>,
) -> Result<(Option<Spans>, Traces), TraceError> {
    let Some(settings) = settings else { return Ok((None, Traces::default())) };
    let mut resource = Resource::builder();
    if let Some(name) = settings.service {
        resource = resource.with_service_name(name);
    }
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_batch_exporter(export::Exporter::new(&settings.endpoint)?)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("stator"))
        // Where in the code a span was made, on which thread, and how long it was not polled:
        // more bytes than the rest of a span, and nobody who reads a trace asks for them.
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        // Nothing here uses the thread's current OpenTelemetry context.
        .with_context_activation(false)
        .with_filter(Targets::new().with_target(TARGET, Level::INFO));
    Ok((Some(layer.boxed()), Traces(Some(provider))))
}

impl Traces {
    /// Sends what is left, for at most `limit`, and takes nothing more.
    fn shutdown(&mut self, limit: Duration) -> OTelSdkResult {
        self.0.take().map_or(Ok(()), |provider| provider.shutdown_with_timeout(limit))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.shutdown(FLUSH_LIMIT) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}
