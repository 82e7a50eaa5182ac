//! Fixtures of the TLS tests: authorities, files, an echo server and its clients.

use super::suites::provider;
use super::{
    CertificateSource, CipherSuites, Connection, Listener, Reload, ServerSettings, Version,
    server_config_with,
};
use prometheus_client::metrics::counter::Counter;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority that signs certificates.
pub(crate) struct Authority {
    pub pem: String,
    pub der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(crate) struct Leaf {
    pub pem: String,
    pub der: CertificateDer<'static>,
    pub key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Self { pem, der, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn sign(&self, name: &str) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Leaf { pem: certificate.pem(), der: certificate.der().clone(), key }
    }
}

impl Leaf {
    pub(crate) fn write(&self, folder: &Path) {
        std::fs::write(folder.join("tls.crt"), &self.pem).unwrap();
        std::fs::write(folder.join("tls.key"), self.key.serialize_pem()).unwrap();
    }
}

pub(crate) fn settings(certificate: CertificateSource) -> ServerSettings {
    ServerSettings {
        certificate,
        client_ca: None,
        reload: true,
        min_version: Version::Tls12,
        alpn: vec!["h2".into()],
    }
}

/// A running server that echoes whatever it is sent.
pub(crate) struct Echo {
    pub address: SocketAddr,
    pub failures: Counter,
    pub reload: Option<Reload>,
}

impl Echo {
    pub(crate) async fn start(settings: &ServerSettings) -> Self {
        Self::start_with(settings, &CipherSuites::default()).await
    }

    pub(crate) async fn start_with(settings: &ServerSettings, suites: &CipherSuites) -> Self {
        let (config, reload) = server_config_with(settings, suites).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, failures) = Self::serve(Listener::tls(tcp, config));
        Self { address, failures, reload }
    }

    pub(crate) fn serve(mut listener: Listener) -> (SocketAddr, Counter) {
        let (address, failures) = (listener.address().unwrap(), listener.failures());
        tokio::spawn(async move {
            loop {
                tokio::spawn(echo(listener.accept().await));
            }
        });
        (address, failures)
    }

    /// Looks at the files once, as the task does every few seconds.
    pub(crate) fn look(&mut self) {
        self.reload = self.reload.take().map(Reload::look);
    }

    pub(crate) async fn connect(&self, client: ClientConfig) -> io::Result<Client> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        Ok(Client(TlsConnector::from(Arc::new(client)).connect(name, stream).await?))
    }

    /// Whether a connection with `client` gets as far as an answer.
    pub(crate) async fn answers(&self, client: ClientConfig) -> bool {
        match self.connect(client).await {
            Ok(mut client) => client.says("hello").await.is_ok_and(|answer| answer == "hello"),
            Err(_) => false,
        }
    }
}

async fn echo(mut connection: Connection) {
    let mut buffer = [0; 64];
    while let Ok(n @ 1..) = connection.read(&mut buffer).await {
        if connection.write_all(&buffer[..n]).await.is_err() || connection.flush().await.is_err() {
            return;
        }
    }
}

/// An open connection to the server.
#[derive(Debug)]
pub(crate) struct Client(pub TlsStream<TcpStream>);

impl Client {
    pub(crate) async fn says(&mut self, text: &str) -> io::Result<String> {
        self.0.write_all(text.as_bytes()).await?;
        self.0.flush().await?;
        let mut answer = vec![0; text.len()];
        self.0.read_exact(&mut answer).await?;
        Ok(String::from_utf8(answer).unwrap())
    }

    /// The certificate that the server showed.
    pub(crate) fn server(&self) -> CertificateDer<'static> {
        self.0.get_ref().1.peer_certificates().unwrap()[0].clone()
    }
}

/// A client that trusts `root` and shows `own`, if there is one.
pub(crate) fn client(root: &CertificateDer<'static>, own: Option<&Leaf>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_webpki_verifier(verifier);
    match own {
        Some(leaf) => {
            let key = PrivateKeyDer::try_from(leaf.key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![leaf.der.clone()], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    }
}
