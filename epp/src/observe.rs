//! Metrics, traces and log lines of requests. Decides nothing.

use crate::exchange::{Refusal, RequestBody, RequestHead};
use crate::parsed_request::ParsedRequest;
use crate::prompt::Measure;
use stator_body::{Screening, Usage};
use stator_epp_metrics::{
    Disaggregation, EppMetrics, ErrorCode, FinishedRequest, Picks, PluginName, RequestLabels,
    RequestMetrics, RunningRequest, Tokenization, UnscreenedReason,
};
use stator_epp_plugins::AttributeReporter;
use stator_epp_scheduler::Decision;
use stator_protos::header;
use stator_runtime::trace;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Span;
use tracing::field::{Empty, display};

/// Names of the profiles whose picks help another endpoint.
const HELPERS: [&str; 2] = ["prefill", "encode"];

/// Tells of the requests of one pool. Cheap to clone.
#[derive(Clone)]
pub struct Observe(Arc<Inner>);

struct Inner {
    pool: String,
    metrics: Arc<EppMetrics>,
    picks: Picks,
    /// Reporters of dynamic metadata at the end of an answer.
    reporters: Vec<AttributeReporter>,
    /// Name and type of the profile handler, if it is one that splits requests.
    disaggregates: Option<(String, String)>,
}

/// One request, from its reading to the end of its answer.
pub(crate) struct RequestRecord {
    span: Span,
    started: Instant,
    metrics: RequestMetrics,
    /// Counts the request as running while it is there.
    running: Option<RunningRequest>,
    first_token: Option<Duration>,
    /// Time of the answer's last piece.
    last_piece: Option<Instant>,
    /// Time that the picker spent on the answer.
    worked: Duration,
    /// Whether the answer is streamed: as the request asks, until the answer's head says.
    streaming: bool,
}

impl RequestRecord {
    /// The request's trace context, if traces are kept.
    pub(crate) fn traceparent(&self) -> Option<String> {
        trace::traceparent_of(&self.span)
    }

    /// Counters of the request.
    pub(crate) fn metrics(&self) -> &RequestMetrics {
        &self.metrics
    }

    /// The request's span.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// The answer has a status.
    pub(crate) fn status(&self, status: u16) {
        if status >= 400 {
            self.metrics.failed(ErrorCode::ModelServerError);
        }
    }

    /// The answer is of this type: it alone says whether it is streamed, for a client may ask for a
    /// stream and get an error, and an engine may stream unasked. The type of a gRPC answer says
    /// nothing of that.
    pub(crate) fn answered_as(&mut self, content_type: Option<&str>) {
        if let Some(kind) = content_type.filter(|kind| !kind.starts_with("application/grpc")) {
            self.streaming = kind.to_ascii_lowercase().contains("text/event-stream");
        }
    }

    /// A piece of the answer's body came, of `size_bytes`; true if it is the first.
    pub(crate) fn piece(&mut self, now: Instant, size_bytes: usize) -> bool {
        let Some(last) = self.last_piece else {
            let after = now.duration_since(self.started);
            (self.last_piece, self.first_token) = (Some(now), Some(after));
            self.metrics.first_token(after, self.streaming);
            return true;
        };
        // The end of an answer may come as a piece of its own, with nothing in it.
        if size_bytes > 0 {
            self.last_piece = Some(now);
            if self.streaming {
                self.metrics.chunk(now.duration_since(last));
            }
        }
        false
    }

    /// The picker worked on the answer since `began`.
    pub(crate) fn worked(&mut self, began: Instant) {
        self.worked += began.elapsed();
    }

    /// The answer is over, or was given up.
    pub(crate) fn answered(&mut self, usage: Option<Usage>, response_bytes: u64) {
        self.metrics.finished(&FinishedRequest {
            duration: self.started.elapsed(),
            first_token: self.first_token,
            streaming: self.streaming,
            usage,
            response_bytes,
        });
        self.running = None;
    }
}

impl Observe {
    /// Tells of a pool's requests.
    pub fn new(
        pool: &str,
        metrics: Arc<EppMetrics>,
        reporters: Vec<AttributeReporter>,
        disaggregates: Option<(String, String)>,
    ) -> Self {
        let picks = metrics.process.picks(pool);
        let pool = pool.to_owned();
        Self(Arc::new(Inner { pool, metrics, picks, reporters, disaggregates }))
    }

    /// Keeps the name of a model in metrics, however many others clients think of.
    pub(crate) fn keep_model(&self, name: &str) {
        self.0.metrics.requests.keep_model(name);
    }

    /// A request was read.
    pub(crate) fn begin(&self, head: &RequestHead, request: &ParsedRequest) -> RequestRecord {
        let labels = request.labels();
        let span = tracing::info_span!(
            target: trace::TARGET, "gateway.request", otel.kind = "server",
            gen_ai.request.model = labels.model,
            gen_ai.request.id = request.id,
            stator.prefix = Empty,
            stator.kv_holders = Empty,
        );
        let parent = head.header(header::TRACEPARENT).filter(|_| !span.is_disabled());
        let parent =
            parent.and_then(|parent| trace::parent_from(parent, head.header("tracestate")));
        if let Some(parent) = parent {
            parent.adopt(&span);
        }
        let metrics = self.0.metrics.requests.of(&labels);
        if let Some((_, Some(rewrite))) = &request.rewritten {
            // The operator wrote this name, so that metrics keep it beside their bound.
            self.keep_model(request.target());
            self.0.metrics.decisions.rewritten(&metrics, rewrite);
        }
        RequestRecord {
            span,
            started: Instant::now(),
            running: Some(metrics.received()),
            metrics,
            first_token: None,
            last_piece: None,
            worked: Duration::ZERO,
            streaming: request.streams(),
        }
    }

    /// A request is placed without its body, which comes later or not at all.
    pub(crate) fn placed_by_head(&self, body: RequestBody) {
        self.0.metrics.process.placed_by_head(body == RequestBody::Late);
    }

    /// The model of a request was rewritten after its decision.
    pub(crate) fn rewritten(&self, record: &RequestRecord, rewrite: &str) {
        self.0.metrics.decisions.rewritten(&record.metrics, rewrite);
    }

    /// A body went on as it came, although its model may have had to be rewritten.
    pub(crate) fn rewrite_lost(&self) {
        self.0.metrics.process.rewrite_lost();
    }

    /// The prompt was measured.
    pub(crate) fn measured(&self, record: &RequestRecord, measure: Measure, size_bytes: usize) {
        record.metrics.sized(size_bytes as u64);
        self.0.metrics.process.tokenized(match measure {
            Measure::Exact => Tokenization::Exact,
            Measure::Text => Tokenization::Text,
            Measure::None => Tokenization::None,
        });
    }

    /// A body lost these fields.
    pub(crate) fn screened(&self, screening: &Screening) {
        if !screening.is_empty() {
            let fields = screening.names();
            tracing::debug!(pool = self.0.pool, ?fields, "fields were removed from a body");
            let process = &self.0.metrics.process;
            process.fields_removed(screening.steering(), screening.unknown());
        }
    }

    /// A body reaches an endpoint unscreened.
    pub(crate) fn unscreened(&self, why: UnscreenedReason) {
        self.0.metrics.process.unscreened(why);
    }

    /// The scheduler answered, after `took`.
    pub(crate) fn scheduled(
        &self,
        record: &RequestRecord,
        decision: Option<&Decision>,
        took: Duration,
    ) {
        let chosen = decision.and_then(|decision| decision.targets.first());
        let decisions = &self.0.metrics.decisions;
        decisions.decided(&record.metrics, took, chosen.map(|endpoint| &**endpoint));
        let (Some(decision), Some((name, type_name))) = (decision, &self.0.disaggregates) else {
            return;
        };
        let helps = |profile| decision.others.iter().any(|(name, _)| name == profile);
        let [prefill, encode] = HELPERS.map(helps);
        let handler = PluginName { type_name, name };
        decisions.disaggregated(&record.metrics, handler, Disaggregation::of(encode, prefill));
    }

    /// The request goes on to its endpoint.
    pub(crate) fn routed(&self, record: &RequestRecord, decision: &Decision) {
        let took = record.started.elapsed();
        self.0.metrics.process.request_processed(took);
        let Some(endpoint) = decision.targets.first() else { return };
        let Decision { cached_tokens, sources: prefix, .. } = decision;
        let holders = decision.headers.iter().find(|(name, _)| *name == header::KV_HOLDERS);
        let kv_holders = holders.map(|(_, text)| text.as_str());
        if !record.span.is_disabled() {
            record.span.record("stator.prefix", display(prefix));
            record.span.record("stator.kv_holders", kv_holders);
        }
        tracing::debug!(
            pool = self.0.pool, endpoint = %endpoint.address, cached_tokens, %prefix, kv_holders, ?took,
            "picked"
        );
    }

    /// The request is answered without an endpoint; `record` if it was read.
    pub(crate) fn refused(&self, record: Option<&RequestRecord>, refusal: &Refusal) {
        let Refusal { status, message, .. } = refusal;
        let metrics = record.map_or_else(|| self.nobodys(), |record| record.metrics.clone());
        metrics.failed(ErrorCode::of_status(*status));
        tracing::debug!(pool = self.0.pool, status, reason = message, "refused");
    }

    /// The answer to a request that was never shown took so many tokens.
    pub(crate) fn unasked(&self, usage: Usage) {
        self.nobodys().used(usage);
    }

    /// Counters of requests of which nothing is known.
    fn nobodys(&self) -> RequestMetrics {
        self.0.metrics.requests.of(&RequestLabels::default())
    }

    /// The answer of a request is over, as far as it was seen.
    pub(crate) fn answered(&self, record: &RequestRecord) {
        if record.worked > Duration::ZERO {
            self.0.metrics.process.response_processed(record.worked);
        }
    }

    /// The data plane says which endpoint served a request: one of those that it was sent, or not.
    pub(crate) fn served(&self, sent: &[SocketAddr], served: &str) {
        match sent.iter().any(|endpoint| endpoint.to_string() == served) {
            true => self.0.picks.honoured(),
            false => {
                self.0.picks.not_honoured();
                let pool = self.0.pool.as_str();
                tracing::info!(pool, ?sent, served, "the data plane went elsewhere");
            }
        }
    }

    /// Numbers about a request for the data plane: namespace, key and value.
    pub(crate) fn metadata(&self, usage: Usage) -> Vec<(String, String, f64)> {
        let field = |name: &str| match name {
            "prompt_tokens" => Some(f64::from(usage.prompt_tokens)),
            "completion_tokens" => Some(f64::from(usage.completion_tokens)),
            "total_tokens" => Some(f64::from(usage.total_tokens)),
            "prompt_tokens_details.cached_tokens" => usage.cached_tokens.map(f64::from),
            _ => None,
        };
        let reports = self.0.reporters.iter().filter_map(|reporter| reporter.report(&field));
        reports
            .map(|found| (found.namespace.to_string(), found.name.to_string(), found.value as f64))
            .collect()
    }
}
