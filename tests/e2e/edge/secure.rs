//! TLS on the client port: protocols, certificates of clients, and files that change.

use super::connection::Connection;
use crate::door::Door;
use hyper::StatusCode;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::TokioExecutor;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use stator_tests::soon;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Signs certificates of servers and clients, all of them for this machine.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
    own: CertificateDer<'static>,
}

/// A certificate and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let (key, folder) = (KeyPair::generate().unwrap(), TempDir::new().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = called("authority");
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.crt"), certificate.pem()).unwrap();
        let own = certificate.der().clone();
        Self { issuer: Issuer::new(params, key), folder, own }
    }

    /// The file with its own certificate.
    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// A new certificate, which is written into a folder too, at once, as volumes of Kubernetes are.
    fn sign(&self, folder: &Path) -> Identity {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = called("leaf");
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (name, text) in [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem())] {
            let next = folder.join("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(next, folder.join(name)).unwrap();
        }
        Identity { certificate: certificate.der().clone(), key }
    }
}

/// A subject. One that is called as its issuer is counts as signed by itself.
fn called(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// Connects as who trusts `authority`, shows `identity` and offers these protocols.
async fn connect(
    address: SocketAddr,
    authority: &Authority,
    identity: Option<&Identity>,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.own.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate, key }) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![certificate.clone()], key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// Whether the answer to a request over HTTP/1.1 comes. In TLS 1.3 a client learns only then that
/// its certificate was refused.
async fn answers(
    address: SocketAddr,
    authority: &Authority,
    identity: Option<&Identity>,
) -> bool {
    let asking = async {
        let mut tls = connect(address, authority, identity, &["http/1.1"]).await?;
        tls.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with("HTTP/1.1 200"))
    };
    soon("an answer or an end", asking).await.unwrap_or(false)
}

#[tokio::test]
async fn the_handshake_chooses_the_protocol() {
    let (authority, folder) = (Authority::new(), TempDir::new().unwrap());
    authority.sign(folder.path());
    let path = format!("--cert-path={}", folder.path().display());
    let door = Door::start(&["--secure-serving", &path]).await;
    let tls = connect(door.address, &authority, None, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut http2 = Connection::over(tls, &Builder::new(TokioExecutor::new())).await;
    for _ in 0..2 {
        assert_eq!(http2.get("/live").await.status(), StatusCode::OK);
    }
    let tls = connect(door.address, &authority, None, &["http/1.1"]).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(answers(door.address, &authority, None).await);
    // One that offers none knows of HTTP/1.1 alone.
    let mut tls = connect(door.address, &authority, None, &[]).await.unwrap();
    tls.write_all(b"GET /live HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("an answer", tls.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
}

#[tokio::test]
async fn a_client_without_a_certificate_of_the_authority_gets_no_answer() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folders = [(); 3].map(|()| TempDir::new().unwrap());
    authority.sign(folders[0].path());
    let known = authority.sign(folders[1].path());
    let unknown = stranger.sign(folders[2].path());
    let path = format!("--cert-path={}", folders[0].path().display());
    let clients = format!("--client-ca-file={}", authority.file().display());
    let door = Door::start(&["--secure-serving", &path, &clients]).await;
    let answers = async |identity| answers(door.address, &authority, identity).await;
    assert!(answers(Some(&known)).await);
    assert!(!answers(None).await);
    assert!(!answers(Some(&unknown)).await);
    let tls = connect(door.address, &authority, Some(&known), &["h2"]).await.unwrap();
    let mut http2 = Connection::over(tls, &Builder::new(TokioExecutor::new())).await;
    assert_eq!(http2.get("/live").await.status(), StatusCode::OK);
    // The file changes: those of the new authority come in, and the others do not any more.
    std::fs::copy(stranger.file(), authority.file()).unwrap();
    soon("the new authority", async { while !answers(Some(&unknown)).await {} }).await;
    assert!(!answers(Some(&known)).await);
}

#[tokio::test]
async fn a_new_certificate_is_shown_and_a_broken_one_is_not() {
    let (authority, folder) = (Authority::new(), TempDir::new().unwrap());
    let shown = async |address| {
        let tls = connect(address, &authority, None, &["http/1.1"]).await.unwrap();
        tls.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let first = authority.sign(folder.path());
    let path = format!("--cert-path={}", folder.path().display());
    let mut door = Door::start(&["--secure-serving", &path]).await;
    assert_eq!(shown(door.address).await, first.certificate);
    let second = authority.sign(folder.path());
    let changed = async { while shown(door.address).await != second.certificate {} };
    soon("the new certificate", changed).await;
    std::fs::write(folder.path().join("tls.crt"), "broken").unwrap();
    door.process.event("certificates not reloaded, the old ones stay").await;
    assert_eq!(shown(door.address).await, second.certificate);
}
