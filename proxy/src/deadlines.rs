//! A client's connection that waits for its client only so long.
//!
//! Reads wait within deadlines while a request's head is expected; a request's body has its own,
//! see [`crate::exchange`]. Writes wait as long as the client goes on taking bytes. A deadline that
//! passes is an error of the connection, whoever reads or writes.

use crate::wire::Wire;
use pingora::protocols::Stream;
use stator_runtime::patience::{Patience, Patient};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// Time that clients have for each phase of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// The time from the first byte of a request's head to its last.
    pub head: Duration,
    /// The silence before the first byte of a request.
    pub idle: Duration,
    /// The time until a client takes the next byte of an answer.
    pub write: Duration,
}

/// Deadline that is in force for reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// No deadline: the request is being answered, or its body is read.
    Request,
    /// The first byte of a head is expected.
    Idle,
    /// The rest of a head is expected.
    Head,
}

/// A client's connection with deadlines.
pub(crate) type TimedStream = Patient<Stream, ClientPatience>;

/// The deadlines of a client's connection, and where it stands.
#[derive(Debug)]
pub(crate) struct ClientPatience {
    deadlines: Deadlines,
    phase: AtomicU8,
    /// Arrival of the head's first byte.
    begun: Option<Instant>,
    read_timer: Option<(Phase, Pin<Box<Sleep>>)>,
    write_timer: Option<Pin<Box<Sleep>>>,
    expired: Option<MissedDeadline>,
}

/// Deadline that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissedDeadline {
    /// No request came.
    Idle,
    /// A head did not end.
    Head,
    /// The client took nothing of an answer.
    Write,
}

impl ClientPatience {
    pub(crate) fn new(deadlines: Deadlines) -> Self {
        Self {
            deadlines,
            phase: AtomicU8::new(Phase::Request as u8),
            begun: None,
            read_timer: None,
            write_timer: None,
            expired: None,
        }
    }

    /// A request's head is expected from now on.
    pub(crate) fn expect_head(&self) {
        self.phase.store(Phase::Idle as u8, Ordering::Relaxed);
    }

    /// The head is there; what is read from now on has no deadline here.
    pub(crate) fn end_head(&self) {
        self.phase.store(Phase::Request as u8, Ordering::Relaxed);
    }

    /// The deadline that passed, if any.
    pub(crate) fn expired(&self) -> Option<MissedDeadline> {
        self.expired
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            phase if phase == Phase::Idle as u8 => Phase::Idle,
            phase if phase == Phase::Head as u8 => Phase::Head,
            _ => Phase::Request,
        }
    }

    fn expire(&mut self, expired: MissedDeadline) -> io::Error {
        self.expired = Some(expired);
        io::ErrorKind::TimedOut.into()
    }
}

fn timer(from: Instant, limit: Duration) -> Pin<Box<Sleep>> {
    Box::pin(sleep_until(from + limit))
}

impl Patience<Stream> for ClientPatience {
    fn received(&mut self, bytes: usize) -> io::Result<()> {
        match (self.phase(), self.begun) {
            (Phase::Head, Some(begun)) if bytes > 0 && begun.elapsed() >= self.deadlines.head => {
                Err(self.expire(MissedDeadline::Head))
            }
            (Phase::Idle, _) if bytes > 0 => {
                self.begun = Some(Instant::now());
                self.read_timer = None;
                self.phase.store(Phase::Head as u8, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn poll_read_late(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let (phase, Deadlines { head, idle, .. }) = (self.phase(), self.deadlines);
        let (from, limit, expired) = match phase {
            Phase::Request => return Poll::Pending,
            Phase::Idle => (Instant::now(), idle, MissedDeadline::Idle),
            Phase::Head => (self.begun.unwrap_or_else(Instant::now), head, MissedDeadline::Head),
        };
        // A timer that is left of an earlier phase has another deadline.
        self.read_timer.take_if(|(of, _)| *of != phase);
        let (_, timer) = self.read_timer.get_or_insert_with(|| (phase, timer(from, limit)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(self.expire(expired))
    }

    fn taken(&mut self) {
        self.write_timer = None;
    }

    fn poll_write_late(&mut self, stream: &Stream, context: &mut Context<'_>) -> Poll<io::Error> {
        let limit = self.deadlines.write;
        let timer = self.write_timer.get_or_insert_with(|| timer(Instant::now(), limit));
        ready!(timer.as_mut().poll(context));
        if let Some(wire) = stream.as_any().downcast_ref::<Wire>() {
            // What the client does not take is not worth the system's memory either.
            wire.reset_on_close();
        }
        Poll::Ready(self.expire(MissedDeadline::Write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const DEADLINES: Deadlines = Deadlines {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        write: Duration::from_secs(30),
    };

    /// A connection with deadlines, and its client, who has room for 8 bytes.
    fn connection() -> (TimedStream, DuplexStream) {
        let (near, far) = duplex(8);
        (TimedStream::new(Box::new(near), ClientPatience::new(DEADLINES)), far)
    }

    async fn seconds<T>(work: impl Future<Output = T>) -> (u64, T) {
        let begin = Instant::now();
        let done = work.await;
        (begin.elapsed().as_secs(), done)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_nothing_is_waited_for_only_so_long() {
        let (mut timed, _client) = connection();
        timed.patience().expect_head();
        let (waited, read) = seconds(timed.read_u8()).await;
        assert_eq!((waited, read.unwrap_err().kind()), (60, io::ErrorKind::TimedOut));
        assert_eq!(timed.patience().expired(), Some(MissedDeadline::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_byte_by_byte_is_cut_at_its_deadline() {
        let (mut timed, mut client) = connection();
        timed.patience().expect_head();
        let dripping = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(50)).await;
            while client.write_u8(b'x').await.is_ok() {
                tokio::time::sleep(Duration::from_secs(4)).await;
            }
        });
        let reading = async { while timed.read_u8().await.is_ok() {} };
        // Fifty of silence are allowed, and ten from the first byte on.
        assert_eq!(seconds(reading).await.0, 60);
        assert_eq!(timed.patience().expired(), Some(MissedDeadline::Head));
        dripping.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_late_between_heads() {
        let (mut timed, mut client) = connection();
        for _ in 0..2 {
            timed.patience().expect_head();
            client.write_all(b"xy").await.unwrap();
            assert_eq!(timed.read_u8().await.unwrap(), b'x');
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert_eq!(timed.read_u8().await.unwrap(), b'y');
            timed.patience().end_head();
            let hour = Duration::from_secs(3600);
            assert!(tokio::time::timeout(hour, timed.read_u8()).await.is_err(), "it waits");
        }
        assert_eq!(timed.patience().expired(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_bytes_is_not_late_and_one_that_takes_none_is() {
        let (mut timed, mut client) = connection();
        let reading = tokio::spawn(async move {
            let mut taken = [0];
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_secs(29)).await;
                client.read_exact(&mut taken).await.unwrap();
            }
            client
        });
        let (waited, written) = seconds(timed.write_all(&[0; 64])).await;
        assert_eq!((waited, written.unwrap_err().kind()), (20 * 29 + 30, io::ErrorKind::TimedOut));
        assert_eq!(timed.patience().expired(), Some(MissedDeadline::Write));
        drop(reading.await.unwrap());
    }
}
