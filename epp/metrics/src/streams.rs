//! Streams of data planes.

use crate::exposition::{SeriesValue, single, write};
use crate::histogram::Histogram;
use crate::{buckets, names};
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Names of the gRPC status codes, each at its number.
///
/// Source: the status codes of gRPC, as the Go library writes them.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const CANCELED: usize = 1;
const UNKNOWN: usize = 2;

/// Numbers of open and ended streams, and their durations. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Streams(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    open: AtomicU64,
    ended: [AtomicU64; CODES.len()],
    duration: Histogram,
}

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Inner {
            open: AtomicU64::new(0),
            ended: Default::default(),
            duration: Histogram::new(buckets::STREAM_SECONDS),
        }))
    }
}

/// A stream that is open. Dropped without [`OpenStream::ended`], it was cancelled.
#[derive(Debug)]
pub struct OpenStream {
    streams: Streams,
    since: Instant,
    code: usize,
}

impl Streams {
    /// A stream begins; it ends when the value is dropped.
    pub fn opened(&self) -> OpenStream {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        OpenStream { streams: self.clone(), since: Instant::now(), code: CANCELED }
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let open = self.0.open.load(Ordering::Relaxed);
        let ended = self.0.ended.iter().zip(CODES).filter_map(|(count, code)| {
            Some((vec![("code", code)], SeriesValue::count(count.load(Ordering::Relaxed))?))
        });
        let ended: Vec<_> = ended.collect();
        // Who does not want these metrics opens no stream here, and sees none of them.
        if open > 0 || !ended.is_empty() {
            write(
                encoder,
                &names::STREAMS_INFLIGHT,
                &single(Some(SeriesValue::Gauge(open as f64))),
            )?;
        }
        let duration = self.0.duration.read().map(SeriesValue::Histogram);
        write(encoder, &names::STREAM_DURATION, &single(duration))?;
        write(encoder, &names::STREAMS, &ended)
    }
}

impl OpenStream {
    /// The stream ends with this gRPC status code. A code that gRPC lacks counts as `Unknown`.
    pub fn ended(mut self, code: i32) {
        let code = usize::try_from(code).ok().filter(|code| *code < CODES.len());
        self.code = code.unwrap_or(UNKNOWN);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let streams = &self.streams.0;
        streams.open.fetch_sub(1, Ordering::Relaxed);
        streams.ended[self.code].fetch_add(1, Ordering::Relaxed);
        streams.duration.observe_duration(self.since.elapsed());
    }
}
