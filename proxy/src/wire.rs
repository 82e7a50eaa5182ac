//! A client's connection, plain or over TLS, as Pingora takes it.
//!
//! The first bytes tell which HTTP the client speaks. Otherwise nothing is buffered here: what is
//! written goes out, and what belongs together is held back by [`crate::corked`].

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use stator_runtime::tls::Connection;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

/// The bytes that a client of HTTP/2 begins with, after TLS as without it.
///
/// Source: RFC 9113, section 3.4.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose client has begun to speak.
#[derive(Debug)]
pub(crate) struct Wire {
    connection: Connection,
    /// The first bytes, of which those from `taken` to `read` are yet to be read again.
    first: [u8; PREFACE.len()],
    taken: u8,
    read: u8,
}

/// Why a client's first bytes did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It said nothing in time, or has gone.
    Nothing,
    /// The preface of HTTP/2 began and did not end in time.
    Preface,
}

impl Wire {
    /// Reads as much as tells whether the client speaks HTTP/2: `idle` is the time until its first
    /// byte, `head` that for the rest of a preface.
    ///
    /// # Errors
    ///
    /// When these bytes do not come.
    pub(crate) async fn open(
        connection: Connection,
        idle: Duration,
        head: Duration,
    ) -> Result<Self, Silence> {
        let mut wire = Self { connection, first: [0; PREFACE.len()], taken: 0, read: 0 };
        let first = timeout(idle, wire.read_first()).await;
        if !matches!(first, Ok(Ok(()))) || wire.read == 0 {
            return Err(Silence::Nothing);
        }
        let rest = async {
            while !wire.is_http2() && wire.may_be_http2() {
                let before = wire.read;
                wire.read_first().await?;
                if wire.read == before {
                    break;
                }
            }
            io::Result::Ok(())
        };
        match timeout(head, rest).await {
            Ok(Ok(())) => Ok(wire),
            Ok(Err(_)) => Err(Silence::Nothing),
            Err(_) => Err(Silence::Preface),
        }
    }

    /// Whether the client speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.first == *PREFACE
    }

    fn may_be_http2(&self) -> bool {
        let read = usize::from(self.read);
        self.first[..read] == PREFACE[..read]
    }

    async fn read_first(&mut self) -> io::Result<()> {
        let count = self.connection.read(&mut self.first[usize::from(self.read)..]).await?;
        self.read += count as u8;
        Ok(())
    }

    /// Has the system forget at once what the client has not taken when the connection closes.
    pub(crate) fn reset_on_close(&self) {
        // Only a connection that is gone refuses, and of that nothing is kept.
        let _ = self.connection.tcp().set_zero_linger();
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken < self.read {
            let first = &self.first[usize::from(self.taken)..usize::from(self.read)];
            let count = first.len().min(buffer.remaining());
            buffer.put_slice(&first[..count]);
            self.taken += count as u8;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[async_trait]
impl Shutdown for Wire {
    async fn shutdown(&mut self) {
        // A client that is gone already needs no farewell.
        let _ = AsyncWriteExt::shutdown(&mut self.connection).await;
    }
}

impl UniqueID for Wire {
    fn id(&self) -> UniqueIDType {
        self.connection.tcp().as_raw_fd()
    }
}

impl Ssl for Wire {}

impl GetTimingDigest for Wire {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Wire {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Wire {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

impl Peek for Wire {}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    const SECOND: Duration = Duration::from_secs(1);

    async fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Connection::Plain(listener.accept().await.unwrap().0), client)
    }

    /// Whether a client that sends these bytes and then `rest` speaks HTTP/2; all it sent is read
    /// again.
    async fn check(begin: &[u8], rest: &[u8]) -> bool {
        let (connection, mut client) = pair().await;
        client.set_nodelay(true).unwrap();
        client.write_all(begin).await.unwrap();
        let opening = tokio::spawn(Wire::open(connection, SECOND, SECOND));
        tokio::task::yield_now().await;
        client.write_all(rest).await.unwrap();
        drop(client);
        let mut wire = opening.await.unwrap().unwrap();
        let mut read = Vec::new();
        wire.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, [begin, rest].concat());
        wire.is_http2()
    }

    #[tokio::test]
    async fn the_first_bytes_tell_which_http_it_is() {
        for at in 1..PREFACE.len() {
            let (begin, rest) = PREFACE.split_at(at);
            assert!(check(begin, &[rest, b"frames"].concat()).await, "{at}");
            assert!(!check(begin, b"?").await, "{at}");
            assert!(!check(begin, b"").await, "{at}");
        }
        assert!(check(PREFACE, b"").await);
        assert!(!check(b"P", b"OST / HTTP/1.1\r\n\r\n").await);
        assert!(!check(b"GET /live HTTP/1.1\r\nhost: a long name\r\n\r\n", b"").await);
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_or_half_a_preface_is_not_waited_for() {
        let soon = Duration::from_millis(10);
        let (connection, client) = pair().await;
        assert_eq!(Wire::open(connection, soon, SECOND).await.unwrap_err(), Silence::Nothing);
        drop(client);
        let (connection, client) = pair().await;
        drop(client);
        assert_eq!(Wire::open(connection, SECOND, SECOND).await.unwrap_err(), Silence::Nothing);
        let (connection, mut client) = pair().await;
        client.write_all(b"PRI * ").await.unwrap();
        assert_eq!(Wire::open(connection, SECOND, soon).await.unwrap_err(), Silence::Preface);
    }
}
