//! Polls the list of events of a TensorRT-LLM server.

use super::super::follower::{NEWS_MAX, Source};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use stator_events::subscribe::News;
use stator_http::{Bearer, Connection, HttpError, Origin};
use std::num::NonZeroU32;
use std::time::Duration;
use tokio::sync::mpsc;

/// Shortest and longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Settings for reading the list.
#[derive(Clone, Debug)]
pub struct TrtLlmSettings {
    /// The server.
    pub origin: Origin,
    /// The server's key; none by default.
    pub bearer: Option<Bearer>,
    /// Tokens per block of the engine, which its events do not carry. The engine's default is 32.
    pub block_size: NonZeroU32,
    /// Wait before the next question after an empty list, 20 ms by default. The server itself holds
    /// an answer back for up to two seconds until there are events.
    pub pause: Duration,
    /// Longest wait for an answer, 10 s by default.
    pub timeout: Duration,
    /// Largest answer, in bytes, 64 MiB by default. The events of a larger one are lost.
    pub list_bytes_max: usize,
}

impl TrtLlmSettings {
    /// The default settings for a server.
    pub fn new(origin: Origin, block_size: NonZeroU32) -> Self {
        Self {
            origin,
            bearer: None,
            block_size,
            pause: Duration::from_millis(20),
            timeout: Duration::from_secs(10),
            list_bytes_max: 64 << 20,
        }
    }
}

/// Reads the events of one server for the followers of its ranks.
#[derive(Debug)]
pub struct TrtLlmDrain {
    settings: TrtLlmSettings,
    connection: Connection,
    ranks: Vec<mpsc::Sender<News>>,
    /// Whether the log has mentioned ranks without a follower.
    told: bool,
}

/// The fields that decide where an event goes.
#[derive(Deserialize)]
struct Head {
    event_id: u64,
    #[serde(default)]
    attention_dp_rank: Option<usize>,
}

/// Reason why there is no list.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Fetch(#[from] HttpError),
    #[error("status {0}, not 200")]
    Status(u16),
    #[error("malformed list: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl TrtLlmDrain {
    /// Makes a reader that has asked nothing yet, and one source for the follower of each rank.
    pub fn new(settings: TrtLlmSettings, ranks: u16) -> (Self, Vec<Source>) {
        let block_size = settings.block_size;
        let (ranks, sources) = (0..ranks)
            .map(|_| {
                let (sender, news) = mpsc::channel(NEWS_MAX);
                (sender, Source::TrtLlm { news, block_size })
            })
            .unzip();
        let connection = Connection::new(settings.origin.clone());
        (Self { settings, connection, ranks, told: false }, sources)
    }

    /// Reads until no follower is left, or until dropped.
    ///
    /// # Cancel safety
    ///
    /// Events that were read and not sent on are lost; the gap in their numbers shows it.
    pub async fn run(mut self) {
        let TrtLlmSettings { origin, bearer, .. } = &self.settings;
        let (target, bearer) = ("/kv_cache_events", bearer.as_ref());
        let request = stator_http::request("POST", origin, target, bearer, Some(b""));
        let (mut backoff, mut connected) = (BACKOFF.0, false);
        while self.ranks.iter().any(|rank| !rank.is_closed()) {
            let wait = match self.ask(&request).await {
                Ok(events) => {
                    if !connected {
                        // Whoever is there now may be another than before.
                        tell_all(&self.ranks, || News::Subscribed).await;
                    }
                    (connected, backoff) = (true, BACKOFF.0);
                    let wait = if events.is_empty() { self.settings.pause } else { Duration::ZERO };
                    let beyond = send_on(&self.ranks, events).await;
                    if let Some(rank) = beyond.filter(|_| !std::mem::replace(&mut self.told, true))
                    {
                        let ranks = self.ranks.len();
                        tracing::warn!(rank, ranks, "events of ranks that nobody follows are lost");
                    }
                    wait
                }
                Err(failure) => {
                    let Origin { host, port, .. } = &self.settings.origin;
                    tracing::debug!(host, port, %failure, "no events of an engine");
                    match failure {
                        Failure::Fetch(error) if error.is_lost() => connected = false,
                        Failure::Malformed(_) => tell_all(&self.ranks, || News::Malformed).await,
                        Failure::Fetch(_) | Failure::Status(_) | Failure::Timeout(_) => {}
                    }
                    let wait = backoff;
                    backoff = (backoff * 2).min(BACKOFF.1);
                    wait
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks for the events since the last question, each in its own JSON.
    async fn ask(&mut self, request: &[u8]) -> Result<Vec<Box<RawValue>>, Failure> {
        let TrtLlmSettings { timeout, list_bytes_max, .. } = self.settings;
        let exchange = self.connection.exchange(request, list_bytes_max);
        let response = match tokio::time::timeout(timeout, exchange).await {
            Ok(response) => response?,
            Err(_) => return Err(Failure::Timeout(timeout)),
        };
        match response.status {
            // That there are none is said in two ways.
            200 if response.body.trim_ascii() == b"null" => Ok(Vec::new()),
            200 => Ok(serde_json::from_slice(response.body)?),
            status => Err(Failure::Status(status)),
        }
    }
}

/// Sends each event to the follower of its rank; returns a rank without one.
async fn send_on(ranks: &[mpsc::Sender<News>], events: Vec<Box<RawValue>>) -> Option<usize> {
    let mut beyond = None;
    for event in events {
        let text = event.get();
        let (rank, news) = match serde_json::from_str::<Head>(text) {
            Ok(Head { event_id, attention_dp_rank }) => {
                let payload = Bytes::copy_from_slice(text.as_bytes());
                let rank = attention_dp_rank.unwrap_or(0);
                (rank, News::Message(Bytes::new(), event_id, payload))
            }
            // The next number shows that it is missing.
            Err(_) => (0, News::Malformed),
        };
        match ranks.get(rank) {
            // A follower that is gone wants to know nothing.
            Some(follower) => drop(follower.send(news).await),
            None => beyond = Some(rank),
        }
    }
    beyond
}

async fn tell_all(ranks: &[mpsc::Sender<News>], news: impl Fn() -> News) {
    for rank in ranks {
        let _ = rank.send(news()).await;
    }
}
