//! Sending batches of spans, on a thread of its own.
//!
//! The thread has its own runtime, because spans are still sent after the process's runtime has
//! ended, and because logging starts before there is one.

use super::TraceError;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as Export};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::ClientTlsConfig;

/// Longest time for one batch with all its attempts. It is longer than the exporter's own limit (10
/// s, or the value of `OTEL_EXPORTER_OTLP_TIMEOUT`), which does not cover connecting.
const EXPORT_LIMIT: Duration = Duration::from_secs(30);

/// Interval of logs about lost spans.
const LOSSES_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Sends batches to a collector.
#[derive(Debug)]
pub(super) struct Exporter {
    otlp: SpanExporter,
    handle: Handle,
    losses: Mutex<Losses>,
    /// Last, so that what uses it is gone before.
    _runtime: Background,
}

/// A runtime that ends without waiting for what still runs on it.
#[derive(Debug)]
struct Background(Option<Runtime>);

/// Spans that were lost and not told of yet.
#[derive(Debug, Default)]
struct Losses {
    spans: usize,
    told: Option<Instant>,
}

impl Exporter {
    pub(super) fn new(endpoint: &str) -> Result<Self, TraceError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("otlp")
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let _inside = handle.enter();
        let mut builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
        if endpoint.starts_with("https:") {
            crate::tls::install_provider();
            builder = builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let otlp = builder
            .build()
            .map_err(|error| TraceError::Exporter { endpoint: endpoint.to_owned(), error })?;
        let _runtime = Background(Some(runtime));
        Ok(Self { otlp, handle: handle.clone(), losses: Mutex::default(), _runtime })
    }
}

impl Export for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = {
            // The timer needs the runtime, the thread that sends is not one of its own.
            let _inside = self.handle.enter();
            tokio::time::timeout(EXPORT_LIMIT, self.otlp.export(batch))
        };
        let sent = sent.await.unwrap_or(Err(OTelSdkError::Timeout(EXPORT_LIMIT)));
        if let Err(error) = &sent
            && let Some(spans) = self.losses.lock().add(spans, Instant::now())
        {
            tracing::warn!(spans, %error, "traces lost");
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.otlp.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

impl Losses {
    /// Notes a loss; how many spans to tell of, if it is time for that.
    fn add(&mut self, spans: usize, now: Instant) -> Option<usize> {
        self.spans += spans;
        let recently = |told: Instant| now.saturating_duration_since(told) < LOSSES_LOGGED_EVERY;
        if self.told.is_some_and(recently) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.spans))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_at_once_and_then_summed_up() {
        let (mut losses, start) = (Losses::default(), Instant::now());
        let mut add = |spans, after_s| losses.add(spans, start + Duration::from_secs(after_s));
        assert_eq!(add(5, 0), Some(5));
        assert_eq!(add(7, 10), None);
        assert_eq!(add(1, 59), None);
        assert_eq!(add(2, 60), Some(10));
        assert_eq!(add(3, 61), None);
    }
}
