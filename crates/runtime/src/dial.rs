//! Reaching the request planes of other processes over gRPC: plainly, or over TLS.
//!
//! [`DialArgs`] are the flags, [`Dial`] what they mean, [`DialTarget`] one process that is reached. The
//! files are read at each connection, so that renewed certificates count.

use crate::tls::ClientFiles;
use clap::Args;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

/// TLS of connections to the request planes of agents.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Request plane")]
pub struct DialArgs {
    /// PEM file with the authorities of the request plane. With it agents are reached over TLS or
    /// a Unix socket alone, and only those whose certificate is from one of them.
    #[arg(long, env = "STATOR_REQUEST_TLS_CA_FILE", value_name = "FILE")]
    pub request_tls_ca_file: Option<PathBuf>,

    /// Folder with `tls.crt` and `tls.key` that this process shows on the request plane: to agents
    /// that ask for a certificate, and, where it is an agent, to all that connect to it.
    #[arg(long, env = "STATOR_REQUEST_TLS_CERT_DIR", value_name = "DIR")]
    pub request_tls_cert_dir: Option<PathBuf>,

    /// Name that agents' certificates must be for. Default: the host of each agent's endpoint.
    #[arg(long, env = "STATOR_REQUEST_TLS_SERVER_NAME", value_name = "NAME")]
    pub request_tls_server_name: Option<String>,
}

/// Settings for reaching other processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dial(Option<ClientFiles>);

/// A process that is reached.
#[derive(Clone, Debug)]
pub struct DialTarget {
    endpoint: Endpoint,
    tls: Option<Connector>,
}

/// Why a process cannot be reached, before anything is sent.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// It is no endpoint at all.
    #[error("{endpoint:?} is no endpoint: {error}")]
    Endpoint {
        /// The endpoint that was given.
        endpoint: String,
        /// Why not.
        error: tonic::transport::Error,
    },
    /// It is reached over TLS, and nobody says whom to trust.
    #[error("{endpoint:?} is reached over TLS, which needs request-tls-ca-file")]
    Untrusted {
        /// The endpoint that was given.
        endpoint: String,
    },
    /// It is reached plainly, where only TLS may be.
    #[error("{endpoint:?} is not reached over TLS, as request-tls-ca-file wants it")]
    Plain {
        /// The endpoint that was given.
        endpoint: String,
    },
}

impl DialArgs {
    /// The settings that the flags ask for. Reads the files, to find their faults early.
    ///
    /// # Errors
    ///
    /// A message that names the flag at fault.
    pub fn dial(&self) -> Result<Dial, String> {
        let (certificate, server_name) =
            (self.request_tls_cert_dir.clone(), self.request_tls_server_name.clone());
        let Some(ca) = self.request_tls_ca_file.clone() else {
            return match server_name {
                Some(_) => Err("request-tls-server-name: needs request-tls-ca-file".into()),
                None => Ok(Dial::default()),
            };
        };
        let files = ClientFiles { ca, certificate, server_name };
        files
            .server_name("localhost")
            .map_err(|error| format!("request-tls-server-name: {error}"))?;
        files.config().map_err(|error| format!("request-tls-ca-file: {error}"))?;
        Ok(Dial(Some(files)))
    }
}

impl Dial {
    /// The endpoint of a process of which only the address is known: reached over TLS where the
    /// flags say whom to trust.
    pub fn endpoint(&self, address: SocketAddr) -> String {
        let scheme = if self.0.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// The process at `http://host:port`, `https://host:port` or `unix:///path`. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`DialError`] says what is wrong with it.
    pub fn target(&self, endpoint: &str) -> Result<DialTarget, DialError> {
        let at = || endpoint.to_owned();
        let parse = |uri: String| {
            Endpoint::from_shared(uri)
                .map_err(|error| DialError::Endpoint { endpoint: at(), error })
        };
        let Some(authority) = endpoint.strip_prefix("https://") else {
            if self.0.is_some() && !endpoint.starts_with("unix:") {
                return Err(DialError::Plain { endpoint: at() });
            }
            return Ok(DialTarget { endpoint: parse(at())?, tls: None });
        };
        let files = self.0.clone().ok_or_else(|| DialError::Untrusted { endpoint: at() })?;
        // The connector below encrypts: the library would do so once more.
        let endpoint = parse(format!("http://{authority}"))?
            .origin(at().parse().expect("what is an endpoint without its scheme is one with it"));
        Ok(DialTarget { endpoint, tls: Some(Connector(files)) })
    }
}

impl DialTarget {
    /// The same with other settings of its connections.
    pub fn with(self, settings: impl FnOnce(Endpoint) -> Endpoint) -> Self {
        Self { endpoint: settings(self.endpoint), ..self }
    }

    /// The address, for a log.
    pub fn uri(&self) -> &Uri {
        self.endpoint.uri()
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// When it cannot be reached, or is not whom it should be.
    pub async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        match &self.tls {
            None => self.endpoint.connect().await,
            Some(tls) => self.endpoint.connect_with_connector(tls.clone()).await,
        }
    }

    /// Connects when it is first needed, and again whenever the connection is lost.
    pub fn connect_lazy(&self) -> Channel {
        match &self.tls {
            None => self.endpoint.connect_lazy(),
            Some(tls) => self.endpoint.connect_with_connector_lazy(tls.clone()),
        }
    }
}

/// Connects over TLS.
#[derive(Clone, Debug)]
struct Connector(ClientFiles);

type Connecting = Pin<Box<dyn Future<Output = Result<Io, std::io::Error>> + Send>>;
type Io = hyper_util::rt::TokioIo<TlsStream<TcpStream>>;

impl Service<Uri> for Connector {
    type Response = Io;
    type Error = std::io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let files = self.0.clone();
        Box::pin(async move { connect(files, &uri).await.map(hyper_util::rt::TokioIo::new) })
    }
}

async fn connect(files: ClientFiles, uri: &Uri) -> std::io::Result<TlsStream<TcpStream>> {
    let host = uri.host().unwrap_or_default().to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((address, port)).await?;
    stream.set_nodelay(true)?;
    let name = files.server_name(address).map_err(std::io::Error::other)?;
    // Reading two small files costs less than the handshake.
    let config = tokio::task::spawn_blocking(move || files.config());
    let config = config.await.map_err(std::io::Error::other)?.map_err(std::io::Error::other)?;
    TlsConnector::from(config).connect(name, stream).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testkit::Authority;

    fn args(folder: &std::path::Path) -> DialArgs {
        DialArgs {
            request_tls_ca_file: Some(folder.join("ca.crt")),
            request_tls_cert_dir: None,
            request_tls_server_name: None,
        }
    }

    #[test]
    fn faults_name_their_flag() {
        let folder = tempfile::tempdir().unwrap();
        let fault = |args: DialArgs| args.dial().unwrap_err();
        let missing = fault(args(folder.path()));
        assert!(missing.starts_with("request-tls-ca-file: cannot read"), "{missing}");
        std::fs::write(folder.path().join("ca.crt"), "nothing").unwrap();
        let empty = fault(args(folder.path()));
        assert!(empty.contains("holds no certificate"), "{empty}");
        std::fs::write(folder.path().join("ca.crt"), Authority::new().pem).unwrap();
        assert!(args(folder.path()).dial().is_ok());
        let name = Some("not a name".to_owned());
        let named = DialArgs { request_tls_server_name: name.clone(), ..args(folder.path()) };
        assert!(fault(named).starts_with("request-tls-server-name: "));
        let alone = DialArgs { request_tls_server_name: name, ..DialArgs::default() };
        assert_eq!(fault(alone), "request-tls-server-name: needs request-tls-ca-file");
        let keyless = DialArgs {
            request_tls_cert_dir: Some(folder.path().join("none")),
            ..args(folder.path())
        };
        assert!(fault(keyless).contains("cannot read"));
    }

    #[test]
    fn what_must_be_encrypted_is_never_reached_plainly() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.crt"), Authority::new().pem).unwrap();
        let (plain, tls) = (Dial::default(), args(folder.path()).dial().unwrap());
        for endpoint in ["http://127.0.0.1:7000", "http://[::1]:7000", "http://agent:7000"] {
            assert!(plain.target(endpoint).is_ok());
            assert!(matches!(tls.target(endpoint), Err(DialError::Plain { .. })), "{endpoint}");
        }
        for endpoint in ["https://127.0.0.1:7000", "https://[::1]:7000", "https://agent:7000"] {
            assert!(matches!(plain.target(endpoint), Err(DialError::Untrusted { .. })));
            assert!(tls.target(endpoint).is_ok(), "{endpoint}");
        }
        assert!(plain.target("unix:///a").is_ok() && tls.target("unix:///a").is_ok());
        assert!(matches!(plain.target("no where"), Err(DialError::Endpoint { .. })));
        assert!(matches!(tls.target("https://no where"), Err(DialError::Endpoint { .. })));
    }
}
