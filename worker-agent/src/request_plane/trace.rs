//! Spans of requests on workers, within the trace that came with each.

use crate::request_plane::metadata::RequestMetadata;
use stator_engine::Request;
use stator_runtime::trace::{Stages, TARGET, parent_from};

/// The spans of a request on a worker: `worker.generate` or `worker.prefill`. Costs next to nothing
/// where traces are off.
pub(crate) fn request(name: &'static str, request: &Request, metadata: &RequestMetadata) -> Stages {
    let span = tracing::info_span!(
        target: TARGET,
        "worker",
        otel.name = name,
        otel.kind = "server",
        gen_ai.request.id = metadata.client_request_id,
        gen_ai.usage.input_tokens = request.tokens.len(),
        gen_ai.request.choice.count = request.choices,
    );
    let state = Some(&metadata.tracestate).filter(|state| !state.is_empty());
    Stages::begin(span, || parent_from(&metadata.traceparent, state.map(String::as_str)))
}
