//! The event plane's ZMQ sockets: the live feed of one publisher, a stock engine or an agent of an
//! earlier version, and replays from it.

use crate::attempts::{Attempts, BACKOFF, CONNECT_TIMEOUT, FeedLoss};
use crate::replay::{REPLAY_SILENCE, ReplayBatches, replay_in_time};
use bytes::Bytes;
use stator_zmtp::{Collector, Dealer, Message, Subscriber};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longest silence of an agent, whose workers speak every second, before the connection is taken
/// for dead.
pub const AGENT_SILENCE: Duration = Duration::from_secs(5);
/// The number frame of a replay's end marker.
const REPLAY_END: u64 = u64::MAX;

/// A publisher to follow, and the messages wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// A ZMQ endpoint, `tcp://host:port` or `ipc:///path`.
    pub endpoint: String,
    /// Prefixes of the topics of wanted messages.
    pub prefixes: Vec<String>,
    /// Longest silence before the connection is taken for dead; `None` where a publisher may
    /// have nothing to say.
    pub silence: Option<Duration>,
}

/// News from the live feed.
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
    let mut attempts = Attempts::new(&subscription.endpoint);
    while !news.is_closed() {
        match follow_once(&subscription, &news).await {
            Ok(()) => return,
            Err(lost) => attempts.failed(lost).await,
        }
    }
}

async fn follow_once(
    subscription: &Subscription,
    news: &mpsc::Sender<News>,
) -> Result<(), FeedLoss> {
    let connecting = Subscriber::connect(&subscription.endpoint);
    let mut subscriber = in_time(connecting).await.map_err(FeedLoss::NeverConnected)?;
    let lost = |reason: &dyn std::fmt::Display| FeedLoss::Connected(reason.to_string());
    for prefix in &subscription.prefixes {
        subscriber.subscribe(prefix.as_bytes()).await.map_err(|error| lost(&error))?;
    }
    if news.send(News::Subscribed).await.is_err() {
        return Ok(());
    }
    // Longer than any process lives.
    let silence = subscription.silence.unwrap_or(Duration::from_secs(1 << 32));
    loop {
        let message = tokio::select! {
            received = timeout(silence, subscriber.recv()) => match received {
                Ok(message) => message.map_err(|error| lost(&error))?,
                Err(_) => return Err(lost(&"silence")),
            },
            () = news.closed() => return Ok(()),
        };
        if news.send(self::news(message)).await.is_err() {
            return Ok(());
        }
    }
}

/// Listens at `endpoint` for publishers that connect there, and delivers their messages whose
/// topics begin with `prefix`; who sent one is told by its topic alone. `deliver` must not wait.
/// An address that cannot be listened at is tried again and again.
///
/// # Cancel safety
///
/// Dropping the future closes the socket.
pub async fn collect(endpoint: &str, prefix: &str, mut deliver: impl FnMut(News)) {
    let mut backoff = BACKOFF.0;
    let mut collector = loop {
        match Collector::bind(endpoint, prefix.as_bytes()).await {
            Ok(collector) => break collector,
            Err(error) => tracing::warn!(endpoint, %error, "cannot listen for events"),
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    };
    loop {
        deliver(news(collector.recv().await));
    }
}

/// The news in a message.
fn news(message: Message) -> News {
    match <[Bytes; 3]>::try_from(message) {
        Ok([topic, number, payload]) => match number.as_ref().try_into() {
            Ok(number) => News::Message(topic, u64::from_be_bytes(number), payload),
            Err(_) => News::Malformed,
        },
        Err(_) => News::Malformed,
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
    replay_in_time(replay_unlimited(endpoint, topic, start)).await
}

async fn replay_unlimited(
    endpoint: &str,
    topic: Option<&str>,
    start: u64,
) -> Result<Vec<(u64, Bytes)>, String> {
    let mut dealer = in_time(Dealer::connect(endpoint)).await?;
    let mut request = vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())];
    request.extend(topic.map(|topic| Bytes::copy_from_slice(topic.as_bytes())));
    dealer.send(&request).await.map_err(|error| error.to_string())?;
    let mut replayed = ReplayBatches::default();
    loop {
        let answer = timeout(REPLAY_SILENCE, dealer.recv())
            .await
            .map_err(|_| format!("no answer within {REPLAY_SILENCE:?}"))?
            .map_err(|error| error.to_string())?;
        let (found, number, payload) = answer_frames(answer)?;
        if number == REPLAY_END && payload.is_empty() {
            return Ok(replayed.batches);
        }
        if topic.is_none_or(|topic| found.is_some_and(|found| found == topic.as_bytes())) {
            replayed.push(number, payload)?;
        }
    }
}

/// `["", topic, number, payload]`, or without the topic as vLLM sent it up to 0.25.
fn answer_frames(answer: Message) -> Result<(Option<Bytes>, u64, Bytes), String> {
    let (topic, number, payload) = match &answer[..] {
        [_, topic, number, payload] => (Some(topic.clone()), number.clone(), payload.clone()),
        [_, number, payload] => (None, number.clone(), payload.clone()),
        frames => return Err(format!("an answer has {} frames, not 3 or 4", frames.len())),
    };
    let number = number.as_ref().try_into().map_err(|_| "a number has not 8 bytes")?;
    Ok((topic, u64::from_be_bytes(number), payload))
}

async fn in_time<T>(
    connecting: impl Future<Output = Result<T, stator_zmtp::Error>>,
) -> Result<T, String> {
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use stator_protos::kv_event;

    fn unhex(text: &Value) -> Bytes {
        let text = text.as_str().expect("hex");
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
        (0..text.len()).step_by(2).map(byte).collect()
    }

    /// Checks the replays that an engine gave; `None` ends one.
    fn check(engine: &str, expected: [&[Option<u64>]; 3]) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/replays");
        let lines = std::fs::read_to_string(format!("{folder}/{engine}.jsonl")).expect("recorded");
        assert_eq!(lines.lines().count(), expected.len());
        for (line, expected) in lines.lines().zip(expected) {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let answers = line["answers"].as_array().expect("a list").iter().map(|frames| {
                let frames: Vec<_> = frames.as_array().expect("frames").iter().map(unhex).collect();
                let (_, number, payload) = answer_frames(frames).expect("an answer");
                if number == REPLAY_END && payload.is_empty() {
                    return None;
                }
                kv_event::decode(&payload).expect("a batch");
                Some(number)
            });
            assert_eq!(answers.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn replays_that_engines_gave_are_read() {
        check(
            "vllm-0.32.0",
            [&[None], &[Some(0), Some(1), Some(2), None], &[Some(50), Some(51), None]],
        );
        check(
            "sglang-0.5.23",
            [&[None], &[Some(0), Some(1), Some(2), None], &[Some(38), Some(39), Some(40), None]],
        );
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let frames = |sizes: &[usize]| {
            let frames: Vec<_> = sizes.iter().map(|size| Bytes::from(vec![0; *size])).collect();
            answer_frames(frames)
        };
        assert_eq!(frames(&[0, 8]).expect_err("too few"), "an answer has 2 frames, not 3 or 4");
        assert_eq!(frames(&[0, 7, 3]).expect_err("short"), "a number has not 8 bytes");
        assert_eq!(frames(&[0, 8, 3]).expect("without a topic").0, None);
    }
}
