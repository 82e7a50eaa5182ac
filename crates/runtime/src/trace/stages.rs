//! The stages of one request: a span for the request, and under it a span for each stage.

use super::{Parent, TARGET, traceparent_of, tracestate_of};
use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry::{KeyValue, Value};
use parking_lot::Mutex;
use std::sync::Arc;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// A request's span and the span of the stage that the request is in. Both end with the last clone.
///
/// Costs a branch if traces are off. If the sampler leaves the request out, only the request's own
/// span is made, because other processes have to learn that the trace is not sampled.
#[derive(Clone, Debug, Default)]
pub struct Stages(Option<Arc<Spans>>);

/// The spans of a request that is followed.
#[derive(Debug)]
struct Spans {
    // First, because a stage ends before its request.
    stage: Mutex<Span>,
    request: Span,
    is_sampled: bool,
}

impl Stages {
    /// Follows a request whose span is `request`, as a child of `parent` if the request came from
    /// another span.
    pub fn begin(request: Span, parent: impl FnOnce() -> Option<Parent>) -> Self {
        if request.is_disabled() {
            return Self::default();
        }
        if let Some(parent) = parent() {
            parent.adopt(&request);
        }
        let is_sampled = request.context().span().span_context().is_sampled();
        Self(Some(Arc::new(Spans { stage: Mutex::new(Span::none()), request, is_sampled })))
    }

    /// Follows a part of this request that has stages of its own, such as its work on one worker.
    pub fn part(&self, name: &'static str) -> Self {
        let Some(spans) = self.sampled() else { return self.clone() };
        let request = tracing::info_span!(
            target: TARGET, parent: &spans.request, "part", otel.name = name
        );
        Self(Some(Arc::new(Spans { stage: Mutex::new(Span::none()), request, is_sampled: true })))
    }

    /// Begins a stage, and ends the one before.
    pub fn enter(&self, name: &'static str) {
        if let Some(spans) = self.sampled() {
            let mut stage = spans.stage.lock();
            // The stage before ends first, so that stages do not overlap.
            *stage = Span::none();
            *stage = tracing::info_span!(
                target: TARGET, parent: &spans.request, "stage", otel.name = name
            );
        }
    }

    /// Ends the stage, before another begins.
    pub fn leave(&self) {
        if let Some(spans) = self.sampled() {
            *spans.stage.lock() = Span::none();
        }
    }

    /// Whether anybody gets these spans: a caller may save the cost of attributes.
    pub fn is_sampled(&self) -> bool {
        self.sampled().is_some()
    }

    /// Sets an attribute of the request's span.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(spans) = self.sampled() {
            spans.request.set_attribute(key, value);
        }
    }

    /// Adds an event to the stage's span.
    pub fn event(&self, name: &'static str, attributes: Vec<KeyValue>) {
        if let Some(spans) = self.sampled() {
            spans.stage.lock().add_event(name, attributes);
        }
    }

    /// Marks the request's span as failed.
    pub fn fail(&self, why: &str) {
        if let Some(spans) = self.sampled() {
            spans.request.set_status(Status::error(why.to_owned()));
        }
    }

    /// The `traceparent` and `tracestate` of calls on behalf of the request; `None` where traces
    /// are off, and calls then carry on what came in.
    pub fn headers(&self) -> Option<(String, Option<String>)> {
        let spans = self.0.as_ref()?;
        Some((traceparent_of(&spans.request)?, tracestate_of(&spans.request)))
    }

    fn sampled(&self) -> Option<&Spans> {
        self.0.as_deref().filter(|spans| spans.is_sampled)
    }
}
