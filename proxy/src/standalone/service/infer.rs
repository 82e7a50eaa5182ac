//! Calls of KServe's open inference protocol.

use super::{Service, json, sent_key};
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::standalone::client::{AdmittedCall, Client, ClientHead};
use crate::standalone::generate::Generation;
use crate::standalone::kserve::piece;
use crate::standalone::kserve::route::InferRoute;
use crate::standalone::placing::RETRY_AFTER;
use crate::standalone::run::Run;
use crate::standalone::trace;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json as value;
use stator_api::Api;
use stator_api::kserve::json::{
    InferAnswer, InferIdentity, JSON_LENGTH, error, generate_answer, infer_answer, metadata,
    read_generate, read_infer,
};
use stator_api::openai::ApiError;
use stator_runtime::trace::parent_from;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

/// Extensions of the protocol that are here.
const EXTENSIONS: [&str; 1] = ["binary_tensor_data"];

impl Service {
    /// Whether requests are welcome.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.get()
    }

    /// Whether a model has a worker that takes requests.
    ///
    /// # Errors
    ///
    /// 404 for a model that is not here, 503 before that is known.
    pub(crate) fn is_model_ready(&self, model: &str) -> Result<bool, ApiError> {
        self.catalog.is_ready(model)
    }

    /// Whether this proxy speaks for a model, as calls need.
    ///
    /// # Errors
    ///
    /// 404 for a model that it does not speak for, 503 before that is known.
    pub(crate) fn check_model(&self, model: &str) -> Result<(), ApiError> {
        self.catalog.find(model).map(|_| ())
    }

    /// Lets a call in that came with these headers from `address`.
    ///
    /// # Errors
    ///
    /// 401 for a client without a key, 429 where there is no place for it.
    pub(crate) fn admit_call(
        &self,
        head: &ClientHead<'_>,
        address: Option<IpAddr>,
    ) -> Result<AdmittedCall, ApiError> {
        let key = sent_key(head);
        let account = self.settings.keys.account(key).ok_or_else(ApiError::unauthorized)?;
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let full = || ApiError::unavailable("there are too many connections", RETRY_AFTER);
        let visitor = self.door.enter(address).ok_or_else(full)?;
        let key = self.settings.keys.holder(key);
        let admission = self.door.admit(&visitor, key)?;
        let now = Instant::now();
        let rate = self.settings.rates.as_ref().map(|rates| rates.account(key, now));
        rate.as_ref().map_or(Ok(()), |rate| rate.take_request(now))?;
        Ok(AdmittedCall { account, rate, _admission: admission, _visitor: visitor })
    }

    /// Has workers begin to answer a call, whose `body` is that of a completion.
    ///
    /// # Errors
    ///
    /// As for a completion, and 400 for several answers to one call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up everything.
    pub(crate) async fn begin_call(
        &self,
        client: Client<'_>,
        body: Vec<u8>,
    ) -> Result<Run<'_>, ApiError> {
        let (started, trace) = (Instant::now(), client.head.trace.clone());
        let job = self.prepare(client, Api::Completions, body.into())?;
        if job.options.n > 1 {
            return Err(ApiError::unsupported("n", "a call of this protocol has one answer"));
        }
        let generation = Generation::start(self.metrics.clone(), job.work(), &trace).await?;
        Ok(Run::new(self.run_limits(), &self.metrics, job, generation, started))
    }

    /// Answers a request of the protocol as JSON.
    pub(super) async fn infer(
        &self,
        exchange: &mut Exchange,
        route: InferRoute<'_>,
    ) -> Result<(), Failure> {
        let state =
            |is_ready| if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        match route {
            InferRoute::Live => json(exchange, StatusCode::OK, Bytes::new()).await,
            InferRoute::Ready => json(exchange, state(self.is_ready()), Bytes::new()).await,
            InferRoute::Server => {
                let version = env!("CARGO_PKG_VERSION");
                let server =
                    value!({"name": "stator", "version": version, "extensions": EXTENSIONS});
                json(exchange, StatusCode::OK, server.to_string()).await;
            }
            InferRoute::ModelReady(model) => {
                self.authorize(exchange)?;
                let status = state(self.is_model_ready(model)?);
                json(exchange, status, Bytes::new()).await;
            }
            InferRoute::Model(model) => {
                self.authorize(exchange)?;
                self.check_model(model)?;
                json(exchange, StatusCode::OK, metadata(model)).await;
            }
            InferRoute::Infer(model)
            | InferRoute::Generate(model)
            | InferRoute::GenerateStream(model) => self.call(exchange, route, model).await?,
        }
        Ok(())
    }

    async fn call(
        &self,
        exchange: &mut Exchange,
        route: InferRoute<'_>,
        model: &str,
    ) -> Result<(), Failure> {
        let account = self.authorize(exchange)?;
        self.admit(exchange)?;
        let json_bytes = exchange.header(JSON_LENGTH).map(json_length).transpose()?;
        let parent = || parent_from(exchange.traceparent()?, exchange.tracestate());
        exchange.follow(trace::request(Api::Completions, exchange.request_id(), parent));
        // Some clients of the protocol do not say that their body is JSON.
        let body = exchange.unpacked_body().await?;
        let mut asked = match (route, json_bytes) {
            (InferRoute::Infer(_), _) => read_infer(model, &body, json_bytes)?,
            (_, None) => read_generate(model, &body)?,
            (_, Some(_)) => {
                let message = "tensors of bytes belong to /infer";
                return Err(ApiError::unsupported(JSON_LENGTH, message).into());
            }
        };
        let in_pieces = matches!(route, InferRoute::GenerateStream(_));
        if asked.call.streams && !in_pieces {
            let message = "an answer in pieces needs /generate_stream";
            return Err(ApiError::unsupported("stream", message).into());
        }
        let client = exchange.as_client(account);
        let mut run = self.begin_call(client, std::mem::take(&mut asked.call.body)).await?;
        exchange.ignores(run.ignored());
        exchange.release_body();
        let identity = InferIdentity { model, id: &asked.id };
        let mut begun = false;
        loop {
            let piece = match piece::next(&mut run, in_pieces, exchange).await {
                Err(Failure::Error(failed)) if begun => {
                    exchange.stream(event(&error(&failed)), true).await?;
                    return Ok(());
                }
                piece => piece?,
            };
            if matches!(route, InferRoute::Infer(_)) {
                let answer = infer_answer(&identity, &asked, &piece.text(), run.usage());
                tensors(exchange, answer).await;
                return Ok(());
            }
            let answer = generate_answer(&identity, &asked.call, &piece.text());
            match (in_pieces, std::mem::replace(&mut begun, true)) {
                (false, _) => json(exchange, StatusCode::OK, answer).await,
                (true, false) => exchange.begin_stream("", event(&answer), piece.is_last).await?,
                (true, true) => exchange.stream(event(&answer), piece.is_last).await?,
            }
            if piece.is_last {
                return Ok(());
            }
        }
    }
}

/// The bytes of a body's JSON, where tensors of bytes follow.
fn json_length(text: &str) -> Result<usize, ApiError> {
    let message = || format!("{JSON_LENGTH} is {text:.40?}, it must be a number of bytes");
    text.trim().parse().map_err(|_| ApiError::invalid(JSON_LENGTH, message()))
}

/// Sends an answer with tensors.
async fn tensors(exchange: &mut Exchange, InferAnswer { body, json_bytes }: InferAnswer) {
    let Some(json_bytes) = json_bytes else { return json(exchange, StatusCode::OK, body).await };
    let length = (HeaderName::from_static(JSON_LENGTH), HeaderValue::from(json_bytes));
    let body = Bytes::from(body);
    exchange.respond(StatusCode::OK, "application/octet-stream", body, &[length]).await;
}

/// An event of a stream.
fn event(data: &[u8]) -> Bytes {
    [b"data: ", data, b"\n\n"].concat().into()
}
