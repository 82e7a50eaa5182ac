//! Connections of the side server: places of its own, shares by address, and an end for silence.
//!
//! Whoever fills a process's other ports leaves this one open, and one client does not fill it.

use crate::quota::{Hold, Quota};
use crate::tls::{Connection, Listener};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Connections at once; further ones are closed.
const CONNECTIONS_MAX: usize = 256;

/// Connections of one address at once.
const CONNECTIONS_PER_ADDRESS: usize = 64;

/// Longest time in which a client neither sends nor takes a byte.
const SILENCE_MAX: Duration = Duration::from_secs(75);

/// Lets clients in, as servers of axum take them.
pub(crate) struct Guests {
    listener: Listener,
    places: Quota<IpAddr>,
}

/// A connection that has a place.
pub(crate) struct Guest<S = Connection> {
    stream: S,
    silence: Option<Pin<Box<Sleep>>>,
    _place: Hold<IpAddr>,
}

impl Guests {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { listener, places: Quota::new(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS) }
    }
}

impl axum::serve::Listener for Guests {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        loop {
            let (stream, client) = axum::serve::Listener::accept(&mut self.listener).await;
            match self.places.take(Some(client.ip().to_canonical()), 1) {
                Ok(place) => return (Guest { stream, silence: None, _place: place }, client),
                Err(why) => tracing::debug!(%client, %why, "side server has no place"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.address()
    }
}

impl<S> Guest<S> {
    /// Passes on what the connection says; an error after long silence.
    fn poll_silence<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.silence = None;
            return polled;
        }
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(SILENCE_MAX)));
        ready!(silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.poll_silence(polled, context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.poll_silence(polled, context)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(context);
        this.poll_silence(polled, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_shutdown(context);
        this.poll_silence(polled, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::serve::Listener as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    #[tokio::test]
    async fn one_address_takes_its_share_and_places_come_back() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut guests = Guests::new(Listener::plain(tcp));
        let address = guests.local_addr().unwrap();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS_PER_ADDRESS {
            let client = TcpStream::connect(address).await.unwrap();
            held.push((client, guests.accept().await.0));
        }
        let mut refused = TcpStream::connect(address).await.unwrap();
        let mut buffer = [0];
        tokio::select! {
            read = refused.read(&mut buffer) => assert_eq!(read.unwrap(), 0, "it is closed"),
            _ = guests.accept() => panic!("there was no place"),
        }
        held.pop();
        let _client = TcpStream::connect(address).await.unwrap();
        guests.accept().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_loses_its_place() {
        let (near, mut far) = duplex(8);
        let places = Quota::new(1, 1);
        let place = places.take(Some(IpAddr::from([127, 0, 0, 1])), 1).unwrap();
        let mut guest = Guest { stream: near, silence: None, _place: place };
        let begin = Instant::now();
        far.write_u8(b'x').await.unwrap();
        assert_eq!(guest.read_u8().await.unwrap(), b'x');
        assert_eq!(guest.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), SILENCE_MAX);
    }
}
