//! The replay socket: answers which batches a subscriber missed, from the workers' logs.
//!
//! A request is `["", start]` from a DEALER, with an optional third frame that is the topic of
//! one worker. Each answer is `["", topic, number, payload]`, and `["", "", ff*8, ""]` ends them.
//! Without a topic all workers answer, each from `start`.
//!
//! Source: vLLM's ZMQ event publisher; the topic frame is ours, because one agent has one replay
//! socket for several workers.

use super::Feeds;
use super::reader::{PART_BYTES, Reader, ReplayRange, SEND_TIMEOUT};
use super::turns::Turns;
use crate::metrics::AgentMetrics;
use bytes::Bytes;
use stator_runtime::shutdown::Shutdown;
use stator_zmtp::{ReplyPath, Router, RouterRequest};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::{Id, JoinSet};

/// The number frame of the end marker. A replay that is cut off has none, so that its subscriber
/// cannot mistake a part for the whole.
const END: [u8; 8] = [0xff; 8];

/// Answers replay requests in turn until `ended`, and closes the socket.
pub(crate) async fn run(
    feeds: Arc<Feeds>,
    mut router: Router,
    metrics: AgentMetrics,
    ended: Shutdown,
) {
    let mut turns = Turns::default();
    let mut replays = Replays::default();
    loop {
        while let Some((reply, wanted)) = turns.next() {
            metrics.replay_requests.inc();
            replays.start(Reader::new(feeds.logs(), &wanted), reply);
        }
        tokio::select! {
            RouterRequest { frames, address, reply } = router.recv() => match parse(&frames) {
                None => drop(metrics.replay_requests_malformed.inc()),
                Some(wanted) => {
                    if !turns.push(reply, address, wanted) {
                        metrics.replay_requests_refused.inc();
                    }
                }
            },
            // The end of a replay is the turn of the next that waits.
            Some(reply) = replays.ended() => turns.done(&reply),
            () = ended.wait() => break,
        }
    }
    drop(replays);
    router.close().await;
}

/// The replays that run.
#[derive(Default)]
struct Replays {
    tasks: JoinSet<()>,
    replies: HashMap<Id, ReplyPath>,
}

impl Replays {
    fn start(&mut self, mut reader: Reader, reply: ReplyPath) {
        let way = reply.clone();
        let task = self.tasks.spawn(async move {
            if let Err(error) = answer(&mut reader, &way).await {
                tracing::debug!(%error, "a replay was cut short");
            }
        });
        self.replies.insert(task.id(), reply);
    }

    /// Waits for the next replay to end and returns its destination; `None` if none runs.
    async fn ended(&mut self) -> Option<ReplyPath> {
        // A panic of a task has told of itself, and is an end too.
        let id = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => id,
            Err(error) => error.id(),
        };
        self.replies.remove(&id)
    }
}

fn parse(frames: &[Bytes]) -> Option<ReplayRange> {
    let (empty, start, topic) = match frames {
        [empty, start] => (empty, start, None),
        [empty, start, topic] => (empty, start, Some(topic)),
        _ => return None,
    };
    let start = u64::from_be_bytes(start.as_ref().try_into().ok()?);
    let wanted = ReplayRange { start, topic: topic.cloned() };
    empty.is_empty().then_some(wanted)
}

async fn answer(reader: &mut Reader, reply: &ReplyPath) -> anyhow::Result<()> {
    while let Some(part) = reader.next(PART_BYTES)? {
        for message in part {
            send(reply, message.frames()).await?;
        }
    }
    send(reply, [Bytes::new(), Bytes::from_static(&END), Bytes::new()]).await
}

async fn send(reply: &ReplyPath, [topic, number, payload]: [Bytes; 3]) -> anyhow::Result<()> {
    let answer = [Bytes::new(), topic, number, payload];
    Ok(tokio::time::timeout(SEND_TIMEOUT, reply.send(&answer)).await??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::queue::Queue;
    use stator_protos::kv_event::KvEvent;
    use stator_protos::{Generation, WorkerId, WorkerRank};
    use stator_zmtp::Dealer;

    /// Connections whose peers ask and read nothing: more than answers go to one address at once
    /// would hold up everybody there.
    #[tokio::test]
    async fn peers_that_do_not_read_hold_up_nobody() {
        let metrics = AgentMetrics::default();
        let feeds = Feeds::new(256 << 20, Arc::new(Queue::default()), metrics.clone());
        let worker = WorkerRank { worker: WorkerId(1), rank: 0 };
        let feed = feeds.open(worker, Generation(1));
        // More than the buffers of a connection take.
        for _ in 0..64 {
            feed.log.lock().append(Bytes::from(vec![0; 1 << 20]));
        }
        let router = Router::bind("tcp://127.0.0.1:0").await.unwrap();
        let endpoint = router.endpoint().to_owned();
        let (end, ended) = Shutdown::new();
        let task = tokio::spawn(run(Arc::new(feeds), router, metrics.clone(), ended));
        let ask = async |start: u64| {
            let mut dealer = Dealer::connect(&endpoint).await.unwrap();
            let start = Bytes::copy_from_slice(&start.to_be_bytes());
            dealer.send(&[Bytes::new(), start]).await.unwrap();
            dealer
        };
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(ask(0).await);
        }
        while metrics.replay_requests.get() < 4 {
            tokio::task::yield_now().await;
        }
        // Less than one of the others may take for one answer.
        let whole = tokio::time::timeout(SEND_TIMEOUT * 3 / 4, async {
            let mut dealer = ask(60).await;
            let mut numbers = Vec::new();
            loop {
                let answer = dealer.recv().await.unwrap();
                let number = u64::from_be_bytes(answer[2].as_ref().try_into().unwrap());
                if number == u64::MAX {
                    return numbers;
                }
                numbers.push(number);
            }
        });
        assert_eq!(whole.await.expect("nobody holds it up"), [60, 61, 62, 63]);
        drop(silent);
        end.set();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_replay_ends_where_the_log_was_when_it_began_and_tells_no_part_for_the_whole() {
        let metrics = AgentMetrics::default();
        let feeds = Feeds::new(1 << 20, Arc::new(Queue::default()), metrics);
        let worker = WorkerRank { worker: WorkerId(1), rank: 0 };
        let mut feed = feeds.open(worker, Generation(1));
        let mut router = Router::bind("tcp://127.0.0.1:0").await.unwrap();
        let mut dealer = Dealer::connect(router.endpoint()).await.unwrap();
        dealer.send(&[Bytes::new()]).await.unwrap();
        let RouterRequest { reply, .. } = router.recv().await;
        for _ in 0..300 {
            feed.events(&[KvEvent::Cleared]);
        }
        let mut reader = Reader::new(feeds.logs(), &ReplayRange { start: 3, topic: None });
        answer(&mut reader, &reply).await.unwrap();
        let expected = (3..300).chain([u64::MAX]);
        for expected in expected {
            let answer = dealer.recv().await.unwrap();
            assert_eq!(answer[2].as_ref(), expected.to_be_bytes());
        }
    }

    fn check(frames: &[&[u8]]) -> Option<(u64, Option<Bytes>)> {
        let frames: Vec<_> = frames.iter().map(|f| Bytes::copy_from_slice(f)).collect();
        parse(&frames).map(|wanted| (wanted.start, wanted.topic))
    }

    #[test]
    fn requests_with_and_without_topic_are_read_and_others_refused() {
        let start = 7u64.to_be_bytes();
        assert_eq!(check(&[b"", &start]), Some((7, None)));
        let topic = Bytes::from_static(b"kv-events/x");
        assert_eq!(check(&[b"", &start, &topic]), Some((7, Some(topic))));
        for malformed in [
            &[&b""[..]][..],
            &[&start],
            &[b"x", &start],
            &[b"", &start[..7]],
            &[b"", &start, b"t", b"more"],
        ] {
            assert_eq!(check(malformed), None);
        }
    }
}
