//! A live feed for whoever subscribes.

use crate::Error;
use crate::connection::PeerConnection;
use crate::endpoint::{Halves, connect};
use crate::frame::{FrameLimits, Traffic, encode};
use crate::handshake::SocketKind;
use crate::outbox::PeerOutbox;
use crate::seats::SeatUsage;
use crate::server::SocketServer;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::sync::Arc;

/// Limits of a subscriber's messages.
const LIMITS: FrameLimits = FrameLimits { frames: 1, bytes: 1024 };
/// Subscriptions of one subscriber.
const SUBSCRIPTIONS_MAX: usize = 1024;
/// Messages that may wait for one subscriber.
const MESSAGES_MAX: usize = 100_000;
/// Bytes that may wait for one subscriber.
const BYTES_MAX: usize = 64 << 20;

/// A PUB socket. Dropping it closes it.
pub struct Publisher {
    server: SocketServer,
    peers: Arc<Peers>,
}

type Peers = Mutex<Vec<Arc<Peer>>>;

/// A subscriber as the publisher sees it.
struct Peer {
    outbox: PeerOutbox,
    /// Prefixes of the first frames of the messages that it subscribed to.
    subscriptions: Mutex<Vec<Bytes>>,
}

impl Publisher {
    /// Listens at `endpoint`, `tcp://host:port` or `ipc:///path`; the port may be 0.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Io`].
    pub async fn bind(endpoint: &str) -> Result<Self, Error> {
        let peers = Arc::new(Peers::default());
        let known = peers.clone();
        let serve = move |halves, usage| serve(known.clone(), halves, usage);
        let server = SocketServer::bind(endpoint, serve).await?;
        Ok(Self { server, peers })
    }

    /// Connects to one subscriber that is bound, a collector.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Io`].
    pub async fn connect(endpoint: &str) -> Result<Self, Error> {
        let halves = connect(endpoint).await?;
        let peers = Arc::new(Peers::default());
        let server =
            SocketServer::connected(endpoint, serve(peers.clone(), halves, Arc::default()));
        Ok(Self { server, peers })
    }

    /// Address that it is bound to, with the real port, or connected to.
    pub fn endpoint(&self) -> &str {
        self.server.endpoint()
    }

    /// Hands a message of at least one frame to all who subscribed to it, without waiting; returns
    /// for how many of them it was dropped, because too much waits for them already.
    ///
    /// # Panics
    ///
    /// When there is no frame.
    pub fn publish(&self, frames: &[Bytes]) -> usize {
        let mut encoded = None;
        let mut dropped = 0;
        for peer in self.peers.lock().iter().filter(|peer| peer.wants(&frames[0])) {
            let message = encoded.get_or_insert_with(|| {
                let mut out = BytesMut::new();
                encode(frames, &mut out);
                out.freeze()
            });
            // Who is gone, is about to leave the list.
            dropped += usize::from(peer.outbox.offer(message) == Ok(false));
        }
        dropped
    }

    /// Closes it: afterwards the endpoint may be bound again.
    pub async fn close(self) {
        self.server.close().await;
    }
}

impl Peer {
    fn wants(&self, topic: &[u8]) -> bool {
        self.subscriptions.lock().iter().any(|prefix| topic.starts_with(prefix))
    }

    /// Obeys what a subscriber says: a command since 3.1, a message before.
    fn hear(&self, incoming: Traffic) -> Result<(), Error> {
        let (begins, prefix) = match incoming {
            Traffic::Command(name, prefix) if name == "SUBSCRIBE" => (true, prefix),
            Traffic::Command(name, prefix) if name == "CANCEL" => (false, prefix),
            Traffic::Message(frames) if frames[0].first() == Some(&1) => {
                (true, frames[0].slice(1..))
            }
            Traffic::Message(frames) if frames[0].first() == Some(&0) => {
                (false, frames[0].slice(1..))
            }
            _ => return Ok(()),
        };
        let mut subscriptions = self.subscriptions.lock();
        if !begins {
            if let Some(at) = subscriptions.iter().position(|known| *known == prefix) {
                subscriptions.swap_remove(at);
            }
        } else if subscriptions.len() < SUBSCRIPTIONS_MAX {
            // Its memory is what came with it.
            subscriptions.push(Bytes::copy_from_slice(&prefix));
        } else {
            let limit = SUBSCRIPTIONS_MAX;
            return Err(Error::Unfit(format!("has more than {limit} subscriptions, the limit")));
        }
        Ok(())
    }
}

/// A peer's place among all; it leaves when this is dropped.
struct Place {
    peers: Arc<Peers>,
    peer: Arc<Peer>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.peer.outbox.close();
        self.peers.lock().retain(|peer| !Arc::ptr_eq(peer, &self.peer));
    }
}

async fn serve(peers: Arc<Peers>, halves: Halves, usage: Arc<SeatUsage>) -> Result<(), Error> {
    let connection = PeerConnection::open(halves, SocketKind::Pub, LIMITS).await?;
    let mut connection = connection.counted(usage.clone());
    let outbox = PeerOutbox::new(MESSAGES_MAX, BYTES_MAX);
    let peer = Arc::new(Peer { outbox, subscriptions: Mutex::default() });
    peers.lock().push(peer.clone());
    let place = Place { peers, peer };
    loop {
        if let Some(incoming) = place.peer.outbox.serve(&mut connection).await? {
            place.peer.hear(incoming)?;
            usage.asked();
        }
    }
}
