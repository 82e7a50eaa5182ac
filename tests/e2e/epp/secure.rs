//! Certificates of an authority, on either side.

use super::testbed::{Bed, Testbed, until, until_status};
use hyper::StatusCode;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The name in all certificates.
const NAME: &str = "picker.test";

/// Signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = called("authority");
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.path().join("ca.crt"), certificate.pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// The file with its own certificate.
    fn certificate(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Puts a new certificate and its key into a folder, at once, as a volume of Kubernetes does.
    fn sign(&self, folder: &Path) -> Vec<u8> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([NAME.to_owned()]).expect("a name");
        params.distinguished_name = called(NAME);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        for (name, text) in [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem())] {
            let next = folder.join("next");
            std::fs::write(&next, text).expect("a file");
            std::fs::rename(next, folder.join(name)).expect("the same folder");
        }
        certificate.der().to_vec()
    }
}

/// A subject. One that is called as its issuer is counts as signed by itself.
fn called(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// The certificate that a server shows to who trusts this authority; `None` where there is no
/// agreement, as between the two files of a change.
async fn shown(address: SocketAddr, authority: &Authority) -> Option<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority.certificate()).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("one that can be trusted");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).expect("a name");
    let tcp = TcpStream::connect(address).await.expect("the picker listens");
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.ok()?;
    let (_, connection) = tls.get_ref();
    connection.peer_certificates()?.first().map(|certificate| certificate.to_vec())
}

#[tokio::test]
async fn a_certificate_of_an_authority_is_served_and_followed() {
    let (authority, folder) = (Authority::new(), TempDir::new().expect("a temporary directory"));
    let first = authority.sign(folder.path());
    let path = format!("--cert-path={}", folder.path().display());
    let flags = [path.as_str(), "--enable-cert-reload"];
    let testbed = Testbed::with(1, &flags, |settings, _| {
        settings.tls = true;
        settings.trusted_ca = Some(authority.certificate());
    });
    let Some(testbed) = testbed.await else { return };
    let reply = testbed.chat("hello").await;
    assert_eq!(testbed.served_by(&reply), 0, "the gateway trusts the authority");
    let address = testbed.picker.address();
    assert_eq!(shown(address, &authority).await, Some(first));

    let second = authority.sign(folder.path());
    let is_second =
        async || (shown(address, &authority).await == Some(second.clone())).then_some(());
    until("the new certificate is shown", is_second).await;
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_gateway_that_trusts_another_authority_gets_no_answer() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = TempDir::new().expect("a temporary directory");
    authority.sign(folder.path());
    let path = format!("--cert-path={}", folder.path().display());
    let flags = [path.as_str()];
    let testbed = Testbed::with(1, &flags, |settings, _| {
        settings.tls = true;
        settings.trusted_ca = Some(other.certificate());
    });
    let Some(testbed) = testbed.await else { return };
    assert!(testbed.chat("hello").await.status.is_server_error());
    assert!(testbed.engines[0].requests().is_empty());
}

#[tokio::test]
async fn a_gateway_without_a_certificate_is_refused_where_one_is_asked_for() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folders = [(); 3].map(|()| TempDir::new().expect("a temporary directory"));
    let [own, known, unknown] = &folders;
    authority.sign(own.path());
    authority.sign(known.path());
    stranger.sign(unknown.path());
    let identities = [(Some(known), true), (Some(unknown), false), (None, false)];
    for (identity, welcome) in identities {
        let path = format!("--cert-path={}", own.path().display());
        let clients = format!("--client-ca-file={}", authority.certificate().display());
        let flags = [path.as_str(), &clients];
        let testbed = Testbed::with(1, &flags, |settings, _| {
            settings.tls = true;
            settings.trusted_ca = Some(authority.certificate());
            settings.identity = identity.map(|folder| folder.path().to_owned());
        });
        let Some(testbed) = testbed.await else { return };
        match welcome {
            true => {
                until_status(StatusCode::OK, async || testbed.chat("hello").await).await;
            }
            false => {
                assert!(testbed.chat("hello").await.status.is_server_error());
                assert!(testbed.engines[0].requests().is_empty());
            }
        }
    }
}
