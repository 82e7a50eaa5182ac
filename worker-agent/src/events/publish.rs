//! The live feed: a bounded queue that drivers fill, and a task that empties it into a PUB socket.
//!
//! Behind the queue the socket keeps a bounded number of messages for each subscriber, and drops
//! what a subscriber that is slower than that would get next.

use crate::metrics::AgentMetrics;
use bytes::Bytes;
use parking_lot::Mutex;
use stator_runtime::shutdown::Shutdown;
use stator_zmtp::Publisher;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Messages that may wait to be published.
pub(crate) const QUEUE_MESSAGES: usize = 65_536;
/// Bytes of payload that may wait to be published.
pub(crate) const QUEUE_BYTES: usize = 32 << 20;

/// One message of the live feed: topic, number, MessagePack payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Topic frame.
    pub(crate) topic: Bytes,
    /// Number frame.
    pub(crate) number: u64,
    /// Payload frame.
    pub(crate) payload: Bytes,
}

impl Message {
    /// The three frames of the event plane.
    pub(crate) fn frames(self) -> [Bytes; 3] {
        [self.topic, Bytes::copy_from_slice(&self.number.to_be_bytes()), self.payload]
    }
}

/// Messages on their way to the PUB socket. When full, the oldest goes: late news is worth less.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    payload_bytes: usize,
}

impl Queue {
    /// Adds a message without waiting; returns how many older ones it displaced.
    pub(crate) fn push(&self, message: Message) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.payload_bytes += message.payload.len();
        waiting.messages.push_back(message);
        let mut dropped = 0;
        while waiting.messages.len() > QUEUE_MESSAGES || waiting.payload_bytes > QUEUE_BYTES {
            let Some(oldest) = waiting.messages.pop_front() else { break };
            waiting.payload_bytes -= oldest.payload.len();
            dropped += 1;
        }
        drop(waiting);
        self.filled.notify_one();
        dropped
    }

    /// Takes everything that waits; waits itself while nothing does.
    pub(crate) async fn take(&self) -> VecDeque<Message> {
        loop {
            let taken = std::mem::take(&mut *self.waiting.lock());
            if !taken.messages.is_empty() {
                return taken.messages;
            }
            self.filled.notified().await;
        }
    }
}

/// Publishes what the queue gets until `ended`, and closes the socket.
pub(crate) async fn run(
    queue: Arc<Queue>,
    publisher: Publisher,
    metrics: AgentMetrics,
    ended: Shutdown,
) {
    loop {
        let messages = tokio::select! {
            messages = queue.take() => messages,
            () = ended.wait() => break,
        };
        for message in messages {
            let dropped = publisher.publish(&message.frames());
            metrics.messages_published.inc();
            metrics.messages_dropped.inc_by(dropped as u64);
            // Those who write need a turn too.
            tokio::task::coop::consume_budget().await;
        }
    }
    // Whoever comes back at this place may bind it at once.
    publisher.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, payload_bytes: usize) -> Message {
        let payload = Bytes::from(vec![0; payload_bytes]);
        Message { topic: Bytes::from_static(b"kv-events"), number, payload }
    }

    #[test]
    fn a_message_has_vllms_three_frames() {
        let frames = message(258, 1).frames();
        assert_eq!(frames, [&b"kv-events"[..], &[0, 0, 0, 0, 0, 0, 1, 2], &[0]]);
    }

    #[tokio::test]
    async fn a_full_queue_drops_the_oldest_and_counts_it() {
        let queue = Queue::default();
        let dropped: u64 = (0..QUEUE_MESSAGES as u64 + 3).map(|n| queue.push(message(n, 0))).sum();
        assert_eq!(dropped, 3);
        let taken = queue.take().await;
        assert_eq!((taken.len(), taken[0].number), (QUEUE_MESSAGES, 3));
    }

    #[tokio::test]
    async fn payload_bytes_are_bounded_too() {
        let queue = Queue::default();
        assert_eq!(queue.push(message(0, QUEUE_BYTES)), 0);
        assert_eq!(queue.push(message(1, 1)), 1);
        assert_eq!(queue.take().await[0].number, 1);
    }
}
