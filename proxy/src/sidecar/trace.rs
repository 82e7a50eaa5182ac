//! Spans of requests beside an engine.
//!
//! Source: names of spans and attributes of llm-d's routing sidecar.

use crate::exchange::Exchange;
use crate::upstream::headers;
use crate::upstream::target::Target;
use http::HeaderName;
use pingora::http::RequestHeader;
use stator_handover::Connector;
use stator_runtime::trace::{self, TARGET};
use std::time::Duration;
use tracing::Span;
use tracing::field::Empty;

const TRACEPARENT: &str = "traceparent";

/// A request from its arrival to the end of its answer, within the trace that it names.
pub(crate) fn request(exchange: &Exchange) -> Span {
    let span = tracing::info_span!(
        target: TARGET, "forward_request", otel.kind = "server",
        llm_d.pd_proxy.request_id = exchange.request_id(),
        llm_d.pd_proxy.connector = Empty,
        llm_d.pd_proxy.prefill_target = Empty,
        llm_d.ec_proxy.encode_disaggregation_used = Empty,
        llm_d.ec_proxy.encoder_count = Empty,
        llm_d.pd_proxy.true_ttft_ms = Empty,
        llm_d.pd_proxy.total_duration_ms = Empty,
        llm_d.pd_proxy.coordinator_overhead_ms = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    let header = |name: &str| exchange.request().headers.get(name)?.to_str().ok();
    let parent = header(TRACEPARENT);
    if let Some(parent) = parent.and_then(|it| trace::parent_from(it, header("tracestate"))) {
        parent.adopt(&span);
    }
    span
}

/// Has an engine continue the trace of `span`; where traces are off, it continues the client's.
pub(crate) fn pass_on(head: &mut RequestHeader, span: &Span) {
    if let Some(value) = trace::traceparent_of(span).and_then(|value| value.parse().ok()) {
        headers::insert(head, HeaderName::from_static(TRACEPARENT), value);
    }
}

/// Records a hand-over's connector and prefill engine on the request's span.
pub(crate) fn hands_over(connector: Connector, prefiller: Option<&Target>) {
    let span = Span::current();
    span.record("llm_d.pd_proxy.connector", connector.name());
    if let Some(prefiller) = prefiller {
        span.record("llm_d.pd_proxy.prefill_target", tracing::field::display(prefiller));
    }
}

/// So many encoders are asked, on the request's span.
pub(crate) fn encodes(encoders: usize) {
    let span = Span::current();
    span.record("llm_d.ec_proxy.encode_disaggregation_used", true);
    span.record("llm_d.ec_proxy.encoder_count", encoders);
}

/// Encoding of so many items elsewhere; its duration is recorded by [`encoded`].
pub(crate) fn encode(items: usize) -> Span {
    tracing::info_span!(
        target: TARGET, "encode", otel.kind = "client",
        llm_d.ec_proxy.items = items,
        llm_d.ec_proxy.encode.duration_ms = Empty,
    )
}

/// Encoding took so long.
pub(crate) fn encoded(span: &Span, took: Duration) {
    span.record("llm_d.ec_proxy.encode.duration_ms", ms(took));
}

/// The answer is over, so long after the request came.
pub(crate) fn ended(span: &Span, after: Duration) {
    span.record("llm_d.pd_proxy.total_duration_ms", ms(after));
}

/// Prefill elsewhere; its duration is recorded by [`prefilled`].
pub(crate) fn prefill(connector: Connector, prefiller: &Target) -> Span {
    macro_rules! span {
        ($name:literal) => {
            tracing::info_span!(
                target: TARGET, $name, otel.kind = "client",
                llm_d.pd_proxy.prefill_target = %prefiller,
                llm_d.pd_proxy.prefill.duration_ms = Empty,
            )
        };
    }
    match at_once(connector) {
        true => span!("llm_d.pd_proxy.prefill"),
        false => span!("prefill"),
    }
}

/// Prefill took so long.
pub(crate) fn prefilled(span: &Span, took: Duration) {
    span.record("llm_d.pd_proxy.prefill.duration_ms", ms(took));
}

/// Records on the request's span how long it took to make decode's request of prefill's answer.
pub(crate) fn coordinated(took: Duration) {
    Span::current().record("llm_d.pd_proxy.coordinator_overhead_ms", ms(took));
}

/// Decoding beside this proxy, until the answer's head.
pub(crate) fn decode(connector: Connector) -> Span {
    match at_once(connector) {
        true => {
            tracing::info_span!(target: TARGET, "llm_d.pd_proxy.decode", otel.kind = "client")
        }
        false => tracing::info_span!(target: TARGET, "decode", otel.kind = "client"),
    }
}

/// Whether a connector's spans have the longer names.
fn at_once(connector: Connector) -> bool {
    matches!(connector, Connector::Mooncake | Connector::Offloading)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
