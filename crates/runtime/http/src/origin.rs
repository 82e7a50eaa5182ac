//! Servers, and connections to them.

use crate::HttpError;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Server to send requests to.
#[derive(Clone, Debug)]
pub struct Origin {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// TLS configuration; `None` speaks plain HTTP.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A stream of bytes to a server and back.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {
    /// The socket below.
    fn tcp(&self) -> &TcpStream;
}

impl Io for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Io for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

impl Origin {
    /// Host and port as a `host` header has them, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    pub(crate) async fn connect(&self) -> Result<Box<dyn Io>, HttpError> {
        let connect = async {
            let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
            tcp.set_nodelay(true)?;
            Ok::<_, io::Error>(tcp)
        };
        let tcp = connect.await.map_err(HttpError::Connect)?;
        let Some(config) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| HttpError::ServerName { host: self.host.clone() })?;
        let tls = TlsConnector::from(config.clone()).connect(name, tcp).await;
        Ok(Box::new(tls.map_err(HttpError::Connect)?))
    }
}
