//! HTTP of one engine: requests out, bounded bodies in, statuses as faults.
//!
//! A request lives as long as its future or body. Dropping either closes the connection, which
//! tells the engine that nobody wants the answer. Bodies read to their end return their connection
//! for reuse.

mod fault;
mod framing;
mod links;
mod wire;

pub(crate) use fault::{of_request as fault_of_request, of_status as fault_of_status};
pub(crate) use framing::put_together;
pub(crate) use links::AnswerBody;

use crate::{ApiKey, Fault, OptionsError};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use links::Links;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle connections are closed after this; the engines' servers do it after five seconds, and a
/// request must not meet a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Most idle connections that are kept.
const MAX_IDLE: usize = 1024;
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
    authority: HeaderValue,
    authorization: Option<HeaderValue>,
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
        let authorization = key.map(authorization).transpose()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = encrypting(tcp, scheme == "https")?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // A user's name and password are no part of the host.
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let authority = HeaderValue::try_from(authority).map_err(|_| refused())?;
        let prefix = uri.path().trim_end_matches('/').to_owned();
        let links = Links::new(connector, uri);
        Ok(Self { links, base, host, prefix, authority, authorization })
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
    ) -> Result<Response<AnswerBody>, Fault> {
        let path = PathAndQuery::try_from(format!("{}{path}", self.prefix))
            .map_err(|error| Fault::Invalid(format!("no request can be made: {error}")))?;
        let mut head = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
        line(&mut head, &HOST, &self.authority);
        if let Some(key) = &self.authorization {
            line(&mut head, &AUTHORIZATION, key);
        }
        if body.is_some() {
            line(&mut head, &CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        }
        for (name, value) in &headers {
            line(&mut head, name, value);
        }
        let body = body.unwrap_or_default();
        if method != Method::GET {
            line(&mut head, &CONTENT_LENGTH, &body.len().into());
        }
        head.extend_from_slice(b"\r\n");
        self.links.send(&head, &body).await.map_err(|why| self.unreachable(&why))
    }

    fn unreachable(&self, why: &str) -> Fault {
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
        if answer.status() == StatusCode::OK {
            return Ok(answer.into_body());
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
            if answer.status() == StatusCode::OK {
                return collect(answer.into_body()).await;
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
            Ok(answer.status())
        })
        .await
    }

    /// Runs the engine's health check at `path`.
    pub(crate) async fn healthy(&self, path: &str) -> Result<(), Fault> {
        // Asked every second: as good a time as any.
        self.links.prune();
        self.within(QUERY_TIMEOUT, path, async {
            let answer = self.send(Method::GET, path, None, Vec::new()).await?;
            let status = answer.status();
            if status == StatusCode::OK {
                // Read to its end, so that the next check finds the connection open.
                return collect(answer.into_body()).await.map(drop);
            }
            Err(Fault::Failed(format!("the engine answers {status} to {path}")))
        })
        .await
    }

    /// Runs an operation on the engine and returns its answer.
    pub(crate) async fn operate(&self, path: &str, body: Option<Vec<u8>>) -> Result<Bytes, Fault> {
        self.within(OPERATION_TIMEOUT, path, async {
            let answer = self.send(Method::POST, path, body, Vec::new()).await?;
            if answer.status().is_success() {
                return collect(answer.into_body()).await;
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
    while body.read(|part| bytes.extend_from_slice(part)).await.map_err(|error| broken(&error))? {
        if bytes.len() > MAX_ANSWER_BYTES {
            let why = format!("the answer is larger than {MAX_ANSWER_BYTES} bytes");
            return Err(Fault::Failed(why));
        }
    }
    Ok(bytes.into())
}

/// The fault of an answer that broke off.
pub(crate) fn broken(error: &(dyn std::error::Error + 'static)) -> Fault {
    Fault::Unreachable(format!("the answer broke off: {}", fault::with_causes(error)))
}

/// Status and first [`MAX_ERROR_BYTES`] of an error's body; a broken body counts as far as it came.
async fn error_body(answer: Response<AnswerBody>) -> (StatusCode, Vec<u8>) {
    let (head, mut body) = answer.into_parts();
    let mut bytes = Vec::new();
    while let Ok(true) = body.read(|part| bytes.extend_from_slice(part)).await {
        if bytes.len() >= MAX_ERROR_BYTES {
            bytes.truncate(MAX_ERROR_BYTES);
            break;
        }
    }
    (head.status, bytes)
}

/// Writes a header.
fn line(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        head.extend_from_slice(part);
    }
}

fn authorization(key: &ApiKey) -> Result<HeaderValue, OptionsError> {
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", key.0)).map_err(|_| OptionsError::ApiKey)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Adds TLS to the connector. Root certificates are read for `https` alone: that takes
/// milliseconds.
fn encrypting(
    tcp: HttpConnector,
    https: bool,
) -> Result<HttpsConnector<HttpConnector>, OptionsError> {
    let builder = HttpsConnectorBuilder::new();
    let provider = hyper_rustls_provider();
    let failed = |error: &dyn fmt::Display| OptionsError::Roots(error.to_string());
    let builder = if https {
        builder.with_provider_and_native_roots(provider).map_err(|error| failed(&error))?
    } else {
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder.with_tls_config(config)
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

fn hyper_rustls_provider() -> rustls::crypto::CryptoProvider {
    rustls::crypto::ring::default_provider()
}

#[cfg(test)]
mod tests;
