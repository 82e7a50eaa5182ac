//! The event plane on the request plane: the third service of the agent's gRPC port.

use super::Feeds;
use super::queue::Message;
use super::reader::{PART_BYTES, Reader, ReplayRange, SEND_TIMEOUT};
use super::subscribers::{Subscribers, Subscription};
use crate::metrics::AgentMetrics;
use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt};
use stator_protos::worker::events_server::Events;
use stator_protos::worker::{EventMessage, EventsFrame, ReplayRequest, SubscribeRequest};
use stator_runtime::Shutdown;
use stator_runtime::quota::{Hold, Quota, QuotaRefusal};
use stator_runtime::tls::TlsPeer;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

/// Prefixes of one subscriber, and bytes of each: no topic is longer.
const PREFIXES_MAX: usize = 64;
const PREFIX_BYTES_MAX: usize = 128;
/// Replays that run at once, in all and for one IP address.
const REPLAYS_MAX: usize = 256;
const REPLAYS_PER_ADDRESS: usize = 64;
/// Longest wait of a replay for others to end.
const REPLAY_WAIT: Duration = Duration::from_secs(1);

/// The service. Its clones have the same bounds.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    feeds: Arc<Feeds>,
    subscribers: Arc<Subscribers>,
    replays: Quota<IpAddr>,
    metrics: AgentMetrics,
    ended: Shutdown,
}

/// The stream of frames to one subscriber.
type Frames = Pin<Box<dyn Stream<Item = Result<EventsFrame, Status>> + Send>>;

impl Service {
    /// Serves what these publish and keep until `ended`.
    pub(crate) fn new(
        feeds: Arc<Feeds>,
        subscribers: Arc<Subscribers>,
        metrics: AgentMetrics,
        ended: Shutdown,
    ) -> Self {
        let replays = Quota::new(REPLAYS_MAX, REPLAYS_PER_ADDRESS);
        Self { feeds, subscribers, replays, metrics, ended }
    }
}

#[tonic::async_trait]
impl Events for Service {
    type SubscribeStream = Frames;
    type ReplayStream = Frames;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Frames>, Status> {
        let address = address(&request);
        let SubscribeRequest { prefixes } = request.into_inner();
        check(&prefixes).map_err(Status::invalid_argument)?;
        let subscription = self.subscribers.join(address, prefixes);
        let subscription = subscription.map_err(|why| full("subscribers", why))?;
        let ended = self.ended.clone();
        let live = live(subscription).take_until(async move { ended.wait().await });
        Ok(Response::new(Box::pin(live)))
    }

    async fn replay(&self, request: Request<ReplayRequest>) -> Result<Response<Frames>, Status> {
        let mut place = self.replays.hold(address(&request));
        if let Err(why) = place.grow_within(1, REPLAY_WAIT).await {
            self.metrics.replay_requests_refused.inc();
            return Err(full("replays", why));
        }
        self.metrics.replay_requests.inc();
        let ReplayRequest { topic, start } = request.into_inner();
        let topic = Some(Bytes::from(topic)).filter(|topic| !topic.is_empty());
        let reader = Reader::new(self.feeds.logs(), &ReplayRange { start, topic });
        Ok(Response::new(replayed(reader, place)))
    }
}

/// The caller's IP address; `None` for a Unix socket.
fn address<T>(request: &Request<T>) -> Option<IpAddr> {
    let peer = request.extensions().get::<TlsPeer>()?;
    Some(peer.address?.ip().to_canonical())
}

fn check(prefixes: &[String]) -> Result<(), String> {
    if prefixes.is_empty() || prefixes.len() > PREFIXES_MAX {
        let count = prefixes.len();
        return Err(format!("prefixes: {count} are not 1 to {PREFIXES_MAX}"));
    }
    let long = prefixes.iter().map(String::len).find(|length| *length > PREFIX_BYTES_MAX);
    long.map_or(Ok(()), |length| {
        Err(format!("prefixes: one has {length} bytes, limit {PREFIX_BYTES_MAX}"))
    })
}

fn full(what: &str, why: QuotaRefusal) -> Status {
    Status::resource_exhausted(format!("{what}: {why}"))
}

/// An empty frame at first, and then what waits for the subscriber, as often as it takes something.
fn live(subscription: Subscription) -> impl Stream<Item = Result<EventsFrame, Status>> {
    let greeting = stream::once(async { Ok(EventsFrame::default()) });
    let rest = stream::unfold(Some(subscription), |subscription| async {
        let subscription = subscription?;
        match subscription.next(PART_BYTES).await {
            Ok(messages) => Some((Ok(frame(messages)), Some(subscription))),
            Err(cut) => Some((Err(Status::resource_exhausted(cut.to_string())), None)),
        }
    });
    greeting.chain(rest)
}

/// The next item of a replay.
enum Piece {
    Frame(EventsFrame),
    /// The log's end: the frames before are all there is.
    End,
    /// The rest of the replay is lost.
    Broken(Status),
}

/// A replay's frames. A task reads the log, so that a subscriber that reads nothing loses its
/// `place`, though nobody asks for the next frame.
fn replayed(reader: Reader, place: Hold<IpAddr>) -> Frames {
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        let _place = place;
        if read(reader, &sender).await.is_err() {
            tracing::debug!("a replay was cut short: its subscriber did not read, or is gone");
        }
    });
    Box::pin(stream::unfold(Some(pieces), |pieces| async {
        let mut pieces = pieces?;
        match pieces.recv().await {
            Some(Piece::Frame(frame)) => Some((Ok(frame), Some(pieces))),
            Some(Piece::End) => None,
            Some(Piece::Broken(status)) => Some((Err(status), None)),
            None => {
                let reason = format!("no frame was taken within {SEND_TIMEOUT:?}");
                Some((Err(Status::aborted(reason)), None))
            }
        }
    }))
}

async fn read(
    mut reader: Reader,
    sender: &mpsc::Sender<Piece>,
) -> Result<(), mpsc::error::SendTimeoutError<Piece>> {
    loop {
        let piece = match reader.next(PART_BYTES) {
            Ok(Some(messages)) => Piece::Frame(frame(messages)),
            Ok(None) => return sender.send_timeout(Piece::End, SEND_TIMEOUT).await,
            Err(forgotten) => {
                let broken = Piece::Broken(Status::data_loss(forgotten.to_string()));
                return sender.send_timeout(broken, SEND_TIMEOUT).await;
            }
        };
        sender.send_timeout(piece, SEND_TIMEOUT).await?;
    }
}

fn frame(messages: Vec<Message>) -> EventsFrame {
    let message = |Message { topic, number, payload }| EventMessage { topic, number, payload };
    EventsFrame { messages: messages.into_iter().map(message).collect() }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
