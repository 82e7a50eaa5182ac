//! The request path beside an engine.
//!
//! Read [`Sidecar::handle`] for all requests and [`Sidecar::answer`] for what becomes of one.

use super::config::DirectSettings;
use super::encode::Encoders;
use super::handover::Handover;
use super::known_ranks::KnownRanks;
use super::metrics::{Header, Metrics, Outcome};
use super::names::{Names, System};
use super::request::Request;
use super::routing::{ENCODERS, Routing, SOURCE};
use super::trace;
use crate::door::Door;
use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::upstream::answer::Answer;
use crate::upstream::engines::{Engines, Leg};
use crate::upstream::headers;
use crate::upstream::relay::Relay;
use crate::upstream::serving::is_plain;
use crate::upstream::target::Target;
use bytes::Bytes;
use http::{Method, StatusCode, header};
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use stator_api::openai::ApiError;
use stator_body::Api;
use stator_handover::Connector;
use stator_protos::header::KV_HOLDERS;
use stator_runtime::admin::Readiness;
use std::sync::Arc;
use std::time::Instant;
use tracing::{Instrument, Span};

/// Status that counts a request whose client left.
const STATUS_GONE: u16 = 499;
/// This proxy's own path; all others are the engine's.
const HEALTH: &str = "/healthz";
/// Path that says whether this proxy runs, whatever its engine does.
const LIVE: &str = "/live";

/// Answers requests.
pub(crate) struct Sidecar {
    pub(super) settings: DirectSettings,
    door: Arc<Door>,
    pub(super) handover: Handover,
    /// The engine's ranks, and the ports of this proxy that serve them.
    ranks: Vec<(u16, HttpPeer)>,
    pub(super) metrics: Metrics,
    /// False from the beginning of the end.
    readiness: Readiness,
}

/// State that the proxy shows to operators.
pub(crate) struct OperatorState {
    pub metrics: Metrics,
    pub readiness: Readiness,
}

/// Counts a request as running while it lives.
pub(crate) struct RunningRequest<'a>(&'a Sidecar);

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        self.0.metrics.requests_running.dec();
    }
}

impl Sidecar {
    /// Serves the engine's ranks on these ports, in order.
    pub(crate) fn new(
        settings: DirectSettings,
        ports: &[u16],
        door: Arc<Door>,
        OperatorState { metrics, readiness }: OperatorState,
    ) -> Self {
        let engines = Arc::new(Engines::new(settings.upstream.clone()));
        let peers = settings.engines.iter().map(|address| engines.decoder(*address));
        let ranks = ports.iter().copied().zip(peers).collect();
        let encoders = settings.encode.clone().map(|settings| Encoders {
            engines: engines.clone(),
            settings,
            metrics: metrics.clone(),
        });
        let prefill = settings.prefill.clone();
        let handover = Handover {
            engines,
            encoders,
            settings: prefill,
            ranks: KnownRanks::default(),
            names: Names::new(System, settings.prefill.moriio.names, metrics.lookups.clone()),
            metrics: metrics.clone(),
        };
        Self { settings, door, handover, ranks, metrics, readiness }
    }

    /// The door that clients come through.
    pub(crate) fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// Whether a request asks how this proxy does; all other paths are the engine's.
    pub(crate) fn is_probe(exchange: &Exchange) -> bool {
        [HEALTH, LIVE].contains(&exchange.path()) && exchange.method() == Method::GET
    }

    /// Phases and deadlines of the proxy's end.
    pub(crate) fn ending(&self) -> Ending {
        self.settings.ending
    }

    /// Whether requests are welcome.
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Requests that run now.
    pub(crate) fn running(&self) -> i64 {
        self.metrics.requests_running.get()
    }

    /// Counts one more running request.
    pub(crate) fn enter(&self) -> RunningRequest<'_> {
        self.metrics.requests_running.inc();
        RunningRequest(self)
    }

    /// Answers one request, whatever it is, that came in on the port of `rank`. Probes are not counted.
    pub(crate) async fn handle(&self, exchange: &mut Exchange, rank: usize, is_counted: bool) {
        let started = Instant::now();
        let span = trace::request(exchange);
        let answered = self.answer(exchange, rank, started).instrument(span.clone());
        let (way, outcome) = answered.await;
        let status = match outcome {
            Ok(()) => exchange.status().map_or(STATUS_GONE, |status| status.as_u16()),
            Err(Failure::Gone) => STATUS_GONE,
            Err(Failure::Error(error)) => {
                exchange.fail(&error).await;
                error.status.as_u16()
            }
        };
        if is_counted {
            self.metrics.requests.get_or_create(&Outcome { way, status }).inc();
        }
        trace::ended(&span, started.elapsed());
        let seconds = started.elapsed().as_secs_f64();
        let request_id = exchange.request_id();
        tracing::debug!(request_id, way, status, seconds, "request");
    }

    async fn answer(
        &self,
        exchange: &mut Exchange,
        rank: usize,
        started: Instant,
    ) -> (&'static str, Result<(), Failure>) {
        if Self::is_probe(exchange) {
            self.health(exchange).await;
            return ("own", Ok(()));
        }
        match self.prepare(exchange, rank).await {
            Ok(Prepared::Streamed(leg)) => {
                let answer = Answer::plain(*leg, "engine");
                (answer.way, self.relay(started).pass_on(exchange, answer).await)
            }
            Ok(Prepared::Whole { head, body, engine, help: None }) => {
                let answer = self.pass(exchange, engine, &head, &body).await;
                let passed = match answer {
                    Ok(answer) => self.relay(started).pass_on(exchange, answer).await,
                    Err(failure) => Err(failure),
                };
                ("engine", passed)
            }
            Ok(Prepared::Whole { head, body, engine, help: Some(help) }) => {
                let request = Request {
                    api: help.api,
                    head: &head,
                    body: &body,
                    engine,
                    prefiller: help.prefiller.as_ref(),
                    encoders: &help.encoders,
                    source: help.source.as_ref(),
                    holders: &help.holders,
                };
                // A chat that is decoded in chunks comes here too, and hands nothing over.
                if help.hands_over() {
                    trace::hands_over(self.handover.settings.connector, request.prefiller);
                }
                self.disaggregate(exchange, &request, started).await
            }
            Err(failure) => ("own", Err(failure)),
        }
    }

    /// Everything that is decided before an engine is asked: whether and where the request goes.
    async fn prepare(&self, exchange: &mut Exchange, rank: usize) -> Result<Prepared<'_>, Failure> {
        exchange.check_headers()?;
        let serves = self.check_path(exchange)?;
        exchange.admit(None)?;
        // The engine's queue is its own.
        exchange.ignores_unheeded(false);
        let routing = Routing::read(&exchange.request().headers)?;
        let engine = self.engine(rank, routing.rank.as_ref())?;
        let api = Api::find(exchange.method(), exchange.path());
        let api = api.filter(|api| stator_handover::is_prefillable(*api));
        let (encoders, source, holders) = self.suppliers(exchange, api.is_some(), &routing);
        // An upload may be large, and no other engine can help with it: it is streamed and not held.
        if is_upload(exchange.request()) {
            headers::check_encoding(exchange.request())?;
            let head = self.onward(exchange, None);
            return Ok(Prepared::Streamed(Box::new(self.upload(exchange, engine, head).await?)));
        }
        let body = exchange.unpacked_body().await?;
        let body = if serves { self.screened(exchange, body)? } else { body };
        self.metrics.request_bytes.inc_by(body.len() as u64);
        let mut head = self.onward(exchange, Some(&body));
        trace::pass_on(&mut head, &Span::current());
        let help = match api {
            Some(api) => {
                let prefiller = self.prefiller(routing.prefillers)?;
                self.check_alone(prefiller.as_ref())?;
                let help = Help { api, prefiller, encoders, source, holders };
                (!help.is_empty() || self.chunks_requests(exchange)).then(|| Box::new(help))
            }
            None => None,
        };
        Ok(Prepared::Whole { head: Box::new(head), body, engine, help })
    }

    /// Whether the path serves requests; the other paths operate the engine.
    fn check_path(&self, exchange: &Exchange) -> Result<bool, ApiError> {
        let path = exchange.path();
        match self.settings.passage.serves(path) {
            true => Ok(true),
            // A spelling that the engine reads as a path of serving would leave its body unread.
            false if self.settings.pass_operations && is_plain(path) => Ok(false),
            false => {
                let message = format!(
                    "{path} is no path that serves requests; pass-operations lets operations pass"
                );
                Err(ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
                    .with_code("path_forbidden"))
            }
        }
    }

    fn onward(&self, exchange: &Exchange, body: Option<&Bytes>) -> RequestHeader {
        let passage = &self.settings.passage;
        headers::onward(exchange.request(), passage, &exchange.identity(), body)
    }

    /// The rank that a picker named by its port, or the one whose port the request came to.
    fn engine(&self, rank: usize, named: Option<&Target>) -> Result<&HttpPeer, ApiError> {
        let Some(named) = named else { return Ok(&self.ranks[rank].1) };
        let found = self.ranks.iter().find(|(port, _)| *port == named.port);
        let found = found.map(|(_, engine)| engine);
        found.ok_or_else(|| {
            let message = format!("no rank of this engine is served on port {}", named.port);
            ApiError::bad_request(message).with_code("unknown_rank")
        })
    }

    /// The engine that is to compute the prompt, if one is named.
    fn prefiller(&self, mut named: Vec<Target>) -> Result<Option<Target>, ApiError> {
        let Handover { settings, .. } = &self.handover;
        if named.is_empty() {
            return Ok(None);
        }
        let at = if settings.sampling { rand::random_range(0..named.len()) } else { 0 };
        let chosen = named.swap_remove(at);
        if settings.allow.allows(&chosen) {
            return Ok(Some(chosen));
        }
        let message = format!("prefill target {chosen} is not allowed by prefill-allow");
        Err(ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
            .with_code("prefill_target_forbidden"))
    }

    /// Refuses a request that its engine would answer wrongly by itself.
    fn check_alone(&self, prefiller: Option<&Target>) -> Result<(), ApiError> {
        if prefiller.is_some() || !self.handover.settings.connector.answers_wrongly_alone() {
            return Ok(());
        }
        let message = "an engine that reads over MoRI-IO computes no prompt, and none that does is \
                       named in x-prefiller-host-port";
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        Err(ApiError::new(unavailable, "server_error", message).with_code("needs_prefill"))
    }

    /// The engines that may encode media, the one that KV may be pulled from, and the agents that may
    /// lend KV. Those that may not are passed over: the request only costs more without them.
    fn suppliers(
        &self,
        exchange: &Exchange,
        has_prompt: bool,
        routing: &Routing,
    ) -> (Vec<Target>, Option<Target>, Vec<(Target, u32)>) {
        let Handover { settings, encoders, .. } = &self.handover;
        let allows = |target: &&Target| has_prompt && settings.allow.allows(target);
        let encoded = encoders.is_some();
        let encoders = routing.encoders.iter().filter(|target| encoded && allows(target));
        let encoders: Vec<Target> = encoders.cloned().collect();
        let source = routing.source.as_ref().filter(|target| settings.pulls && allows(target));
        // SGLang looks its prompts up in the agent's tiers by itself, and takes no word for it.
        let heeds = settings.connector != Connector::Sglang;
        let holders = routing.holders.iter().filter(|(target, _)| heeds && allows(&target));
        let holders: Vec<_> = holders.cloned().collect();
        let used = [
            (ENCODERS, !encoders.is_empty()),
            (SOURCE, source.is_some()),
            (KV_HOLDERS, !holders.is_empty()),
        ];
        for (header, used) in used {
            if !used && exchange.request().headers.contains_key(header) {
                let request_id = exchange.request_id();
                tracing::debug!(request_id, header, "no use was made of a picker's header");
                self.metrics.headers_unused.get_or_create(&Header { header }).inc();
            }
        }
        (encoders, source.cloned(), holders)
    }

    async fn health(&self, exchange: &mut Exchange) {
        let unready = StatusCode::SERVICE_UNAVAILABLE;
        let (status, body) = match self.door.full() {
            _ if exchange.path() == LIVE => (StatusCode::OK, r#"{"status":"live"}"#.to_owned()),
            _ if self.readiness.get() => (StatusCode::OK, r#"{"status":"ready"}"#.to_owned()),
            Some(what) => (unready, format!(r#"{{"status":"full","of":"{what}"}}"#)),
            None => (unready, r#"{"status":"draining"}"#.to_owned()),
        };
        exchange.respond(status, "application/json", body.into(), &[]).await;
    }

    /// The engine beside this proxy answers alone.
    async fn pass(
        &self,
        exchange: &mut Exchange,
        engine: &HttpPeer,
        head: &RequestHeader,
        body: &Bytes,
    ) -> Result<Answer<'static>, Failure> {
        let leg = tokio::select! {
            biased;
            leg = self.handover.engines.send(engine, head, body) => leg,
            gone = exchange.gone() => return Err(gone.into()),
        };
        Ok(Answer::plain(leg.map_err(ApiError::from)?, "engine"))
    }

    pub(super) fn relay(&self, started: Instant) -> Relay<'_> {
        let Metrics { answer_bytes, cut, .. } = &self.metrics;
        Relay { engines: &self.handover.engines, answer_bytes, cut, stamp: &[], started }
    }

    /// Other engines help, and the one beside this proxy answers.
    async fn disaggregate(
        &self,
        exchange: &mut Exchange,
        request: &Request<'_>,
        started: Instant,
    ) -> (&'static str, Result<(), Failure>) {
        if let Some(chunks) = self.chunks(exchange, request) {
            return self.in_chunks(exchange, request, chunks, started).await;
        }
        let answer = tokio::select! {
            biased;
            answer = self.handover.answer(request) => answer,
            // Drops the requests, by which the engines know.
            gone = exchange.gone() => return (request.way(), Err(gone.into())),
        };
        match answer {
            Ok(answer) => (answer.way, self.relay(started).pass_on(exchange, answer).await),
            Err(error) => (request.way(), Err(error.into())),
        }
    }
}

/// A request that was checked and may go to an engine.
enum Prepared<'a> {
    /// It has gone already, because its body is not kept.
    Streamed(Box<Leg>),
    /// It is whole, and others may help with it.
    Whole { head: Box<RequestHeader>, body: Bytes, engine: &'a HttpPeer, help: Option<Box<Help>> },
}

/// Other engines that help with a request.
struct Help {
    api: Api,
    /// Computes its prompt.
    prefiller: Option<Target>,
    /// Encode its media.
    encoders: Vec<Target>,
    /// Has KV of its prompt's beginning.
    source: Option<Target>,
    /// Lend KV of its prompt's beginning.
    holders: Vec<(Target, u32)>,
}

impl Help {
    /// Whether other engines do a part of the request.
    fn hands_over(&self) -> bool {
        self.prefiller.is_some() || !self.encoders.is_empty() || self.source.is_some()
    }

    fn is_empty(&self) -> bool {
        !self.hands_over() && self.holders.is_empty()
    }
}

/// Whether a body has parts of its own: a form with files.
fn is_upload(head: &RequestHeader) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    kind.get(..10).is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/"))
}
