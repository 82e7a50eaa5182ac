//! Addresses of sockets, and the system's connections to them.

use crate::Error;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A connection's two directions, and who is at its other end.
pub(crate) struct Halves {
    pub(crate) reader: Box<dyn AsyncRead + Send + Sync + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    /// The peer's address; `None` at a Unix socket.
    pub(crate) address: Option<IpAddr>,
}

/// Silence before a silent TCP connection is probed, interval of the probes, and number of probes
/// without an answer that ends it: a host that vanished says nothing.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

enum Place<'a> {
    Tcp(&'a str),
    Ipc(&'a Path),
}

fn place(endpoint: &str) -> Result<Place<'_>, Error> {
    if let Some(path) = endpoint.strip_prefix("ipc://").filter(|path| !path.is_empty()) {
        return Ok(Place::Ipc(Path::new(path)));
    }
    let address = endpoint.strip_prefix("tcp://").filter(|address| address.contains(':'));
    address.map(Place::Tcp).ok_or_else(|| Error::Endpoint { endpoint: endpoint.to_owned() })
}

/// Connects to an endpoint.
pub(crate) async fn connect(endpoint: &str) -> Result<Halves, Error> {
    Ok(match place(endpoint)? {
        Place::Tcp(address) => tcp(TcpStream::connect(address).await?)?,
        Place::Ipc(path) => unix(UnixStream::connect(path).await?),
    })
}

fn tcp(stream: TcpStream) -> io::Result<Halves> {
    // Each message is news.
    stream.set_nodelay(true)?;
    let (idle, interval, probes) = KEEPALIVE;
    let probing = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(&stream).set_tcp_keepalive(&probing)?;
    // An IPv4 peer of a socket for both is the one that it is at any other.
    let address = Some(stream.peer_addr()?.ip().to_canonical());
    let (reader, writer) = stream.into_split();
    Ok(Halves { reader: Box::new(reader), writer: Box::new(writer), address })
}

fn unix(stream: UnixStream) -> Halves {
    let (reader, writer) = stream.into_split();
    Halves { reader: Box::new(reader), writer: Box::new(writer), address: None }
}

/// A socket that is listened on. Dropping it closes it.
pub(crate) enum EndpointListener {
    Tcp(TcpListener),
    Ipc(UnixListener, PathBuf),
}

impl EndpointListener {
    /// Binds an endpoint, whose port may be 0 and whose host may be `*`; returns the endpoint that
    /// it has then.
    pub(crate) async fn bind(endpoint: &str) -> Result<(Self, String), Error> {
        match place(endpoint)? {
            Place::Tcp(address) => {
                let listener = match address.strip_prefix("*:") {
                    Some(port) => TcpListener::bind(format!("0.0.0.0:{port}")).await?,
                    None => TcpListener::bind(address).await?,
                };
                let bound = format!("tcp://{}", listener.local_addr()?);
                Ok((Self::Tcp(listener), bound))
            }
            Place::Ipc(path) => {
                let listener = UnixListener::bind(path)?;
                Ok((Self::Ipc(listener, path.to_owned()), endpoint.to_owned()))
            }
        }
    }

    /// The next connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection.
    pub(crate) async fn accept(&self) -> io::Result<Halves> {
        match self {
            Self::Tcp(listener) => tcp(listener.accept().await?.0),
            Self::Ipc(listener, _) => Ok(unix(listener.accept().await?.0)),
        }
    }
}

impl Drop for EndpointListener {
    fn drop(&mut self) {
        if let Self::Ipc(_, path) = self {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}
