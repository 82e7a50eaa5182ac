//! An agent's events on its request plane: the news and replays that [`stator_events::subscribe`]
//! gives over ZMQ, under the request plane's TLS.

use super::client::AgentClient;
use bytes::Bytes;
use stator_events::attempts::{Attempts, CONNECT_TIMEOUT, FeedLoss};
use stator_events::replay::{REPLAY_SILENCE, ReplayBatches, replay_in_time};
use stator_events::subscribe::News;
use stator_protos::worker::{EventsFrame, ReplayRequest, SubscribeRequest};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Status, Streaming};

/// Stays subscribed to the topics that begin with one of `prefixes`, until the receiver is gone. The
/// connection is taken for dead after `silence`. Where the receiver is slow, the agent drops: the
/// numbers tell.
pub async fn follow(
    client: &AgentClient,
    prefixes: Vec<String>,
    silence: Duration,
    news: mpsc::Sender<News>,
) {
    let mut attempts = Attempts::new(client.endpoint());
    while !news.is_closed() {
        let request = SubscribeRequest { prefixes: prefixes.clone() };
        match follow_once(client, request, silence, &news).await {
            Ok(()) => return,
            Err(lost) => attempts.failed(lost).await,
        }
    }
}

async fn follow_once(
    client: &AgentClient,
    request: SubscribeRequest,
    silence: Duration,
    news: &mpsc::Sender<News>,
) -> Result<(), FeedLoss> {
    let mut frames = match timeout(CONNECT_TIMEOUT, subscribed(client, request)).await {
        Ok(frames) => frames.map_err(|status| FeedLoss::NeverConnected(status.to_string()))?,
        Err(_) => {
            let reason = format!("no subscription within {CONNECT_TIMEOUT:?}");
            return Err(FeedLoss::NeverConnected(reason));
        }
    };
    // Said before the first message: what was missed before it is found by its number.
    if news.send(News::Subscribed).await.is_err() {
        return Ok(());
    }
    loop {
        let frame = tokio::select! {
            received = timeout(silence, frames.message()) => match received {
                Ok(Ok(Some(frame))) => frame,
                Ok(Ok(None)) => return Err(FeedLoss::Connected("the agent ends".into())),
                Ok(Err(status)) => return Err(FeedLoss::Connected(status.to_string())),
                Err(_) => return Err(FeedLoss::Connected("silence".into())),
            },
            () = news.closed() => return Ok(()),
        };
        for message in frame.messages {
            let message = News::Message(message.topic, message.number, message.payload);
            if news.send(message).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// A subscription that stands: its first frame, which is empty, has come.
async fn subscribed(
    client: &AgentClient,
    request: SubscribeRequest,
) -> Result<Streaming<EventsFrame>, Status> {
    let mut frames = client.subscribe(request).await?;
    match frames.message().await? {
        Some(frame) if frame.messages.is_empty() => Ok(frames),
        Some(_) => Err(Status::data_loss("the first frame of a subscription is not empty")),
        None => Err(Status::unavailable("the agent ends")),
    }
}

/// Asks for one worker's batches from `start` on; they come in order, with their numbers.
///
/// # Errors
///
/// As [`stator_events::subscribe::replay`].
pub async fn replay(
    client: &AgentClient,
    topic: &str,
    start: u64,
) -> Result<Vec<(u64, Bytes)>, String> {
    replay_in_time(async {
        let request = ReplayRequest { topic: topic.into(), start };
        let mut frames = in_time(client.replay(request)).await?;
        let mut replayed = ReplayBatches::default();
        while let Some(frame) = in_time(frames.message()).await? {
            for message in frame.messages {
                if message.topic == topic.as_bytes() {
                    replayed.push(message.number, message.payload)?;
                }
            }
        }
        Ok(replayed.batches)
    })
    .await
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, String> {
    match timeout(REPLAY_SILENCE, answer).await {
        Ok(answer) => answer.map_err(|status| status.to_string()),
        Err(_) => Err(format!("no answer within {REPLAY_SILENCE:?}")),
    }
}
