//! Who is let in.

use super::*;
use crate::dial::{self, DialError, ListenEnd};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use stator_runtime::tls::{self, CertificateSource, Version};
use std::path::Path;
use tonic::Code;

/// How a stranger with these settings fares that dials `member`.
async fn dial(member: &Member, settings: PeersSettings) -> Result<ListenEnd, DialError> {
    let stranger = Peers::new(settings, Arc::new(Fake::default()), PeersMetrics::default());
    dial::listen(&stranger.hub, member.address, &stranger.settings).await
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_refused() {
    let secret = |token: &str| PeersSettings { token: Some(token.into()), ..settings(Vec::new()) };
    let member = Member::start(Listener::plain(bind().await), secret("right"));
    for stranger in [settings(Vec::new()), secret("wrong")] {
        match dial(&member, stranger).await {
            Err(DialError::Status(status)) => assert_eq!(status.code(), Code::Unauthenticated),
            other => panic!("{other:?}"),
        }
    }
    let peers = vec![member.address.to_string()];
    let peer =
        Member::start(Listener::plain(bind().await), PeersSettings { peers, ..secret("right") });
    member.fake.has(7, 2);
    until("who knows it hears", || peer.fake.hears() == [(7, 2)]).await;
}

/// Writes an authority's `ca.crt` and a `tls.crt` and `tls.key` that it signed for `peers.test`.
fn write_certificates(folder: &Path) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("a certificate");
    let issuer = Issuer::new(params, key);
    let leaf_key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["peers.test".to_owned()]).expect("a name");
    let leaf = params.signed_by(&leaf_key, &issuer).expect("a certificate");
    for (name, text) in [
        ("ca.crt", authority.pem()),
        ("tls.crt", leaf.pem()),
        ("tls.key", leaf_key.serialize_pem()),
    ] {
        std::fs::write(folder.join(name), text).expect("the folder is ours");
    }
}

/// A member that asks for certificates of the authority in `folder`.
async fn over_tls(folder: &Path, peers: Vec<String>) -> Member {
    let server = tls::ServerSettings {
        certificate: CertificateSource::Folder(folder.to_owned()),
        client_ca: Some(folder.join("ca.crt")),
        reload: false,
        min_version: Version::Tls13,
        alpn: vec!["h2".into()],
    };
    let (config, _) = tls::server_config(&server).expect("the files are good");
    let listener = Listener::tls(bind().await, config);
    let settings = PeersSettings { tls: Some(trust(folder, folder)), ..settings(peers) };
    Member::start(listener, settings)
}

/// Trusts the authority in `folder`, and has the certificate in another.
fn trust(folder: &Path, certificate: &Path) -> PeerTls {
    PeerTls {
        ca_file: folder.join("ca.crt"),
        certificate: certificate.to_owned(),
        server_name: "peers.test".into(),
    }
}

#[tokio::test]
async fn peers_prove_to_each_other_who_they_are() {
    tls::install_provider();
    let folder = tempfile::tempdir().expect("a folder");
    write_certificates(folder.path());
    let one = over_tls(folder.path(), Vec::new()).await;
    let two = over_tls(folder.path(), vec![one.address.to_string()]).await;
    one.fake.has(7, 2);
    until("it hears over TLS", || two.fake.hears() == [(7, 2)]).await;

    let plain = dial(&one, settings(Vec::new())).await;
    assert!(plain.is_err(), "{plain:?}");
    let other = tempfile::tempdir().expect("a folder");
    write_certificates(other.path());
    let tls = Some(trust(folder.path(), other.path()));
    let stranger = dial(&one, PeersSettings { tls, ..settings(Vec::new()) }).await;
    assert!(stranger.is_err(), "{stranger:?}");
    let missing =
        PeerTls { ca_file: "/no/such/file".into(), ..trust(folder.path(), folder.path()) };
    let missing = dial(&one, PeersSettings { tls: Some(missing), ..settings(Vec::new()) }).await;
    assert!(matches!(missing, Err(DialError::Certificate(_))), "{missing:?}");
}
