//! Connections of every protocol that is measured.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Way in which a request is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wire {
    pub(crate) tls: bool,
    pub(crate) http2: bool,
    /// Whether each request has a connection of its own.
    pub(crate) once: bool,
    /// Whether bodies are zstd.
    pub(crate) packed: bool,
    /// Codings that the client takes; empty for none.
    pub(crate) accept: &'static str,
}

/// A connection.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A certificate of the proxy in a folder, and clients that trust it.
pub(crate) struct Certificates {
    http1: TlsConnector,
    http2: TlsConnector,
}

impl Certificates {
    /// Writes the certificate into this folder.
    pub(crate) fn new(folder: &Path) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).expect("a certificate");
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "leaf");
        let leaf = params.signed_by(&key, &issuer).expect("a certificate");
        for (name, text) in [("tls.key", key.serialize_pem()), ("tls.crt", leaf.pem())] {
            std::fs::write(folder.join(name), text).expect("the file is written");
        }
        let connector = |protocol: &str| {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der().clone()).expect("a sound certificate");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider);
            let builder = builder.with_safe_default_protocol_versions().expect("versions");
            let mut config = builder.with_root_certificates(roots).with_no_client_auth();
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
            TlsConnector::from(Arc::new(config))
        };
        Self { http1: connector("http/1.1"), http2: connector("h2") }
    }
}

impl Wire {
    /// The bytes of a body.
    pub(crate) fn body(self, body: &Value) -> Bytes {
        let text = body.to_string();
        match self.packed {
            true => zstd::encode_all(text.as_bytes(), 3).expect("zstd").into(),
            false => text.into(),
        }
    }

    /// A new connection.
    pub(crate) async fn connect(self, address: SocketAddr, certificates: &Certificates) -> Sender {
        let socket = TcpStream::connect(address).await.expect("the proxy listens");
        socket.set_nodelay(true).expect("a socket");
        if !self.tls {
            return self.over(socket).await;
        }
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = if self.http2 { &certificates.http2 } else { &certificates.http1 };
        self.over(connector.connect(name, socket).await.expect("a handshake")).await
    }

    async fn over(self, socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Sender {
        let socket = TokioIo::new(socket);
        if self.http2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), socket).await.expect("HTTP/2");
            tokio::spawn(connection);
            return Sender::Http2(sender);
        }
        let (sender, connection) = http1::handshake(socket).await.expect("HTTP/1.1");
        tokio::spawn(connection);
        Sender::Http1(sender)
    }
}

impl Sender {
    /// Sends a body and reads the answer to its end.
    pub(crate) async fn post(&mut self, path: &str, wire: Wire, body: Bytes) {
        let scheme = if wire.tls { "https" } else { "http" };
        let uri = match self {
            Self::Http1(_) => path.to_owned(),
            Self::Http2(_) => format!("{scheme}://localhost{path}"),
        };
        let mut request = Request::post(uri).header("content-type", "application/json");
        if matches!(self, Self::Http1(_)) {
            request = request.header("host", "localhost");
        }
        if wire.packed {
            request = request.header("content-encoding", "zstd");
        }
        if !wire.accept.is_empty() {
            request = request.header("accept-encoding", wire.accept);
        }
        let request = request.body(Full::new(body)).expect("a well-formed request");
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.expect("the connection is open");
                sender.send_request(request).await
            }
            Self::Http2(sender) => sender.send_request(request).await,
        };
        let response = response.expect("a response");
        let (status, coded) =
            (response.status(), response.headers().contains_key("content-encoding"));
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        assert_eq!(coded, !wire.accept.is_empty(), "the answer's coding");
    }
}
