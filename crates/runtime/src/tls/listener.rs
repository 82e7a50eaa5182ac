//! Accepting connections, plain or over TLS, as one type and on one path.

use crate::accept::Acceptor;
use futures::Stream;
use futures::stream::unfold;
use prometheus_client::metrics::counter::Counter;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, ServerName};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Longest time for a client's handshake.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Handshakes that run at once; further connections wait in the kernel's queue.
pub const HANDSHAKES_MAX: usize = 1024;

/// Accepts connections of one server.
pub struct Listener {
    tcp: Acceptor,
    handshake: Handshake,
    /// Handshakes under way. Dropping the listener drops them.
    handshakes: JoinSet<Option<Connection>>,
}

/// Makes a usable connection of one that was accepted.
#[derive(Clone)]
pub struct Handshake {
    tls: Option<TlsAcceptor>,
    failures: Counter,
}

/// One connection of a client.
#[derive(Debug)]
pub enum Connection {
    /// As it is on the wire.
    Plain(TcpStream),
    /// Over TLS, the handshake done.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Identity of a client, which gRPC servers attach to each request.
#[derive(Clone, Debug)]
pub struct TlsPeer {
    /// Address that it connects from; None if it is gone.
    pub address: Option<SocketAddr>,
    /// The certificate that it showed, from an authority of clients.
    pub certificate: Option<CertificateDer<'static>>,
}

impl TlsPeer {
    /// Whether its certificate is for this name.
    pub fn is(&self, name: &str) -> bool {
        let (Some(certificate), Ok(name)) = (&self.certificate, ServerName::try_from(name)) else {
            return false;
        };
        let parsed = ParsedCertificate::try_from(certificate);
        parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
    }
}

impl Listener {
    /// Plain connections.
    pub fn plain(tcp: TcpListener) -> Self {
        let handshake = Handshake { tls: None, failures: Counter::default() };
        Self { tcp: Acceptor::new(tcp), handshake, handshakes: JoinSet::new() }
    }

    /// Connections over TLS.
    pub fn tls(tcp: TcpListener, config: Arc<ServerConfig>) -> Self {
        let mut listener = Self::plain(tcp);
        listener.handshake.tls = Some(config.into());
        listener
    }

    /// The address that clients connect to.
    ///
    /// # Errors
    ///
    /// When the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.address()
    }

    /// Whether its connections are over TLS.
    pub fn is_tls(&self) -> bool {
        self.handshake.tls.is_some()
    }

    /// Counts handshakes that failed or took too long, for a registry of metrics.
    pub fn failures(&self) -> Counter {
        self.handshake.failures.clone()
    }

    /// Makes `errors` count the times that the system gave no connection.
    pub fn count_accept_errors(&mut self, errors: Counter) {
        self.tcp.count_errors(errors);
    }

    /// The next connection as the system gives it, and its client's address, for servers that
    /// bound connections before their [`Listener::handshake`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection.
    pub async fn accept_tcp(&mut self) -> (TcpStream, SocketAddr) {
        self.tcp.accept().await
    }

    /// The handshake that connections of [`Listener::accept_tcp`] begin with.
    pub fn handshake(&self) -> Handshake {
        self.handshake.clone()
    }

    /// The next connection. Handshakes run beside each other, so that a slow client holds up
    /// nobody; those that fail are counted, and logged at debug level, as anyone can cause them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection.
    pub async fn accept(&mut self) -> Connection {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Some(connection) = settle(done) {
                        return connection;
                    }
                }
                (stream, _) = self.tcp.accept(), if self.handshakes.len() < HANDSHAKES_MAX => {
                    if let Some(plain) = self.begin(stream) {
                        return plain;
                    }
                }
            }
        }
    }

    /// All connections, as servers of gRPC take them: without end and without errors.
    pub fn incoming(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        unfold(self, async |mut listener| {
            let connection = listener.accept().await;
            Some((Ok(connection), listener))
        })
    }

    /// Hands a plain connection back; begins the handshake of any other.
    fn begin(&mut self, stream: TcpStream) -> Option<Connection> {
        if !self.is_tls() {
            return Some(Connection::Plain(stream));
        }
        let handshake = self.handshake();
        self.handshakes.spawn(async move { handshake.run(stream, HANDSHAKE_LIMIT).await });
        None
    }
}

impl Handshake {
    /// The connection, once the client has done its part within `limit`; `None` for a handshake
    /// that failed, which is counted, and logged at debug level, as anyone can cause it.
    pub async fn run(&self, stream: TcpStream, limit: Duration) -> Option<Connection> {
        let Some(tls) = &self.tls else { return Some(Connection::Plain(stream)) };
        match tokio::time::timeout(limit, tls.accept(stream)).await {
            Ok(Ok(stream)) => return Some(Connection::Tls(Box::new(stream))),
            Ok(Err(error)) => tracing::debug!(%error, "handshake failed"),
            Err(_) => tracing::debug!(?limit, "handshake took too long"),
        }
        self.failures.inc();
        None
    }
}

/// For servers of axum. A connection whose client is gone before it has an address is passed over.
impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let connection = Self::accept(self).await;
            match connection.tcp().peer_addr() {
                Ok(client) => return (connection, client),
                Err(error) => tracing::debug!(%error, "client is gone"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.address()
    }
}

/// The connection, if its handshake came to a good end.
fn settle(done: Result<Option<Connection>, JoinError>) -> Option<Connection> {
    done.unwrap_or_else(|error| {
        tracing::error!(%error, "handshake panicked");
        None
    })
}

impl Connection {
    /// The TCP connection below.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TlsPeer;

    fn connect_info(&self) -> TlsPeer {
        let certificate = match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates().and_then(<[_]>::first),
        };
        let certificate = certificate.map(|shown| shown.clone().into_owned());
        TlsPeer { address: self.tcp().peer_addr().ok(), certificate }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
