//! Metrics of one request.

use crate::buckets;
use crate::family::Child;
use crate::histogram::Histogram;
use stator_body::Usage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Cause of a request's failure: label `error_code`.
///
/// Source: `pkg/common/error` of the llm-d router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The client's mistake.
    BadRequest,
    /// The client is not known.
    Unauthorized,
    /// The client may not do this.
    Forbidden,
    /// The model or the path does not exist.
    NotFound,
    /// A precondition of the client does not hold.
    PreconditionFailed,
    /// The pool or a limit is full.
    ResourceExhausted,
    /// No endpoint can answer now.
    ServiceUnavailable,
    /// The picker's mistake.
    Internal,
    /// The engine answered with an error.
    ModelServerError,
}

impl ErrorCode {
    /// All of them, each at its number.
    pub const ALL: [Self; 9] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::PreconditionFailed,
        Self::ResourceExhausted,
        Self::ServiceUnavailable,
        Self::Internal,
        Self::ModelServerError,
    ];

    /// The code of a status that the picker gives; of one that it never gives, `Internal`.
    pub fn of_status(status: u16) -> Self {
        match status {
            400 | 413 => Self::BadRequest,
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            412 => Self::PreconditionFailed,
            429 => Self::ResourceExhausted,
            503 => Self::ServiceUnavailable,
            _ => Self::Internal,
        }
    }

    /// Its name, in metrics and in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::PreconditionFailed => "PreconditionFailed",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Internal => "Internal",
            Self::ModelServerError => "ModelServerError",
        }
    }
}

/// The end of a request that an endpoint answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct FinishedRequest {
    /// From the request to the end of the answer.
    pub duration: Duration,
    /// From the request to the first token; `None` where nobody saw it.
    pub first_token: Option<Duration>,
    /// Whether the answer was streamed.
    pub streaming: bool,
    /// Tokens it took; `None` where the engine does not say.
    pub usage: Option<Usage>,
    /// Bytes of the answer's body.
    pub response_bytes: u64,
}

/// Counters for the requests of one model, flow and priority. Found once per request, and cheap to
/// clone. Each event costs a few atomic additions: no lock, no hash.
#[derive(Clone, Debug)]
pub struct RequestMetrics(pub(crate) Arc<Child<4, RequestSeries>>);

/// The metrics behind one set of [`crate::RequestLabels`].
#[derive(Debug)]
pub(crate) struct RequestSeries {
    pub received: AtomicU64,
    pub running: AtomicU64,
    pub errors: [AtomicU64; ErrorCode::ALL.len()],
    pub request_bytes: Histogram,
    pub response_bytes: Histogram,
    pub duration: Histogram,
    pub input_tokens: Histogram,
    pub output_tokens: Histogram,
    pub cached_tokens: Histogram,
    pub ntpot: Histogram,
    /// Times of answers in one piece, and of streamed answers.
    pub ttft: [Histogram; 2],
    pub tpot: Histogram,
    pub itl: Histogram,
}

impl RequestSeries {
    pub(crate) fn new() -> Self {
        Self {
            received: AtomicU64::new(0),
            running: AtomicU64::new(0),
            errors: Default::default(),
            request_bytes: Histogram::new(buckets::REQUEST_BYTES),
            response_bytes: Histogram::new(buckets::RESPONSE_BYTES),
            duration: Histogram::new(buckets::REQUEST_SECONDS),
            input_tokens: Histogram::new(buckets::INPUT_TOKENS),
            output_tokens: Histogram::new(buckets::OUTPUT_TOKENS),
            cached_tokens: Histogram::new(buckets::INPUT_TOKENS),
            ntpot: Histogram::new(buckets::NTPOT_SECONDS),
            ttft: [(); 2].map(|()| Histogram::new(buckets::TTFT_SECONDS)),
            tpot: Histogram::new(buckets::TPOT_SECONDS),
            itl: Histogram::new(buckets::ITL_SECONDS),
        }
    }
}

/// A request that runs; it stops when this is dropped.
#[derive(Debug)]
pub struct RunningRequest(RequestMetrics);

impl RequestMetrics {
    /// The model that the client named, as metrics know it.
    pub fn model(&self) -> &str {
        &self.0.labels[0]
    }

    /// The model that the request is sent to, as metrics know it.
    pub fn target_model(&self) -> &str {
        &self.0.labels[1]
    }

    /// The request's flow, as metrics know it.
    pub fn fairness_id(&self) -> &str {
        &self.0.labels[2]
    }

    /// A request came and was understood.
    pub fn received(&self) -> RunningRequest {
        self.0.metric.received.fetch_add(1, Ordering::Relaxed);
        self.0.metric.running.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self.clone())
    }

    /// The request's body has `bytes`.
    pub fn sized(&self, bytes: u64) {
        self.0.metric.request_bytes.observe(bytes as f64);
    }

    /// The picker or the engine failed the request.
    pub fn failed(&self, code: ErrorCode) {
        self.0.metric.errors[code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The first token came `after` the request.
    pub fn first_token(&self, after: Duration, streaming: bool) {
        self.0.metric.ttft[usize::from(streaming)].observe_duration(after);
    }

    /// A chunk of a streamed answer came `after` the one before.
    pub fn chunk(&self, after: Duration) {
        self.0.metric.itl.observe_duration(after);
    }

    /// An answer took the tokens of `usage`; [`RequestMetrics::finished`] counts them too.
    pub fn used(&self, usage: Usage) {
        let series = &self.0.metric;
        if usage.prompt_tokens > 0 {
            series.input_tokens.observe(usage.prompt_tokens.into());
        }
        if let Some(cached) = usage.cached_tokens {
            series.cached_tokens.observe(cached.into());
        }
        if usage.completion_tokens > 0 {
            series.output_tokens.observe(usage.completion_tokens.into());
        }
    }

    /// The answer is complete.
    pub fn finished(&self, finished: &FinishedRequest) {
        let FinishedRequest { duration, first_token, streaming, usage, response_bytes } = *finished;
        let series = &self.0.metric;
        series.duration.observe_duration(duration);
        series.response_bytes.observe(response_bytes as f64);
        let Some(usage) = usage else { return };
        self.used(usage);
        let tokens = usage.completion_tokens;
        if tokens > 0 {
            series.ntpot.observe(duration.as_secs_f64() / f64::from(tokens));
        }
        if let Some(first) = first_token.filter(|_| streaming && tokens > 1) {
            let rest = duration.saturating_sub(first).as_secs_f64();
            series.tpot.observe(rest / f64::from(tokens - 1));
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.0.metric.running.fetch_sub(1, Ordering::Relaxed);
    }
}
