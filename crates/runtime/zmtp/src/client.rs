//! Sockets that one caller reads.

use crate::Error;
use crate::connection::PeerConnection;
use crate::endpoint::connect;
use crate::frame::{FrameLimits, Message, Traffic};
use crate::handshake::SocketKind;
use crate::server::SocketServer;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::mpsc;

/// Limits of a publisher's or router's message: a step's KV events, or a replay's batch.
const LIMITS: FrameLimits = FrameLimits { frames: 16, bytes: 64 << 20 };
/// Messages of all publishers that may wait in a collector.
const COLLECTED_MAX: usize = 1024;

/// A live feed of one publisher: a SUB socket with one connection.
pub struct Subscriber(PeerConnection);

impl Subscriber {
    /// Connects, and hears nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error`], whichever is the cause.
    pub async fn connect(endpoint: &str) -> Result<Self, Error> {
        Ok(Self(PeerConnection::open(connect(endpoint).await?, SocketKind::Sub, LIMITS).await?))
    }

    /// From about now on the publisher sends messages whose first frame begins with `prefix`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the connection is over.
    pub async fn subscribe(&mut self, prefix: &[u8]) -> Result<(), Error> {
        put_subscription(&mut self.0, prefix);
        self.0.flush().await
    }

    /// The next message.
    ///
    /// # Errors
    ///
    /// [`Error`]: the connection is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Result<Message, Error> {
        next_message(&mut self.0).await
    }
}

fn put_subscription(connection: &mut PeerConnection, prefix: &[u8]) {
    if connection.knows_subscriptions() {
        return connection.put_command("SUBSCRIBE", prefix);
    }
    let mut frame = BytesMut::with_capacity(1 + prefix.len());
    frame.put_u8(1);
    frame.put_slice(prefix);
    connection.put(&[frame.freeze()]);
}

async fn next_message(connection: &mut PeerConnection) -> Result<Message, Error> {
    loop {
        // What other commands there may be, needs no answer.
        if let Traffic::Message(frames) = connection.next().await? {
            return Ok(frames);
        }
    }
}

/// One who asks: a DEALER socket with one connection.
pub struct Dealer(PeerConnection);

impl Dealer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error`], whichever is the cause.
    pub async fn connect(endpoint: &str) -> Result<Self, Error> {
        Ok(Self(PeerConnection::open(connect(endpoint).await?, SocketKind::Dealer, LIMITS).await?))
    }

    /// Sends a message of at least one frame.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]: the connection is over.
    pub async fn send(&mut self, frames: &[Bytes]) -> Result<(), Error> {
        self.0.put(frames);
        self.0.flush().await
    }

    /// As [`Subscriber::recv`].
    ///
    /// # Errors
    ///
    /// As [`Subscriber::recv`].
    pub async fn recv(&mut self) -> Result<Message, Error> {
        next_message(&mut self.0).await
    }
}

/// The live feeds of publishers that connect: a SUB socket that is bound. Dropping it closes it.
pub struct Collector {
    server: SocketServer,
    messages: mpsc::Receiver<Message>,
}

impl Collector {
    /// Listens at `endpoint` for messages whose first frame begins with `prefix`.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Io`].
    pub async fn bind(endpoint: &str, prefix: &[u8]) -> Result<Self, Error> {
        let (sender, messages) = mpsc::channel(COLLECTED_MAX);
        let prefix = Bytes::copy_from_slice(prefix);
        let server = SocketServer::bind(endpoint, move |halves, usage| {
            let (sender, prefix) = (sender.clone(), prefix.clone());
            async move {
                let mut connection = PeerConnection::open(halves, SocketKind::Sub, LIMITS).await?;
                put_subscription(&mut connection, &prefix);
                connection.flush().await?;
                loop {
                    let message = next_message(&mut connection).await?;
                    // A publisher that speaks is of use, and nothing has to be sent to it.
                    usage.asked();
                    usage.served();
                    if sender.send(message).await.is_err() {
                        return Ok(());
                    }
                }
            }
        });
        Ok(Self { server: server.await?, messages })
    }

    /// Address that publishers connect to.
    pub fn endpoint(&self) -> &str {
        self.server.endpoint()
    }

    /// The next message of any publisher.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Message {
        self.messages.recv().await.expect("the server, which has a sender, is ours")
    }
}
