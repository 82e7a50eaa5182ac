//! Messages that wait to be written to one peer.

use crate::Error;
use crate::connection::PeerConnection;
use crate::frame::Traffic;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Bytes that are gathered for one write.
const WRITE_BYTES: usize = 64 << 10;

/// The connection is over: nothing more reaches the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection is over")]
pub struct Gone;

/// Encoded messages for one peer, within bounds.
#[derive(Debug)]
pub(crate) struct PeerOutbox {
    messages_max: usize,
    bytes_max: usize,
    waiting: Mutex<Waiting>,
    filled: Notify,
    /// Somebody has been waiting for room that is there now, or the peer is gone.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
    closed: bool,
}

impl PeerOutbox {
    /// An empty one. A message above `bytes_max` is taken where it is alone.
    pub(crate) fn new(messages_max: usize, bytes_max: usize) -> Self {
        let (filled, drained) = (Notify::new(), Notify::new());
        Self { messages_max, bytes_max, waiting: Mutex::default(), filled, drained }
    }

    /// Adds a message if there is room; returns whether there was.
    pub(crate) fn offer(&self, message: &Bytes) -> Result<bool, Gone> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(Gone);
        }
        let fits = waiting.messages.len() < self.messages_max
            && waiting.bytes.saturating_add(message.len()) <= self.bytes_max;
        if !fits && !waiting.messages.is_empty() {
            return Ok(false);
        }
        waiting.bytes += message.len();
        waiting.messages.push_back(message.clone());
        // Who takes, sleeps only where nothing waits.
        let first = waiting.messages.len() == 1;
        drop(waiting);
        if first {
            self.filled.notify_one();
        }
        Ok(true)
    }

    /// Adds a message as soon as there is room.
    pub(crate) async fn push(&self, message: Bytes) -> Result<(), Gone> {
        loop {
            // Before the look: room that comes in between is noticed.
            let drained = self.drained.notified();
            if self.offer(&message)? {
                return Ok(());
            }
            drained.await;
        }
    }

    /// Makes a connection write waiting messages, until something comes from it or there is more to
    /// write.
    ///
    /// # Errors
    ///
    /// As [`PeerConnection::next`].
    pub(crate) async fn serve(&self, to: &mut PeerConnection) -> Result<Option<Traffic>, Error> {
        // First what it has already: only the rest waits within bounds.
        if !to.output().is_empty() {
            return to.next_or_written().await;
        }
        tokio::select! {
            incoming = to.next() => incoming.map(Some),
            () = self.filled() => {
                self.take(to.output());
                Ok(None)
            }
        }
    }

    /// Waits for a message to be there.
    async fn filled(&self) {
        while self.waiting.lock().messages.is_empty() {
            self.filled.notified().await;
        }
    }

    /// Moves messages to the end of `out`, as many as are written in one go.
    fn take(&self, out: &mut BytesMut) {
        let mut waiting = self.waiting.lock();
        while out.len() < WRITE_BYTES {
            let Some(message) = waiting.messages.pop_front() else { break };
            waiting.bytes -= message.len();
            out.extend_from_slice(&message);
        }
        drop(waiting);
        self.drained.notify_waiters();
    }

    /// From now on nothing is taken.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { closed: true, ..Waiting::default() };
        drop(waiting);
        self.drained.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    fn message(bytes: usize) -> Bytes {
        Bytes::from(vec![0; bytes])
    }

    #[test]
    fn what_waits_is_bounded_in_messages_and_bytes() {
        let outbox = PeerOutbox::new(3, 100);
        assert_eq!(outbox.offer(&message(50)), Ok(true));
        assert_eq!(outbox.offer(&message(51)), Ok(false));
        assert_eq!(outbox.offer(&message(50)), Ok(true));
        assert_eq!(outbox.offer(&message(0)), Ok(true));
        assert_eq!(outbox.offer(&message(0)), Ok(false));
        let mut out = BytesMut::new();
        outbox.take(&mut out);
        assert_eq!(out.len(), 100);
        // One that is too large for any other is taken alone.
        assert_eq!(outbox.offer(&message(101)), Ok(true));
        assert_eq!(outbox.offer(&message(0)), Ok(false));
        outbox.close();
        assert_eq!(outbox.offer(&message(0)), Err(Gone));
    }

    #[tokio::test]
    async fn who_waits_for_room_has_it_when_something_is_taken() {
        let outbox = PeerOutbox::new(1, 100);
        assert_eq!(outbox.offer(&message(1)), Ok(true));
        let mut second = pin!(outbox.push(message(2)));
        let waits = poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        let mut out = BytesMut::new();
        outbox.take(&mut out);
        assert_eq!(second.await, Ok(()));
        let mut third = pin!(outbox.push(message(3)));
        let waits = poll_fn(|context| Poll::Ready(third.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        outbox.close();
        assert_eq!(third.await, Err(Gone));
    }

    #[test]
    fn a_write_has_whole_messages_of_some_size() {
        let outbox = PeerOutbox::new(10, 1 << 20);
        for _ in 0..4 {
            assert_eq!(outbox.offer(&message(WRITE_BYTES / 2)), Ok(true));
        }
        let mut out = BytesMut::new();
        outbox.take(&mut out);
        assert_eq!(out.len(), WRITE_BYTES);
    }
}
