//! Media that are encoded by other engines, before the prompt is computed. Whatever fails here, the
//! engine that computes the prompt encodes by itself.

use super::media::Media;
use super::metrics::{Encoding, Metrics};
use super::request::Request;
use super::trace;
use crate::upstream::engines::{Engines, LegError};
use crate::upstream::headers;
use crate::upstream::settings::EngineTls;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use serde_json::value::RawValue;
use stator_body::Object;
use stator_handover::EC_PARAMETERS;
use stator_protos::header::REQUEST_ID;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

/// Most items of a request that are encoded elsewhere.
const ITEMS_MAX: usize = 128;
/// Most items of a request that are being encoded at a time, which is also how many requests for
/// that are in memory.
const AT_ONCE_MAX: usize = 8;
/// Longest answer of an encoder that is read, in bytes. It tells where one item is.
const ANSWER_MAX_BYTES: usize = 256 << 10;

/// Connector by which an engine finds encoded media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EcConnector {
    /// vLLM's ECExampleConnector: in a storage that both see.
    EcExample,
    /// vLLM's EC connectors over NIXL: the encoder answers with parameters by which it is read.
    EcNixl,
}

/// Settings for media encoded on other engines.
#[derive(Clone, Debug)]
pub(crate) struct EncodeSettings {
    pub connector: EcConnector,
    /// Longest wait for all items of a request.
    pub timeout: Duration,
    pub tls: EngineTls,
}

/// Has media encoded.
pub(crate) struct Encoders {
    pub engines: Arc<Engines>,
    pub settings: EncodeSettings,
    pub metrics: Metrics,
}

/// Locations of encoded items, by the hashes of the items.
type Parameters = BTreeMap<String, Box<RawValue>>;

/// Why an item was not encoded.
#[derive(Debug, thiserror::Error)]
enum Unencoded {
    #[error(transparent)]
    Leg(#[from] LegError),
    #[error("an encoder answered with status {0}")]
    Status(StatusCode),
    #[error("an encoder answered without {EC_PARAMETERS}")]
    NoParameters,
    #[error("items were not encoded within {limit_ms} ms")]
    TimedOut { limit_ms: u128 },
    #[error("the request has more than {ITEMS_MAX} items")]
    TooMany,
}

impl Unencoded {
    /// The reason's name in metrics.
    fn label(&self) -> &'static str {
        match self {
            Self::Leg(LegError::Connect { .. }) => "unreachable",
            Self::Leg(_) => "broken",
            Self::Status(_) => "status",
            Self::NoParameters => "no_parameters",
            Self::TimedOut { .. } => "timeout",
            Self::TooMany => "too_many",
        }
    }
}

impl Encoders {
    /// Has the media of a request encoded, each item by the next of the request's encoders, and
    /// tells where they are; nothing where there are none, or where that need not be said.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts all requests.
    pub(crate) async fn encode(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let object = Object::parse(request.body).ok()?;
        let media = Media::find(request.api, &object);
        if media.len() == 0 || request.encoders.is_empty() {
            return None;
        }
        trace::encodes(request.encoders.len());
        let span = trace::encode(media.len());
        let started = Instant::now();
        let parameters = self.all(request, &media).instrument(span.clone()).await;
        let took = started.elapsed();
        trace::encoded(&span, took);
        self.metrics.encode_duration.observe(took.as_secs_f64());
        (!parameters.is_empty())
            .then(|| serde_json::to_vec(&parameters).expect("names and values are JSON"))
    }

    /// Has all items encoded, a few at a time and until the deadline.
    async fn all(&self, request: &Request<'_>, media: &Media<'_, '_>) -> Parameters {
        let deadline = Instant::now() + self.settings.timeout;
        let items = media.len().min(ITEMS_MAX);
        let mut bodies = media.requests().take(ITEMS_MAX).zip(request.encoders.iter().cycle());
        let (mut sent, mut answered) = (0, 0);
        let mut parameters = Parameters::new();
        let mut failures = Failures { metrics: &self.metrics, count: 0, first: None };
        failures.add(media.len() - items, || Unencoded::TooMany);
        let mut running = JoinSet::new();
        loop {
            while running.len() < AT_ONCE_MAX
                && let Some((body, encoder)) = bodies.next()
            {
                let body = Bytes::from(body);
                let head = head(request.head, &body, sent);
                let (engines, encoder) = (self.engines.clone(), encoder.clone());
                let tls = self.settings.tls;
                let answer = async move {
                    let peer = engines.engine(&encoder, tls).await?;
                    ask(&engines, &peer, &head, &body).await
                };
                running.spawn(answer.in_current_span());
                sent += 1;
            }
            // The deadline is that of all items: the prompt waits for the slowest.
            let joined = match timeout_at(deadline, running.join_next()).await {
                Ok(Some(joined)) => joined.expect("nobody else ends these tasks"),
                Ok(None) => break,
                Err(_) => {
                    let limit_ms = self.settings.timeout.as_millis();
                    failures.add(items - answered, || Unencoded::TimedOut { limit_ms });
                    break;
                }
            };
            answered += 1;
            let found = joined.and_then(|answer| self.parameters(&answer));
            match found {
                Ok(found) => {
                    parameters.extend(found);
                    self.metrics.media.get_or_create(&Encoding { outcome: "encoded" }).inc();
                }
                Err(error) => failures.add(1, || error),
            }
        }
        if let Some(error) = failures.first {
            let (failed, of) = (failures.count, media.len());
            tracing::warn!(failed, of, %error, "media were not encoded elsewhere");
        }
        parameters
    }

    /// The parameters in an encoder's answer.
    fn parameters(&self, answer: &[u8]) -> Result<Parameters, Unencoded> {
        match self.settings.connector {
            EcConnector::EcExample => Ok(Parameters::new()),
            EcConnector::EcNixl => parameters_of(answer).ok_or(Unencoded::NoParameters),
        }
    }
}

/// Counts items that were not encoded, and keeps the first reason for the log.
struct Failures<'a> {
    metrics: &'a Metrics,
    count: usize,
    first: Option<Unencoded>,
}

impl Failures<'_> {
    fn add(&mut self, items: usize, error: impl FnOnce() -> Unencoded) {
        if items == 0 {
            return;
        }
        let error = error();
        let outcome = Encoding { outcome: error.label() };
        self.metrics.media.get_or_create(&outcome).inc_by(items as u64);
        self.count += items;
        self.first.get_or_insert(error);
    }
}

/// The head for an item's request. Engines know requests by their identity, so that each item has
/// its own.
fn head(onward: &RequestHeader, body: &Bytes, item: usize) -> RequestHeader {
    let mut head = headers::for_body(onward, body);
    let id = onward.headers.get(REQUEST_ID).map_or(&b""[..], |id| id.as_bytes());
    let id = [id, format!("-enc-{item}").as_bytes()].concat();
    if let Ok(id) = HeaderValue::from_bytes(&id) {
        headers::insert(&mut head, HeaderName::from_static(REQUEST_ID), id);
    }
    trace::pass_on(&mut head, &tracing::Span::current());
    head
}

/// Has one item encoded: the whole answer.
async fn ask(
    engines: &Engines,
    encoder: &HttpPeer,
    head: &RequestHeader,
    body: &Bytes,
) -> Result<Bytes, Unencoded> {
    let mut leg = engines.send(encoder, head, body).await?;
    let status = leg.head().status;
    if !status.is_success() {
        return Err(Unencoded::Status(status));
    }
    let answer = leg.whole(ANSWER_MAX_BYTES).await?;
    engines.keep(leg).await;
    Ok(answer)
}

/// The parameters in an encoder's answer, if it has any.
fn parameters_of(answer: &[u8]) -> Option<Parameters> {
    let raw = Object::parse(answer).ok()?.get(EC_PARAMETERS)?;
    serde_json::from_slice(raw).ok().filter(|found: &Parameters| !found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_as_they_came() {
        let answer = br#"{"choices":[],"ec_transfer_params":{"h":{"peer_port": 8610}}}"#;
        let found = parameters_of(answer).expect("they are there");
        assert_eq!(serde_json::to_string(&found).expect("JSON"), r#"{"h":{"peer_port": 8610}}"#);
        for params in ["null", "{}", "[]", "\"x\""] {
            let answer = format!(r#"{{"ec_transfer_params":{params}}}"#);
            assert!(parameters_of(answer.as_bytes()).is_none(), "{params}");
        }
        assert!(parameters_of(b"{}").is_none() && parameters_of(b"").is_none());
    }
}
