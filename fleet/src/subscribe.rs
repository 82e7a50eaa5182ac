//! The event plane's sockets: the live feed of one publisher, an agent or a stock engine, and
//! replays from it.

use bytes::Bytes;
use futures::StreamExt;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketEvent, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Longest silence of an agent, whose workers speak every second, before the connection is taken
/// for dead.
pub const AGENT_SILENCE: Duration = Duration::from_secs(5);
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Waits between attempts to connect, from the first to the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Longest wait for the next message of a replay. A stock engine serves replays between two
/// batches, and looks for them every 100 ms.
const REPLAY_SILENCE: Duration = Duration::from_secs(2);
/// Longest wait for all of a replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);
/// Batches that a replay may have.
const REPLAY_BATCHES_MAX: usize = 1 << 20;
/// Bytes of payload that a replay may have.
const REPLAY_BYTES_MAX: usize = 256 << 20;
/// The number frame of a replay's end marker.
const REPLAY_END: u64 = u64::MAX;

/// What to subscribe to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// A ZMQ endpoint, `tcp://host:port` or `ipc:///path`.
    pub endpoint: String,
    /// What the topics of wanted messages begin with.
    pub prefixes: Vec<String>,
    /// Longest silence before the connection is taken for dead; `None` where a publisher may
    /// have nothing to say.
    pub silence: Option<Duration>,
}

/// What the live feed brings.
#[derive(Debug)]
pub enum News {
    /// The subscription stands; what is published from about now on will come.
    Subscribed,
    /// A message: topic, number, payload.
    Message(Bytes, u64, Bytes),
    /// A message that has not these three frames.
    Malformed,
}

/// Stays subscribed until the receiver is gone. Where the receiver is slow, the
/// publisher is held up and then drops: the numbers tell.
pub async fn follow(subscription: Subscription, news: mpsc::Sender<News>) {
    let endpoint = &subscription.endpoint;
    let mut backoff = BACKOFF.0;
    while !news.is_closed() {
        match follow_once(&subscription, &news).await {
            Ok(()) => return,
            Err(Lost::Connected(reason)) => {
                tracing::info!(endpoint, reason, "lost an event feed");
                backoff = BACKOFF.0;
            }
            Err(Lost::NeverConnected(reason)) => {
                tracing::debug!(endpoint, reason, "cannot subscribe");
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

enum Lost {
    Connected(String),
    NeverConnected(String),
}

async fn follow_once(subscription: &Subscription, news: &mpsc::Sender<News>) -> Result<(), Lost> {
    let mut socket = SubSocket::new();
    connect(&mut socket, &subscription.endpoint).await.map_err(Lost::NeverConnected)?;
    let lost = |reason: &dyn std::fmt::Display| Lost::Connected(reason.to_string());
    let mut monitor = socket.monitor();
    for prefix in &subscription.prefixes {
        socket.subscribe(prefix).await.map_err(|error| lost(&error))?;
    }
    if news.send(News::Subscribed).await.is_err() {
        return Ok(());
    }
    // Longer than any process lives.
    let silence = subscription.silence.unwrap_or(Duration::from_secs(1 << 32));
    loop {
        let message = tokio::select! {
            received = timeout(silence, socket.recv()) => match received {
                Ok(message) => message.map_err(|error| lost(&error))?,
                Err(_) => return Err(lost(&"silence")),
            },
            // The socket would reconnect by itself, but with growing waits of up to 30 s.
            event = monitor.next() => match event {
                Some(SocketEvent::Disconnected(_)) | None => return Err(lost(&"disconnected")),
                Some(_) => continue,
            },
            () = news.closed() => return Ok(()),
        };
        let item = match <[Bytes; 3]>::try_from(message.into_vec()) {
            Ok([topic, number, payload]) => match number.as_ref().try_into() {
                Ok(number) => News::Message(topic, u64::from_be_bytes(number), payload),
                Err(_) => News::Malformed,
            },
            Err(_) => News::Malformed,
        };
        if news.send(item).await.is_err() {
            return Ok(());
        }
    }
}

/// Asks for the batches from `start` on; they come in order, with their numbers.
///
/// A stator agent, which speaks for several workers, is told a `topic`; a stock engine knows none
/// and is asked in its own framing. Answers are read with a topic frame and without.
///
/// # Errors
///
/// What went wrong, for a log line. A replay that breaks off is an error, never a part.
pub async fn replay(
    endpoint: &str,
    topic: Option<&str>,
    start: u64,
) -> Result<Vec<(u64, Bytes)>, String> {
    match timeout(REPLAY_TIMEOUT, replay_unlimited(endpoint, topic, start)).await {
        Ok(batches) => batches,
        Err(_) => Err(format!("not complete within {REPLAY_TIMEOUT:?}")),
    }
}

async fn replay_unlimited(
    endpoint: &str,
    topic: Option<&str>,
    start: u64,
) -> Result<Vec<(u64, Bytes)>, String> {
    let mut socket = DealerSocket::new();
    connect(&mut socket, endpoint).await?;
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&start.to_be_bytes()));
    if let Some(topic) = topic {
        request.push_back(Bytes::copy_from_slice(topic.as_bytes()));
    }
    socket.send(request).await.map_err(|error| error.to_string())?;
    let (mut batches, mut size_bytes) = (Vec::new(), 0);
    loop {
        let answer = timeout(REPLAY_SILENCE, socket.recv())
            .await
            .map_err(|_| format!("no answer within {REPLAY_SILENCE:?}"))?
            .map_err(|error| error.to_string())?;
        let (found, number, payload) = answer_frames(answer)?;
        if number == REPLAY_END && payload.is_empty() {
            return Ok(batches);
        }
        size_bytes += payload.len();
        if size_bytes > REPLAY_BYTES_MAX || batches.len() == REPLAY_BATCHES_MAX {
            return Err(format!(
                "more than {REPLAY_BYTES_MAX} bytes or {REPLAY_BATCHES_MAX} batches"
            ));
        }
        if topic.is_none_or(|topic| found.is_some_and(|found| found == topic.as_bytes())) {
            batches.push((number, payload));
        }
    }
}

/// `["", topic, number, payload]`, or without the topic as vLLM sent it up to 0.25.
fn answer_frames(answer: ZmqMessage) -> Result<(Option<Bytes>, u64, Bytes), String> {
    let (topic, number, payload) = match &answer.into_vec()[..] {
        [_, topic, number, payload] => (Some(topic.clone()), number.clone(), payload.clone()),
        [_, number, payload] => (None, number.clone(), payload.clone()),
        frames => return Err(format!("an answer has {} frames, not 3 or 4", frames.len())),
    };
    let number = number.as_ref().try_into().map_err(|_| "a number has not 8 bytes")?;
    Ok((topic, u64::from_be_bytes(number), payload))
}

async fn connect(socket: &mut impl Socket, endpoint: &str) -> Result<(), String> {
    match timeout(CONNECT_TIMEOUT, socket.connect(endpoint)).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
    }
}
