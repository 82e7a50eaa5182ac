//! Connections of the side server: places of its own, shares by address, and an end for silence.
//!
//! A client that fills a process's other ports leaves this one open, and one client does not fill
//! it.

use crate::patience::{Patience, Patient};
use crate::quota::{Hold, Quota};
use crate::tls::{Connection, Listener};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
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
pub(crate) type Guest = Patient<Connection, GuestPlace>;

/// A place, which a client keeps as long as it sends or takes bytes.
pub(crate) struct GuestPlace {
    silence: Option<Pin<Box<Sleep>>>,
    _hold: Hold<IpAddr>,
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
                Ok(hold) => return (Patient::new(stream, GuestPlace::new(hold)), client),
                Err(why) => tracing::debug!(%client, %why, "side server has no place"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.address()
    }
}

impl GuestPlace {
    fn new(hold: Hold<IpAddr>) -> Self {
        Self { silence: None, _hold: hold }
    }

    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(SILENCE_MAX)));
        ready!(silence.as_mut().poll(context));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl<S> Patience<S> for GuestPlace {
    fn received(&mut self, _: usize) -> io::Result<()> {
        self.silence = None;
        Ok(())
    }

    fn poll_read_late(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        self.poll_silence(context)
    }

    fn taken(&mut self) {
        self.silence = None;
    }

    fn poll_write_late(&mut self, _: &S, context: &mut Context<'_>) -> Poll<io::Error> {
        self.poll_silence(context)
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
        let mut guest = Patient::new(near, GuestPlace::new(place));
        let begin = Instant::now();
        far.write_u8(b'x').await.unwrap();
        assert_eq!(guest.read_u8().await.unwrap(), b'x');
        assert_eq!(guest.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), SILENCE_MAX);
    }
}
