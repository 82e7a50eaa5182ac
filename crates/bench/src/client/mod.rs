//! The client: keeps connections open, sends a request, and reads its answer as it arrives.

pub(crate) mod body;
mod failure;
mod scan;
pub(crate) mod tally;
mod target;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{StatusCode, Uri};
use serde::Deserialize;
use stator_http::{Acknowledge, Answer, AnswerBody, Bearer, LinkSettings, Links, RequestHead};
use tokio::time::{Instant, timeout};

pub use failure::RequestFailure;
pub use scan::{PromptDetails, TokenUsage};
pub use tally::MeasuredReply;

use crate::args::{Endpoint, TargetArgs};
use crate::sse;
use tally::ReplyTally;
use target::BenchTarget;

/// Largest answer that is no stream, 64 MiB.
const BODY_MAX_BYTES: usize = 64 << 20;
/// Largest body of an error that is read, 64 KiB.
const ERROR_MAX_BYTES: usize = 64 << 10;

/// Sends requests to one endpoint. Connections are kept and reused, the latest first; there are
/// as many as requests were in flight at once.
#[derive(Debug)]
pub struct LoadClient {
    target: BenchTarget,
    api: Uri,
    key: Option<Bearer>,
    timeout: Duration,
    links: Links,
}

impl LoadClient {
    /// A client of the endpoint that the arguments name. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// When the URL or the API key cannot be used.
    pub fn new(args: &TargetArgs) -> Result<Self> {
        let target = BenchTarget::parse(&args.url)?;
        let api = target.path(match args.endpoint {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
        })?;
        // The key itself stays out of the message.
        let key = args.api_key.as_deref();
        let key = key.map(|key| Bearer::new(key).context("api-key: not a header value"));
        let acknowledge = if args.quickack { Acknowledge::AtOnce } else { Acknowledge::AsUsual };
        let settings = LinkSettings { acknowledge, ..LinkSettings::default() };
        let links = Links::new(target.origin(), settings);
        let timeout = Duration::from_secs_f64(args.timeout_s);
        Ok(Self { target, api, key: key.transpose()?, timeout, links })
    }

    /// The first model that the endpoint lists.
    ///
    /// # Errors
    ///
    /// When the endpoint does not answer or lists none.
    pub async fn first_model(&self) -> Result<String> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let uri = self.target.path("/v1/models")?;
        let name = format!("http://{}{uri}", self.target.authority);
        // The time limit holds for the whole answer, not only its head.
        let answer = async {
            let head = self.head("GET", &uri).finish(None);
            let answer = self.links.send(&head, b"").await.map_err(failure::of_http)?;
            Ok::<_, RequestFailure>((answer.status, read(answer.body, BODY_MAX_BYTES).await?))
        };
        let answer = timeout(self.timeout, answer).await.unwrap_or(Err(RequestFailure::Timeout));
        let (status, body) = answer.with_context(|| name.clone())?;
        ensure!(status.is_success(), "{name}: http {status}");
        let models: Models = serde_json::from_slice(&body).with_context(|| name.clone())?;
        models
            .data
            .into_iter()
            .next()
            .map(|model| model.id)
            .with_context(|| format!("{name}: no model, name one"))
    }

    /// Sends one request and reads its answer to the end. The text is kept only with `keep_text`.
    ///
    /// # Errors
    ///
    /// See [`RequestFailure`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, which tells the server to stop.
    pub async fn send(
        &self,
        body: Bytes,
        keep_text: bool,
    ) -> Result<MeasuredReply, RequestFailure> {
        timeout(self.timeout, self.exchange(body, keep_text))
            .await
            .unwrap_or(Err(RequestFailure::Timeout))
    }

    async fn exchange(
        &self,
        body: Bytes,
        keep_text: bool,
    ) -> Result<MeasuredReply, RequestFailure> {
        let sent = Instant::now();
        let head = self.head("POST", &self.api).finish(Some(body.len()));
        let answer = self.links.send(&head, &body).await.map_err(failure::of_http)?;
        if answer.status != StatusCode::OK {
            return Err(refusal(answer).await);
        }
        if answer.is_event_stream {
            return read_stream(answer.body, sent, keep_text).await;
        }
        let body = read(answer.body, BODY_MAX_BYTES).await?;
        tally::whole(&body, sent.elapsed(), keep_text)
    }

    /// The head of a request, but for its length.
    fn head(&self, method: &str, path: &Uri) -> RequestHead {
        let mut head = RequestHead::new(method, &path.to_string(), &self.target.authority);
        head.header("content-type", b"application/json")
            .header("accept", b"text/event-stream, application/json")
            .header("user-agent", concat!("stator-bench/", env!("CARGO_PKG_VERSION")).as_bytes())
            .bearer(self.key.as_ref());
        head
    }
}

async fn read_stream(
    mut body: AnswerBody,
    sent: Instant,
    keep_text: bool,
) -> Result<MeasuredReply, RequestFailure> {
    let (mut parser, mut tally) = (sse::SseParser::default(), ReplyTally::new(keep_text));
    let mut fed = Ok(());
    let mut more = true;
    while more {
        more = body
            .read(|data| {
                let at = sent.elapsed();
                if fed.is_ok() {
                    fed = parser.feed(data, |event| tally.event(event, at));
                }
            })
            .await
            .map_err(failure::of_http)?;
        if fed.is_err() {
            return Err(RequestFailure::Malformed);
        }
    }
    tally.finish(sent.elapsed())
}

async fn refusal(mut answer: Answer) -> RequestFailure {
    let mut body = Vec::new();
    let whole = answer.body.collect(&mut body, ERROR_MAX_BYTES).await;
    let kind = whole.map(|()| failure::error_kind(&body)).unwrap_or_default();
    RequestFailure::Status { status: answer.status.as_u16(), kind }
}

async fn read(mut body: AnswerBody, max_bytes: usize) -> Result<Vec<u8>, RequestFailure> {
    let mut bytes = Vec::new();
    body.collect(&mut bytes, max_bytes).await.map_err(failure::of_http)?;
    Ok(bytes)
}
