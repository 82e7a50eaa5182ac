//! Spans of completions in the standalone proxy: one tree for a request, across its workers.
//!
//! `gateway.request` lasts from the request's head to the end of its answer. Its stages are
//! `receive`, `parse`, `tokenize`; then each prompt has a `generate` for its work on one worker, and
//! a `migrate` for each further worker, with the stages `queue`, `prefill` and `decode`. The agent
//! continues the tree under them.
//!
//! Source: OpenTelemetry's semantic conventions for generative AI (`gen_ai.…`); `gateway.request`
//! is the picker's name.

use stator_api::Api;
use stator_api::delta::Usage;
use stator_placement::Decision;
use stator_protos::WorkerRank;
use stator_runtime::trace::{KeyValue, Parent, Stages, TARGET};
use std::num::NonZeroU32;

/// Most candidates whose costs a span lists.
const CANDIDATES_MAX: usize = 32;

/// A completion from its head to the end of its answer, under the span of the client that `parent`
/// gives.
pub(crate) fn request(
    api: Api,
    request_id: &str,
    parent: impl FnOnce() -> Option<Parent>,
) -> Stages {
    let operation = match api {
        Api::Completions => "text_completion",
        Api::Embeddings | Api::Pooling | Api::Rerank | Api::Score | Api::Classify => "embeddings",
        _ => "chat",
    };
    let span = tracing::info_span!(
        target: TARGET, "gateway.request", otel.kind = "server",
        gen_ai.operation.name = operation,
        gen_ai.request.id = request_id,
    );
    Stages::begin(span, parent)
}

/// The work of a prompt on one worker: its first, or the one that goes on after `lost` failed.
pub(crate) fn work(request: &Stages, lost: Option<WorkerRank>) -> Stages {
    let Some(lost) = lost else { return request.part("generate") };
    let work = request.part("migrate");
    work.set("stator.lost_worker", lost.to_string());
    work
}

/// Notes the worker that was picked, why, and the cost of each candidate. The pick is an event
/// of `queue`: the queue tries it until a worker has room, and only the one that succeeds is seen.
pub(crate) fn picked(
    work: &Stages,
    decision: &Decision,
    prompt_tokens: u32,
    block_size: NonZeroU32,
) {
    if !work.is_sampled() {
        return;
    }
    work.set("stator.worker", decision.worker.to_string());
    if let Some(prefill) = &decision.prefill {
        work.set("stator.prefill_worker", prefill.worker.to_string());
    }
    let costs = decision.candidates.iter().take(CANDIDATES_MAX);
    let costs = costs.map(|it| format!("{}={:.4}", it.worker, it.score.total)).collect::<Vec<_>>();
    let prefix = decision.sources.of_prompt(prompt_tokens, block_size.get());
    let attributes = vec![
        KeyValue::new("stator.reason", format!("{:?}", decision.reason)),
        KeyValue::new("stator.cached_tokens", i64::from(decision.cached_tokens)),
        KeyValue::new("stator.prefix", prefix.to_string()),
        KeyValue::new("stator.costs", costs.join(" ")),
    ];
    work.event("picked", attributes);
}

/// The answer is whole, and took so many tokens.
pub(crate) fn answered(request: &Stages, usage: Usage) {
    request.set("gen_ai.usage.input_tokens", i64::from(usage.prompt_tokens));
    request.set("gen_ai.usage.output_tokens", i64::from(usage.completion_tokens));
}
