//! Questions of many, each answered to who asked.

use crate::Error;
use crate::connection::PeerConnection;
use crate::endpoint::Halves;
use crate::frame::{FrameLimits, Message, Traffic, encode};
use crate::handshake::SocketKind;
use crate::outbox::{Gone, PeerOutbox};
use crate::seats::SeatUsage;
use crate::server::SocketServer;
use bytes::{Bytes, BytesMut};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Limits of a request.
const LIMITS: FrameLimits = FrameLimits { frames: 16, bytes: 64 << 10 };
/// Requests of all that may wait to be received; who asks beyond that is read no further.
const REQUESTS_MAX: usize = 64;
/// Answers that may wait for one peer, and their bytes.
const ANSWERS_MAX: (usize, usize) = (4096, 1 << 20);

/// A ROUTER socket. Dropping it closes it.
pub struct Router {
    server: SocketServer,
    requests: mpsc::Receiver<RouterRequest>,
}

/// A message, and the way back to who sent it.
pub struct RouterRequest {
    /// Its frames, without the identity that other ROUTER sockets put before them.
    pub frames: Message,
    /// The peer's address; `None` at a Unix socket.
    pub address: Option<IpAddr>,
    /// The way for answers.
    pub reply: ReplyPath,
}

/// The way to one peer. Two are equal if they are ways of the same connection.
#[derive(Clone)]
pub struct ReplyPath(Arc<PeerOutbox>);

impl PartialEq for ReplyPath {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Router {
    /// Listens at `endpoint`, `tcp://host:port` or `ipc:///path`; the port may be 0.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Io`].
    pub async fn bind(endpoint: &str) -> Result<Self, Error> {
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let serve = move |halves, usage| serve(sender.clone(), halves, usage);
        let server = SocketServer::bind(endpoint, serve).await?;
        Ok(Self { server, requests })
    }

    /// Address that it is bound to, with the real port.
    pub fn endpoint(&self) -> &str {
        self.server.endpoint()
    }

    /// The next request of any peer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> RouterRequest {
        self.requests.recv().await.expect("the server, which has a sender, is ours")
    }

    /// Closes it: afterwards the endpoint may be bound again.
    pub async fn close(self) {
        self.server.close().await;
    }
}

impl ReplyPath {
    /// Sends a message of at least one frame; waits while the peer takes none.
    ///
    /// # Errors
    ///
    /// [`Gone`]: the peer is.
    pub async fn send(&self, frames: &[Bytes]) -> Result<(), Gone> {
        let mut out = BytesMut::new();
        encode(frames, &mut out);
        self.0.push(out.freeze()).await
    }
}

/// Closes the way to a peer when its connection is over.
struct Open(Arc<PeerOutbox>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn serve(
    requests: mpsc::Sender<RouterRequest>,
    halves: Halves,
    usage: Arc<SeatUsage>,
) -> Result<(), Error> {
    let address = halves.address;
    let connection = PeerConnection::open(halves, SocketKind::Router, LIMITS).await?;
    let mut connection = connection.counted(usage.clone());
    let open = Open(Arc::new(PeerOutbox::new(ANSWERS_MAX.0, ANSWERS_MAX.1)));
    loop {
        if let Some(Traffic::Message(frames)) = open.0.serve(&mut connection).await? {
            usage.asked();
            let request = RouterRequest { frames, address, reply: ReplyPath(open.0.clone()) };
            if requests.send(request).await.is_err() {
                return Ok(());
            }
        }
    }
}
