//! The request path: what happens to a request between its header and its last byte.
//!
//! Read [`Service::handle`] for all requests and [`Service::generate`] for completions.

mod infer;
mod kept;
mod models;
mod pooled;

use super::catalog::Catalog;
use super::client::{Client, ClientHead};
use super::clock::created;
use super::config::ProxySettings;
use super::generate::Generation;
use super::job::{self, Job};
use super::metrics::{Metrics, Outcome};
use super::pass_through::{PassThrough, PassedRequest};
use super::responses::background::{BackgroundWork, follow};
use super::responses::{OwnResponses, ResponseKeeper, SharedStore, recall_named};
use super::route::Route;
use super::run::{Run, RunLimits};
use super::{glance, texts, trace};
use crate::cors;
use crate::door::Door;
use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::failure::Failure;
use bytes::Bytes;
use http::{Method, StatusCode, header};
use stator_api::delta::Identity;
use stator_api::openai::{ApiError, openapi};
use stator_api::space::Account;
use stator_api::{Api, FieldNotes};
use stator_protos::header::{API_KEY, AZURE_KEY};
use stator_runtime::admin::Readiness;
use stator_runtime::trace::parent_from;
use std::sync::Arc;
use std::time::Instant;

/// Status that counts a request whose client left.
const STATUS_GONE: u16 = 499;
/// Bodies up to this size are prepared where they are read, in bytes; the prompts of larger ones
/// take milliseconds to tokenize, which other requests need not wait for.
const INLINE_BODY_MAX_BYTES: usize = 64 << 10;

/// Answers requests.
pub(crate) struct Service {
    settings: ProxySettings,
    catalog: Arc<Catalog>,
    door: Arc<Door>,
    pass_through: PassThrough,
    metrics: Metrics,
    store: SharedStore,
    registry: stator_runtime::metrics::Metrics,
    /// False before the first model is there, and from the beginning of the end.
    readiness: Readiness,
}

/// State that a service shows to operators.
pub(crate) struct OperatorState {
    /// All metrics of the process.
    pub registry: stator_runtime::metrics::Metrics,
    /// The service's own.
    pub metrics: Metrics,
    /// Whether requests are welcome.
    pub readiness: Readiness,
    /// Responses that clients may ask for again.
    pub store: SharedStore,
}

/// Counts a request as running while it lives.
pub(crate) struct RunningRequest<'a>(&'a Service);

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        self.0.metrics.requests_running.dec();
    }
}

impl Service {
    pub(crate) fn new(
        settings: ProxySettings,
        catalog: Arc<Catalog>,
        door: Arc<Door>,
        OperatorState { registry, metrics, readiness, store }: OperatorState,
    ) -> Self {
        Self {
            pass_through: PassThrough::new(&settings, metrics.clone()),
            settings,
            catalog,
            door,
            metrics,
            store,
            registry,
            readiness,
        }
    }

    /// Phases and deadlines of the proxy's end.
    pub(crate) fn ending(&self) -> Ending {
        self.settings.ending
    }

    /// Whether requests are welcome.
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// The door that clients come through.
    pub(crate) fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// Whether a request asks how the process does.
    pub(crate) fn is_probe(exchange: &Exchange) -> bool {
        Route::find(exchange.method(), exchange.path()).is_ok_and(|route| route.is_probe())
    }

    /// Counts one more running request.
    pub(crate) fn enter(&self) -> RunningRequest<'_> {
        self.metrics.requests_running.inc();
        RunningRequest(self)
    }

    /// Requests that run now.
    pub(crate) fn running(&self) -> i64 {
        self.metrics.requests_running.get()
    }

    /// Answers one request, whatever it is. Probes are not counted: they ask often, and "not ready" is
    /// an answer.
    pub(crate) async fn handle(&self, exchange: &mut Exchange, is_counted: bool) {
        let started = Instant::now();
        exchange.allow_origin(self.settings.origins.allowed(&exchange.request().headers));
        let (route, outcome) = self.answer(exchange).await;
        let status = match outcome {
            Ok(()) => exchange.status().map_or(STATUS_GONE, |status| status.as_u16()),
            Err(Failure::Gone) => STATUS_GONE,
            Err(Failure::Error(error)) => {
                exchange.trace().fail(&error.message);
                exchange.fail(&error).await;
                // Some APIs have another status for it.
                exchange.status().unwrap_or(error.status).as_u16()
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        let request_id = exchange.request_id();
        if is_counted {
            self.metrics.hang_ups.inc_by(u64::from(status == STATUS_GONE));
            self.metrics.requests.get_or_create(&Outcome { route, status }).inc();
        }
        if status >= 500 && is_counted {
            tracing::warn!(request_id, route, status, seconds, "request failed");
        } else {
            tracing::debug!(request_id, route, status, seconds, "request");
        }
    }

    async fn answer(&self, exchange: &mut Exchange) -> (&'static str, Result<(), Failure>) {
        // The path is copied because the exchange is written to while the route is in use.
        let path: Box<str> = exchange.path().into();
        if is_preflight(exchange) {
            let headers = cors::preflight(&exchange.request().headers);
            exchange.respond(StatusCode::NO_CONTENT, "text/plain", Bytes::new(), &headers).await;
            return ("preflight", Ok(()));
        }
        match Route::find(exchange.method(), &path) {
            Err(error) if self.may_pass(exchange, &error) => {
                ("passed", Box::pin(self.pass(exchange, error)).await)
            }
            Err(error) => ("other", Err(error.into())),
            Ok(route) => (route.label(), self.dispatch(exchange, route).await),
        }
    }

    /// Whether an engine that speaks for itself may serve what this proxy does not.
    fn may_pass(&self, exchange: &Exchange, error: &ApiError) -> bool {
        let is_absent =
            [StatusCode::NOT_FOUND, StatusCode::NOT_IMPLEMENTED].contains(&error.status);
        is_absent
            && *exchange.method() == Method::POST
            && self.catalog.passes()
            && self.settings.passage.serves(exchange.path())
    }

    /// Passes a request on that this proxy does not serve itself; `absent` is the answer where its
    /// model's engines do not speak for themselves.
    async fn pass(&self, exchange: &mut Exchange, absent: ApiError) -> Result<(), Failure> {
        exchange.check_headers()?;
        let account = self.authorize(exchange)?;
        self.admit(exchange)?;
        let started = Instant::now();
        let body = exchange.unpacked_body().await?;
        let passed = self.passed(exchange, account, &body)?.ok_or(absent)?;
        drop(body);
        self.pass_through.answer(exchange, &passed, started).await
    }

    async fn dispatch(&self, exchange: &mut Exchange, route: Route<'_>) -> Result<(), Failure> {
        exchange.check_headers()?;
        let query = self.settle_query(exchange, &route)?;
        match route {
            Route::Live => json(exchange, StatusCode::OK, r#"{"status":"live"}"#).await,
            Route::Health => self.health(exchange).await,
            Route::Metrics => {
                let text = self.registry.render().into();
                let kind = stator_runtime::metrics::CONTENT_TYPE;
                exchange.respond(StatusCode::OK, kind, text, &[]).await;
            }
            Route::Version => {
                let version = concat!(r#"{"version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
                json(exchange, StatusCode::OK, version).await;
            }
            Route::Fleet => {
                self.authorize(exchange)?;
                json(exchange, StatusCode::OK, glance::fleet(self.catalog.glance())).await;
            }
            Route::Ready(name) => {
                self.authorize(exchange)?;
                let (status, ready) = match self.catalog.is_ready(name)? {
                    true => (StatusCode::OK, r#"{"ready":true}"#),
                    false => (StatusCode::SERVICE_UNAVAILABLE, r#"{"ready":false}"#),
                };
                json(exchange, status, ready).await;
            }
            Route::Tokenize | Route::Detokenize => {
                let account = self.authorize(exchange)?;
                self.admit(exchange)?;
                let started = Instant::now();
                let body = self.read(exchange).await?;
                if let Some(passed) = self.passed(exchange, account, &body)? {
                    return Box::pin(self.pass_through.answer(exchange, &passed, started)).await;
                }
                self.settle_unpassed(exchange, &route)?;
                let notes = FieldNotes::new(self.settings.unknown_fields);
                let answer = beside(&body, || match route {
                    Route::Tokenize => texts::tokenize(&body, &self.catalog, &notes),
                    _ => texts::detokenize(&body, &self.catalog, &notes),
                });
                json(exchange, StatusCode::OK, answer?).await;
            }
            Route::Page(page) => page.answer(exchange).await,
            Route::OpenApi => json(exchange, StatusCode::OK, openapi::DOCUMENT).await,
            Route::Models | Route::Model(_) => {
                self.authorize(exchange)?;
                let body = self.models(exchange, route, &query)?;
                json(exchange, StatusCode::OK, body).await;
            }
            Route::Response(route) => Box::pin(self.response(exchange, route, &query)).await?,
            Route::Generate(api) => self.generate(exchange, api).await?,
            Route::Count(api) => Box::pin(self.count(exchange, api)).await?,
            Route::Infer(route) => Box::pin(self.infer(exchange, route)).await?,
            Route::Pooled(api) => Box::pin(self.pooled(exchange, api)).await?,
        }
        Ok(())
    }

    fn authorize(&self, exchange: &Exchange) -> Result<Account, ApiError> {
        let key = sent_key(&exchange.client_head());
        self.settings.keys.account(key).ok_or_else(ApiError::unauthorized)
    }

    /// Gives a request its place among those that run, out of the share of its key.
    fn admit(&self, exchange: &mut Exchange) -> Result<(), ApiError> {
        let key = self.settings.keys.holder(sent_key(&exchange.client_head()));
        exchange.admit(key)?;
        if !self.settings.pins {
            exchange.ignores_pins();
        }
        exchange.ignores_unheeded(true);
        match &self.settings.rates {
            Some(rates) => exchange.count_for(rates.account(key, Instant::now())),
            None => Ok(()),
        }
    }

    async fn health(&self, exchange: &mut Exchange) {
        let unready = StatusCode::SERVICE_UNAVAILABLE;
        let (status, body) = match self.door.full() {
            _ if self.readiness.get() => (StatusCode::OK, r#"{"status":"ready"}"#.to_owned()),
            Some(what) => (unready, format!(r#"{{"status":"full","of":"{what}"}}"#)),
            None => (unready, r#"{"status":"not ready"}"#.to_owned()),
        };
        json(exchange, status, body).await;
    }

    /// The way of every completion: read, prepare, place, and write what comes.
    async fn generate(&self, exchange: &mut Exchange, api: Api) -> Result<(), Failure> {
        let account = self.authorize(exchange)?;
        self.admit(exchange)?;
        let started = Instant::now();
        let parent = || parent_from(exchange.traceparent()?, exchange.tracestate());
        exchange.follow(trace::request(api, exchange.request_id(), parent));
        exchange.trace().enter("receive");
        let body = self.read(exchange).await?;
        exchange.trace().enter("parse");
        if let Some(passed) = self.passed(exchange, account, &body)? {
            exchange.trace().leave();
            // In place it would take 11 KB of every stream.
            return Box::pin(self.pass_through.answer(exchange, &passed, started)).await;
        }
        self.settle_unpassed(exchange, &Route::Generate(api))?;
        self.recall_named(exchange, account, api, &body).await?;
        let client = exchange.as_client(account);
        let job = self.prepare(client, api, body)?;
        exchange.release_body();
        exchange.ignores(job.ignored.as_deref());
        let trace = exchange.trace().clone();
        if let Some(keeper) = job.keeper.clone().filter(ResponseKeeper::is_background) {
            return Box::pin(self.in_background(exchange, job, keeper)).await;
        }
        let placing = Instant::now();
        // In place it would take 3 KB of every stream.
        let start = Box::pin(Generation::start(self.metrics.clone(), job.work(), &trace));
        let generation = tokio::select! {
            biased;
            generation = start => generation?,
            // It gives up its turn, where it waits for one.
            gone = exchange.gone() => return Err(gone.into()),
        };
        self.metrics.placement_duration.observe(placing.elapsed().as_secs_f64());
        let mut run = Run::new(self.run_limits(), &self.metrics, job, generation, started);
        let written = match run.streams() {
            true => run.stream(exchange).await,
            false => run.whole(exchange).await,
        };
        run.record();
        run.begin_next_turn(-self.settings.priority_max);
        trace::answered(exchange.trace(), run.usage());
        written
    }

    fn run_limits(&self) -> RunLimits {
        RunLimits {
            first_token: self.settings.first_token_timeout,
            idle: self.settings.idle_timeout,
            comment_pause: self.settings.comment_pause,
        }
    }

    /// Begins a response that goes on without its client, who gets it as it is, or follows it.
    async fn in_background(
        &self,
        exchange: &mut Exchange,
        job: Box<Job>,
        keeper: ResponseKeeper,
    ) -> Result<(), Failure> {
        let id = job.response_id.clone().unwrap_or_default();
        let identity = Identity { id: &id, created: created(), model: &job.model_name };
        let (record, streams) = (keeper.keep(job.form.response(&identity)), job.options.stream);
        record.advance(|events, out| events.queue(out));
        let work = BackgroundWork {
            record: record.clone(),
            keeper,
            metrics: self.metrics.clone(),
            limits: self.run_limits(),
            next_turn_priority: -self.settings.priority_max,
            trace: exchange.trace().clone(),
        };
        // The place among running requests goes with the work, and bounds it.
        let place = exchange.take_admission();
        tokio::spawn(async move {
            work.run(job, id).await;
            drop(place);
        });
        if streams {
            return follow(exchange, &record, 0).await;
        }
        json(exchange, StatusCode::OK, record.object()).await;
        Ok(())
    }

    /// Counts the tokens of a conversation, exactly: the prompt is made as for an answer.
    async fn count(&self, exchange: &mut Exchange, api: Api) -> Result<(), Failure> {
        let account = self.authorize(exchange)?;
        self.admit(exchange)?;
        let started = Instant::now();
        let body = self.read(exchange).await?;
        if let Some(passed) = self.passed(exchange, account, &body)? {
            return Box::pin(self.pass_through.answer(exchange, &passed, started)).await;
        }
        self.settle_unpassed(exchange, &Route::Count(api))?;
        let notes = FieldNotes::new(self.settings.unknown_fields);
        self.recall_named(exchange, account, api, &body).await?;
        let space = exchange.as_client(account).space(None, None)?;
        let seal = account.thought_seal(&exchange.request().headers)?;
        let own = OwnResponses { store: &self.store, space, seal: &seal };
        let count = || job::count(&body, api, &self.catalog, &notes, own);
        let counted = beside(&body, count)?;
        exchange.ignores(notes.ignored().as_deref());
        let object = match api {
            Api::Responses => r#""object":"response.input_tokens","#,
            _ => "",
        };
        json(exchange, StatusCode::OK, format!(r#"{{{object}"input_tokens":{counted}}}"#)).await;
        Ok(())
    }

    async fn read(&self, exchange: &mut Exchange) -> Result<Bytes, ApiError> {
        check_content_type(exchange)?;
        exchange.unpacked_body().await
    }

    /// The request, where its model's engines speak for themselves.
    fn passed(
        &self,
        exchange: &Exchange,
        account: Account,
        body: &Bytes,
    ) -> Result<Option<Box<PassedRequest>>, ApiError> {
        let read = || PassedRequest::read(exchange, account, body, self.pass_context());
        Ok(beside(body, read)?.map(Box::new))
    }

    /// Has the responses in memory that a request names, where proxies share a database of them.
    async fn recall_named(
        &self,
        exchange: &Exchange,
        account: Account,
        api: Api,
        body: &[u8],
    ) -> Result<(), ApiError> {
        if api != Api::Responses || !self.store.is_shared() {
            return Ok(());
        }
        let space = account.space_of(&exchange.request().headers, None, None)?;
        // In place it would take room in every stream.
        Box::pin(recall_named(&self.store, space, body)).await
    }

    /// Makes of a body what the workers need.
    fn prepare(&self, client: Client<'_>, api: Api, body: Bytes) -> Result<Box<Job>, ApiError> {
        let prepare =
            || job::prepare(&body, api, &self.catalog, client, &self.settings, &self.store);
        Ok(Box::new(beside(&body, prepare)?))
    }
}

/// Reads a body so that a large one does not keep other requests waiting.
fn beside<T>(body: &[u8], read: impl FnOnce() -> T) -> T {
    match body.len() > INLINE_BODY_MAX_BYTES {
        true => tokio::task::block_in_place(read),
        false => read(),
    }
}

/// Whether a browser asks what a page of another origin may send. It sends no key with that.
fn is_preflight(exchange: &Exchange) -> bool {
    *exchange.method() == Method::OPTIONS
        && exchange.header("access-control-request-method").is_some()
}

/// The API key that came with a request.
fn sent_key<'a>(head: &ClientHead<'a>) -> Option<&'a str> {
    let bearer = head.header("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| head.header(API_KEY)).or_else(|| head.header(AZURE_KEY))
}

fn check_content_type(exchange: &Exchange) -> Result<(), ApiError> {
    let sent = exchange.header(header::CONTENT_TYPE.as_str());
    let essence = sent.and_then(|value| value.split(';').next()).map(str::trim);
    match essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        true => Ok(()),
        false => Err(ApiError::unsupported_media_type(sent)),
    }
}

async fn json(exchange: &mut Exchange, status: StatusCode, body: impl Into<Bytes>) {
    exchange.respond(status, "application/json", body.into(), &[]).await;
}
