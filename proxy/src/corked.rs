//! A client's connection whose writes can be held back and sent together.
//!
//! Pingora flushes a response's head, each chunk and the last one on their own. A packet each
//! would cost as much as all the rest of a short answer, so [`crate::exchange`] corks the
//! connection over what belongs together.

use crate::deadlines::{ClientPatience, Deadlines, TimedStream};
use async_trait::async_trait;
use pingora::protocols::http::ServerSession;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream,
    TimingDigest, UniqueID, UniqueIDType,
};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Bytes held back at most; beyond them a corked connection writes like any other.
const HELD_MAX_BYTES: usize = 64 << 10;

/// A connection with a cork.
#[derive(Debug)]
pub(crate) struct CorkedConnection {
    stream: TimedStream,
    corked: AtomicBool,
    held: Vec<u8>,
    /// Bytes of `held` that are written.
    written: usize,
}

impl CorkedConnection {
    pub(crate) fn new(stream: Stream, deadlines: Deadlines) -> Self {
        let stream = TimedStream::new(stream, ClientPatience::new(deadlines));
        Self { stream, corked: AtomicBool::new(false), held: Vec::new(), written: 0 }
    }

    /// The deadlines of the connection below.
    pub(crate) fn patience(&self) -> &ClientPatience {
        self.stream.patience()
    }

    /// The connection of a session.
    pub(crate) fn of(session: &ServerSession) -> Option<&Self> {
        session.stream().and_then(|stream| stream.as_any().downcast_ref())
    }

    /// While corked, writes are held back and flushing does nothing. What is held goes out before
    /// the next write, or with the next flush, after the cork is off.
    pub(crate) fn cork(&self, corked: bool) {
        self.corked.store(corked, Ordering::Relaxed);
    }

    fn holds(&self, bytes: usize) -> bool {
        self.held.len() + bytes <= HELD_MAX_BYTES
    }

    /// Writes out what is held.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            let rest = &self.held[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        // Streams live long and mostly wait: none keeps a buffer meanwhile.
        self.held = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CorkedConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        // With something held, what follows joins it: one write instead of two.
        let join = this.corked.load(Ordering::Relaxed) || !this.held.is_empty();
        if join && this.written == 0 && this.holds(bytes) {
            for part in parts {
                this.held.extend_from_slice(part);
            }
            return Poll::Ready(Ok(bytes));
        }
        ready!(this.poll_drain(context))?;
        Pin::new(&mut this.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.corked.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_drain(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

impl AsyncRead for CorkedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[async_trait]
impl Shutdown for CorkedConnection {
    async fn shutdown(&mut self) {
        // A client that is gone already needs no farewell.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for CorkedConnection {
    fn id(&self) -> UniqueIDType {
        self.stream.stream().id()
    }
}

impl Ssl for CorkedConnection {}

impl GetTimingDigest for CorkedConnection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.stream.stream().get_timing_digest()
    }
}

impl GetProxyDigest for CorkedConnection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.stream().get_proxy_digest()
    }
}

impl GetSocketDigest for CorkedConnection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.stream().get_socket_digest()
    }
}

impl Peek for CorkedConnection {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::Duration;
    use tokio::net::UnixStream;

    /// Writes `pieces`, corked where told so, and returns what has arrived after each of them.
    async fn check(pieces: &[(bool, &str)]) -> Vec<String> {
        let (near, far) = UnixStream::pair().unwrap();
        let long = Duration::from_secs(60);
        let deadlines = Deadlines { head: long, idle: long, write: long };
        let near = Box::new(pingora::protocols::l4::stream::Stream::from(near));
        let mut corked = CorkedConnection::new(near, deadlines);
        // The plain socket, so that a read tells what is there now.
        let mut far = far.into_std().unwrap();
        let mut arrived = Vec::new();
        for (cork, piece) in pieces {
            corked.cork(*cork);
            corked.write_all(piece.as_bytes()).await.unwrap();
            corked.flush().await.unwrap();
            let mut buffer = vec![0; 2 * HELD_MAX_BYTES];
            let count = far.read(&mut buffer).unwrap_or(0);
            arrived.push(String::from_utf8(buffer[..count].to_vec()).unwrap());
        }
        arrived
    }

    #[tokio::test]
    async fn what_is_corked_goes_out_with_what_follows() {
        assert_eq!(check(&[(true, "head "), (false, "first")]).await, ["", "head first"]);
        let pieces = [(false, "a"), (true, "b"), (true, "c"), (false, "d")];
        assert_eq!(check(&pieces).await, ["a", "", "", "bcd"]);
    }

    #[tokio::test]
    async fn no_more_than_the_bound_is_held() {
        let large = "x".repeat(HELD_MAX_BYTES);
        let arrived = check(&[(true, "head"), (true, &large), (false, "end")]).await;
        let lengths: Vec<usize> = arrived.iter().map(String::len).collect();
        assert_eq!(lengths, [0, HELD_MAX_BYTES + 4, 3]);
    }
}
