//! The replay socket: answers which batches a subscriber missed, from the workers' logs.
//!
//! A request is `["", start]` from a DEALER, with an optional third frame that is the topic of
//! one worker. Each answer is `["", topic, number, payload]`, and `["", "", ff*8, ""]` ends them.
//! Without a topic all workers answer, each from `start`.
//!
//! Source: vLLM's ZMQ event publisher; the topic frame is ours, because one agent has one replay
//! socket for several workers.

use super::{Feeds, LogEntry};
use crate::metrics::AgentMetrics;
use bytes::Bytes;
use stator_runtime::shutdown::Shutdown;
use stator_zmtp::{Reply, Request, Router};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a subscriber to take one answer; the rest of its replay is dropped then, and
/// with it the end marker, so that it cannot mistake a part for the whole.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The number frame of the end marker.
const END: [u8; 8] = [0xff; 8];

/// What a subscriber asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    start: u64,
    topic: Option<Bytes>,
}

/// Answers replay requests one after the other until `ended`, and closes the socket.
pub(crate) async fn run(
    feeds: Arc<Feeds>,
    mut router: Router,
    metrics: AgentMetrics,
    ended: Shutdown,
) {
    loop {
        let Request { frames, reply, .. } = tokio::select! {
            request = router.recv() => request,
            () = ended.wait() => break,
        };
        let Some(wanted) = parse(&frames) else {
            metrics.replay_requests_malformed.inc();
            continue;
        };
        metrics.replay_requests.inc();
        if let Err(error) = answer(&feeds.logs(), &wanted, &reply).await {
            tracing::debug!(%error, "a replay was cut short");
        }
    }
    router.close().await;
}

fn parse(frames: &[Bytes]) -> Option<Wanted> {
    let (empty, start, topic) = match frames {
        [empty, start] => (empty, start, None),
        [empty, start, topic] => (empty, start, Some(topic)),
        _ => return None,
    };
    let start = u64::from_be_bytes(start.as_ref().try_into().ok()?);
    let wanted = Wanted { start, topic: topic.cloned() };
    empty.is_empty().then_some(wanted)
}

async fn answer(logs: &[LogEntry], wanted: &Wanted, reply: &Reply) -> anyhow::Result<()> {
    let asked = |entry: &&LogEntry| wanted.topic.as_ref().is_none_or(|topic| *topic == entry.topic);
    for entry in logs.iter().filter(asked) {
        let batches = entry.log.lock().since(wanted.start);
        for (number, payload) in batches {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            send(reply, [entry.topic.clone(), number, payload]).await?;
        }
    }
    send(reply, [Bytes::new(), Bytes::from_static(&END), Bytes::new()]).await
}

async fn send(reply: &Reply, [topic, number, payload]: [Bytes; 3]) -> anyhow::Result<()> {
    let answer = [Bytes::new(), topic, number, payload];
    Ok(tokio::time::timeout(SEND_TIMEOUT, reply.send(&answer)).await??)
}

#[cfg(test)]
mod tests {
    use super::*;

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
