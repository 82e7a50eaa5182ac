//! Bounded queues of messages: one that drivers fill, and one for each subscriber.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Messages that may wait to be published.
pub(crate) const QUEUE_MESSAGES: usize = 65_536;
/// Bytes of payload that may wait to be published.
pub(crate) const QUEUE_BYTES: usize = 32 << 20;
/// Estimated bytes of a message in a frame beside its payload.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

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

/// Messages on their way to those who send them on. When full, the oldest goes: late news is worth
/// less.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    payload_bytes: usize,
    /// The time when the first message came, or some were last taken; absent while none waits.
    since: Option<Instant>,
}

impl Waiting {
    fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.payload_bytes -= message.payload.len();
        Some(message)
    }
}

impl Queue {
    /// Adds a message without waiting; returns how many older ones it displaced.
    pub(crate) fn push(&self, message: Message) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.payload_bytes += message.payload.len();
        waiting.messages.push_back(message);
        let mut dropped = 0;
        while waiting.messages.len() > QUEUE_MESSAGES || waiting.payload_bytes > QUEUE_BYTES {
            if waiting.pop().is_none() {
                break;
            }
            dropped += 1;
        }
        // Who takes, sleeps only where nothing waits.
        let first = waiting.since.is_none();
        if first {
            waiting.since = Some(Instant::now());
        }
        drop(waiting);
        if first {
            self.filled.notify_one();
        }
        dropped
    }

    /// Takes everything that waits; waits itself while nothing does.
    pub(crate) async fn take(&self) -> VecDeque<Message> {
        self.filled(|waiting| std::mem::take(waiting).messages).await
    }

    /// Takes the oldest messages, about `bytes_max` of them and at least one; waits while there is
    /// none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing.
    pub(crate) async fn part(&self, bytes_max: usize) -> Vec<Message> {
        self.filled(|waiting| {
            let (mut part, mut size_bytes) = (Vec::new(), 0);
            while size_bytes < bytes_max {
                let Some(message) = waiting.pop() else { break };
                size_bytes += message.payload.len() + MESSAGE_OVERHEAD_BYTES;
                part.push(message);
            }
            waiting.since = (!waiting.messages.is_empty()).then(Instant::now);
            part
        })
        .await
    }

    /// Time since messages were last taken, while others wait.
    pub(crate) fn stalled_for(&self) -> Duration {
        self.waiting.lock().since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Forgets what waits.
    pub(crate) fn clear(&self) {
        *self.waiting.lock() = Waiting::default();
    }

    async fn filled<T>(&self, mut take: impl FnMut(&mut Waiting) -> T) -> T {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if !waiting.messages.is_empty() {
                    return take(&mut waiting);
                }
            }
            self.filled.notified().await;
        }
    }
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

    #[tokio::test]
    async fn a_part_ends_where_it_is_large_enough_and_loses_nothing() {
        let queue = Queue::default();
        for number in 0..10 {
            queue.push(message(number, 100));
        }
        let mut numbers = Vec::new();
        let mut parts = Vec::new();
        while numbers.len() < 10 {
            let part = queue.part(300).await;
            parts.push(part.len());
            numbers.extend(part.iter().map(|message| message.number));
        }
        assert_eq!((parts, numbers), (vec![2, 2, 2, 2, 2], (0..10).collect()));
        queue.push(message(10, 1000));
        assert_eq!(queue.part(1).await.len(), 1, "a large one is a part of its own");
        let nothing = tokio::time::timeout(Duration::from_millis(1), queue.part(300));
        assert!(nothing.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_stalled_from_when_something_waits_until_something_is_taken() {
        let queue = Queue::default();
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        pass(100).await;
        queue.push(message(0, 100));
        queue.push(message(1, 100));
        assert_eq!(queue.stalled_for(), Duration::ZERO);
        pass(5).await;
        assert_eq!(queue.stalled_for(), Duration::from_secs(5));
        queue.part(1).await;
        assert_eq!(queue.stalled_for(), Duration::ZERO);
        pass(7).await;
        assert_eq!(queue.stalled_for(), Duration::from_secs(7));
        queue.part(1).await;
        pass(7).await;
        assert_eq!(queue.stalled_for(), Duration::ZERO, "nothing waits");
    }
}
