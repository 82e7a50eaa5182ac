//! The client: keeps connections open, sends a request, and reads its answer as it arrives.

pub(crate) mod body;
mod failure;
mod quick_ack;
mod scan;
mod tally;
mod target;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

pub use failure::RequestFailure;
pub use scan::{PromptDetails, TokenUsage};
pub use tally::MeasuredReply;

use crate::args::{Endpoint, TargetArgs};
use crate::sse;
use quick_ack::QuickAck;
use tally::ReplyTally;
use target::BenchTarget;

/// Largest answer that is no stream, 64 MiB.
const BODY_MAX_BYTES: usize = 64 << 20;
/// Largest body of an error that is read, 64 KiB.
const ERROR_MAX_BYTES: usize = 64 << 10;

/// A connection on which requests can be sent.
type Sender = SendRequest<Full<Bytes>>;

/// Sends requests to one endpoint. Connections are kept and reused, the latest first; there are
/// as many as requests were in flight at once.
#[derive(Debug)]
pub struct LoadClient {
    target: BenchTarget,
    api: Uri,
    headers: HeaderMap,
    timeout: Duration,
    quickack: bool,
    idle: Mutex<Vec<Sender>>,
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
        let timeout = Duration::from_secs_f64(args.timeout_s);
        let headers = headers(&target, args.api_key.as_deref())?;
        Ok(Self { target, api, headers, timeout, quickack: args.quickack, idle: Mutex::default() })
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
        let answer = async {
            let request = self.http_request(Method::GET, uri, Bytes::new());
            let (sender, response) = self.request(request).await?;
            let status = response.status();
            let body = read(response, BODY_MAX_BYTES).await?;
            self.idle.lock().push(sender);
            Ok::<_, RequestFailure>((status, body))
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
        let request = self.http_request(Method::POST, self.api.clone(), body);
        let (sender, response) = self.request(request).await?;
        let status = response.status();
        let reply = if status != StatusCode::OK {
            Err(refusal(status, response).await)
        } else if is_stream(&response) {
            read_stream(response, sent, keep_text).await
        } else {
            let body = read(response, BODY_MAX_BYTES).await?;
            tally::whole(&body, sent.elapsed(), keep_text)
        };
        // A connection whose answer was not read to its end is not reused: hyper reports it as
        // closed when it is taken out again.
        self.idle.lock().push(sender);
        reply
    }

    /// Sends on an open connection, or on a new one; returns the connection and the answer's head.
    async fn request(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Sender, Response<Incoming>), RequestFailure> {
        loop {
            let idle = self.idle.lock().pop();
            let reused = idle.is_some();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            if sender.ready().await.is_err() {
                if reused {
                    continue;
                }
                return Err(RequestFailure::Broken);
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                // The server closed an idle connection meanwhile, and nothing was sent: that is no
                // failure of the request. Each round uses up a connection, so the rounds end.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if reused => request = unsent,
                    _ => return Err(RequestFailure::Broken),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Sender, RequestFailure> {
        let stream = TcpStream::connect((self.target.host.as_str(), self.target.port)).await;
        let stream = stream.map_err(|_| RequestFailure::Connect)?;
        stream.set_nodelay(true).map_err(|_| RequestFailure::Connect)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(QuickAck::new(stream, self.quickack)))
                .await
                .map_err(|_| RequestFailure::Connect)?;
        // The task ends when the sender is dropped or the server closes the connection. Its error
        // also reaches the request that is in flight, so it is not handled here.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn http_request(&self, method: Method, uri: Uri, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// The headers of every request.
fn headers(target: &BenchTarget, api_key: Option<&str>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::from_str(&target.authority).context("url")?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("stator-bench/", env!("CARGO_PKG_VERSION"))),
    );
    if let Some(key) = api_key {
        // The key itself stays out of the message.
        let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
            .ok()
            .context("api-key: not a header value")?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

async fn read_stream(
    response: Response<Incoming>,
    sent: Instant,
    keep_text: bool,
) -> Result<MeasuredReply, RequestFailure> {
    let (mut body, mut parser, mut tally) =
        (response.into_body(), sse::SseParser::default(), ReplyTally::new(keep_text));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| RequestFailure::Broken)?;
        if let Some(data) = frame.data_ref() {
            let at = sent.elapsed();
            parser
                .feed(data, |event| tally.event(event, at))
                .map_err(|_| RequestFailure::Malformed)?;
        }
    }
    tally.finish(sent.elapsed())
}

async fn refusal(status: StatusCode, response: Response<Incoming>) -> RequestFailure {
    let body = read(response, ERROR_MAX_BYTES).await.unwrap_or_default();
    RequestFailure::Status { status: status.as_u16(), kind: failure::error_kind(&body) }
}

async fn read(response: Response<Incoming>, max_bytes: usize) -> Result<Bytes, RequestFailure> {
    let body = Limited::new(response.into_body(), max_bytes).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| match error.is::<hyper::Error>() {
        true => RequestFailure::Broken,
        false => RequestFailure::Malformed,
    })
}
