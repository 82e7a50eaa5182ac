//! HTTP of one engine: requests out, bounded bodies in, statuses as faults.
//!
//! A request lives as long as its future or body. Dropping either closes the connection, which
//! tells the engine that nobody wants the answer. Bodies read to their end return their connection
//! for reuse.

mod fault;

pub(crate) use fault::{of_request as fault_of_request, of_status as fault_of_status};

use crate::{ApiKey, Fault, OptionsError};
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Uri};
use serde::de::DeserializeOwned;
use serde_json::Value;
use stator_http::{
    Acknowledge, Answer, AnswerBody, Bearer, HttpError, LinkSettings, Links, Origin, RequestHead,
    TlsOptions,
};
use std::fmt;
use std::time::Duration;

/// Connections to an engine. Servers of engines close idle ones after five seconds, and a request
/// must not meet a connection that is being closed; a request for tokens is never sent twice.
const LINKS: LinkSettings = LinkSettings {
    connect_timeout: Duration::from_secs(2),
    idle_timeout: Duration::from_secs(3),
    idle_max: 1024,
    acknowledge: Acknowledge::Late,
    repeats: false,
};
/// Largest answer, and largest event of a stream.
pub(crate) const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Most bytes of an error's body that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Longest wait for an engine's description of itself.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a server's API description, which the server makes on the first request.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for an operation; loading weights takes its time.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(300);

/// Speaks HTTP with one engine.
pub(crate) struct Client {
    links: Links,
    /// Scheme, authority and perhaps a path, without a slash at the end.
    base: String,
    host: String,
    /// Path of `base`, put before the path of every request.
    prefix: String,
    /// Host and port as given, for the `host` header.
    authority: String,
    key: Option<Bearer>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.base).finish()
    }
}

/// Headers of one request, beside those of every request.
pub(crate) type Headers = Vec<(HeaderName, HeaderValue)>;

impl Client {
    /// A client for the engine at `url`.
    pub(crate) fn new(url: &str, key: Option<&ApiKey>) -> Result<Self, OptionsError> {
        let refused = || OptionsError::Url { url: url.to_owned() };
        let base = url.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|_| refused())?;
        let scheme = uri.scheme_str().ok_or_else(refused)?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(refused)?.to_owned();
        if !matches!(scheme, "http" | "https") || uri.query().is_some() {
            return Err(refused());
        }
        let https = scheme == "https";
        let key = key.map(|key| Bearer::new(&key.0).ok_or(OptionsError::ApiKey)).transpose()?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // A user's name and password are no part of the host.
        let authority = authority.rsplit('@').next().unwrap_or_default().to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        let tls = https.then(|| TlsOptions::default().config()).transpose();
        let origin = Origin {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }),
            tls: tls.map_err(|error| OptionsError::Roots(error.to_string()))?,
        };
        let links = Links::new(origin, LINKS);
        Ok(Self { links, base, host, prefix, authority, key })
    }

    /// The engine's host as it stands in URLs, an IPv6 address in brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        headers: Headers,
    ) -> Result<Answer, Fault> {
        let path = PathAndQuery::try_from(format!("{}{path}", self.prefix))
            .map_err(|error| Fault::Invalid(format!("no request can be made: {error}")))?;
        let mut head = RequestHead::new(method.as_str(), path.as_str(), &self.authority);
        head.bearer(self.key.as_ref());
        if body.is_some() {
            head.header("content-type", b"application/json");
        }
        for (name, value) in &headers {
            head.header(name.as_str(), value.as_bytes());
        }
        let body = body.unwrap_or_default();
        let head = head.finish((method != Method::GET).then_some(body.len()));
        self.links.send(&head, &body).await.map_err(|why| self.unreachable(&why))
    }

    fn unreachable(&self, why: &HttpError) -> Fault {
        Fault::Unreachable(format!("{}: {why}", self.base))
    }

    /// Starts a request for tokens; its body is the answer.
    pub(crate) async fn ask(
        &self,
        path: &str,
        body: Vec<u8>,
        headers: Headers,
    ) -> Result<AnswerBody, Fault> {
        let answer = self.send(Method::POST, path, Some(body), headers).await?;
        if answer.status == StatusCode::OK {
            return Ok(answer.body);
        }
        let (status, body) = error_body(answer).await;
        Err(fault::of_request(status, &body))
    }

    /// Asks the engine about itself, within [`QUERY_TIMEOUT`].
    pub(crate) async fn query(&self, path: &str) -> Result<Bytes, Fault> {
        self.query_within(QUERY_TIMEOUT, path).await
    }

    /// Asks the engine about itself, within `limit`.
    pub(crate) async fn query_within(&self, limit: Duration, path: &str) -> Result<Bytes, Fault> {
        self.within(limit, path, async {
            let answer = self.send(Method::GET, path, None, Vec::new()).await?;
            if answer.status == StatusCode::OK {
                return collect(answer.body).await;
            }
            let (status, body) = error_body(answer).await;
            Err(fault::of_operation(status, &body))
        })
        .await
    }

    /// The server's description of its requests (`GET /openapi.json`); null where there is none.
    pub(crate) async fn schema(&self) -> Value {
        let described = self.query_within(SCHEMA_TIMEOUT, "/openapi.json").await;
        described.ok().and_then(|answer| serde_json::from_slice(&answer).ok()).unwrap_or_default()
    }

    /// The engine's answer to a question about itself, as JSON.
    pub(crate) async fn query_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Fault> {
        let answer = self.query(path).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| Fault::Failed(format!("{path}: the answer is not as known: {error}")))
    }

    /// Like [`Self::query_json`], but `None` where the engine has no such path.
    pub(crate) async fn query_optional<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Option<T>, Fault> {
        match self.query_json(path).await {
            Err(Fault::Unsupported(_)) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Status of a GET; the connection is closed.
    pub(crate) async fn status(&self, path: &str) -> Result<StatusCode, Fault> {
        self.within(QUERY_TIMEOUT, path, async {
            let answer = self.send(Method::GET, path, None, Vec::new()).await?;
            Ok(answer.status)
        })
        .await
    }

    /// Runs the engine's health check at `path`.
    pub(crate) async fn healthy(&self, path: &str) -> Result<(), Fault> {
        // Asked every second: as good a time as any.
        self.links.prune();
        self.within(QUERY_TIMEOUT, path, async {
            let answer = self.send(Method::GET, path, None, Vec::new()).await?;
            let status = answer.status;
            if status == StatusCode::OK {
                // Read to its end, so that the next check finds the connection open.
                return collect(answer.body).await.map(drop);
            }
            Err(Fault::Failed(format!("the engine answers {status} to {path}")))
        })
        .await
    }

    /// Runs an operation on the engine and returns its answer.
    pub(crate) async fn operate(&self, path: &str, body: Option<Vec<u8>>) -> Result<Bytes, Fault> {
        self.within(OPERATION_TIMEOUT, path, async {
            let answer = self.send(Method::POST, path, body, Vec::new()).await?;
            if answer.status.is_success() {
                return collect(answer.body).await;
            }
            let (status, body) = error_body(answer).await;
            Err(fault::of_operation(status, &body))
        })
        .await
    }

    async fn within<T>(
        &self,
        limit: Duration,
        path: &str,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            let base = &self.base;
            Err(Fault::Unreachable(format!("{base}{path}: no answer within {seconds} s")))
        })
    }
}

/// A whole body, up to [`MAX_ANSWER_BYTES`].
pub(crate) async fn collect(mut body: AnswerBody) -> Result<Bytes, Fault> {
    let mut bytes = Vec::new();
    match body.collect(&mut bytes, MAX_ANSWER_BYTES).await {
        Ok(()) => Ok(bytes.into()),
        Err(error @ HttpError::TooLarge { .. }) => Err(Fault::Failed(error.to_string())),
        Err(error) => Err(broken(&error)),
    }
}

/// The fault of an answer that broke off.
pub(crate) fn broken(error: &HttpError) -> Fault {
    Fault::Unreachable(error.to_string())
}

/// Status and first [`MAX_ERROR_BYTES`] of an error's body; a broken body counts as far as it came.
async fn error_body(answer: Answer) -> (StatusCode, Vec<u8>) {
    let Answer { status, mut body, .. } = answer;
    let mut bytes = Vec::new();
    let _ = body.collect(&mut bytes, MAX_ERROR_BYTES).await;
    bytes.truncate(MAX_ERROR_BYTES);
    (status, bytes)
}

#[cfg(test)]
mod tests;
