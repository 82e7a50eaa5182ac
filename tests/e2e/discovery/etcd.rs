//! etcd: leases, restarts, users and certificates.

use super::{Agent, Followed, record};
use stator_discovery::{DiscoverySource, EtcdTls, Registration};
use stator_tests::kube_etcd::Etcd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shorter than any outage of a test, and long enough to be renewed on a busy machine.
const LEASE: Duration = Duration::from_secs(3);

fn source(etcd: &Etcd) -> DiscoverySource {
    format!("etcd://{}/our/fleet", etcd.address()).parse().unwrap()
}

async fn agent(source: &DiscoverySource, name: &str) -> Agent {
    Agent::start(Registration::open(source, LEASE).await.unwrap(), name)
}

#[tokio::test]
async fn agents_come_change_and_leave() {
    let Some(etcd) = Etcd::start(&[]).await else { return };
    let source = source(&etcd);
    let a = agent(&source, "a").await;
    let mut followed = Followed::new(&source).await;
    followed.until_there(&["a"]).await;
    let b = agent(&source, "b").await;
    followed.until_there(&["a", "b"]).await;
    assert_eq!(followed.there["b"].workers, record("b").workers);
    a.record.send_modify(|record| record.accepting = false);
    followed.until("a drains", |known| !known.there["a"].accepting).await;
    let mut successor = Registration::open(&source, LEASE).await.unwrap();
    assert!(!successor.previous("a").await.unwrap().accepting);
    a.end().await;
    followed.until_there(&["b"]).await;
    // It says nothing any more; its lease ends.
    b.die();
    followed.until_there(&[]).await;
}

#[tokio::test]
async fn an_etcd_that_is_down_empties_nothing() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let source = source(&etcd);
    let _a = agent(&source, "a").await;
    let b = agent(&source, "b").await;
    let mut followed = Followed::new(&source).await;
    followed.until_there(&["a", "b"]).await;
    etcd.stop();
    followed.until_stale(true).await;
    b.die();
    // Longer than a lease: nobody can say that it has ended.
    let outlasted = tokio::time::timeout(LEASE + Duration::from_secs(1), async {
        loop {
            followed.next().await;
            assert!(followed.there.keys().eq(&["a", "b"]));
        }
    });
    outlasted.await.expect_err("it goes on");
    etcd.restart().await;
    followed.until_stale(false).await;
    assert!(followed.there.contains_key("a"));
    followed.until_there(&["a"]).await;
    // New ones are seen, and come where they are awaited.
    let _c = agent(&source, "c").await;
    followed.until_there(&["a", "c"]).await;
}

#[tokio::test]
async fn an_agent_that_starts_before_its_etcd_is_known_when_that_comes() {
    let Some(mut etcd) = Etcd::start(&[]).await else { return };
    let source = source(&etcd);
    etcd.stop();
    let mut registration = Registration::open(&source, LEASE).await.unwrap();
    assert_eq!(registration.previous("a").await, None);
    let _a = Agent::start(registration, "a");
    let mut followed = Followed::new(&source).await;
    followed.until_stale(true).await;
    etcd.restart().await;
    followed.until_there(&["a"]).await;
}

#[tokio::test]
async fn a_user_is_let_in_with_a_password() {
    let Some(etcd) = Etcd::start(&["-etcd-password=secret".to_owned()]).await else { return };
    let home = tempfile::tempdir().unwrap();
    let of = async |password: &str| {
        let file = home.path().join(password);
        std::fs::write(&file, format!("{password}\n")).unwrap();
        let url = format!("etcd://root@{}?password-file={}", etcd.address(), file.display());
        let source: DiscoverySource = url.parse().unwrap();
        (agent(&source, password).await, Followed::new(&source).await)
    };
    let (_agent, mut followed) = of("secret").await;
    followed.until_there(&["secret"]).await;
    let (_agent, mut wrong) = of("guess").await;
    wrong.until_stale(true).await;
    assert!(wrong.there.is_empty());
    let plain: DiscoverySource = format!("etcd://{}", etcd.address()).parse().unwrap();
    let _stranger = agent(&plain, "stranger").await;
    let mut followed = Followed::new(&plain).await;
    followed.until_stale(true).await;
    assert!(followed.there.is_empty());
}

#[tokio::test]
async fn members_and_clients_show_certificates() {
    let home = tempfile::tempdir().unwrap();
    let files = Certificates::write(home.path());
    let flags = [
        format!("-etcd-cert={}", files.path("server.crt")),
        format!("-etcd-key={}", files.path("server.key")),
        format!("-etcd-ca={}", files.path("ca.crt")),
    ];
    let Some(etcd) = Etcd::start(&flags).await else { return };
    let (ca, cert, key) =
        (files.path("ca.crt"), files.path("client.crt"), files.path("client.key"));
    let url = format!("etcd://{}?ca={ca}&cert={cert}&key={key}", etcd.address());
    let source: DiscoverySource = url.parse().unwrap();
    let DiscoverySource::Etcd(named) = &source else { panic!("{source:?}") };
    let identity = Some((cert.into(), key.into()));
    assert_eq!(named.tls, Some(EtcdTls { ca: ca.clone().into(), identity }));
    let _a = agent(&source, "a").await;
    let mut followed = Followed::new(&source).await;
    followed.until_there(&["a"]).await;

    let nobody: DiscoverySource = format!("etcd://{}?ca={ca}", etcd.address()).parse().unwrap();
    let mut stranger = Followed::new(&nobody).await;
    stranger.until_stale(true).await;
    assert!(stranger.there.is_empty());
}

/// An authority, and a certificate of it for the server and for a client.
struct Certificates(PathBuf);

impl Certificates {
    fn write(home: &Path) -> Self {
        let certificates = Self(home.to_owned());
        let mut ca = rcgen::CertificateParams::new([]).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let ca_certificate = ca.self_signed(&ca_key).unwrap();
        certificates.put("ca.crt", &ca_certificate.pem());
        let issuer = rcgen::Issuer::new(ca, ca_key);
        for name in ["server", "client"] {
            let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            certificates.put(&format!("{name}.crt"), &certificate.pem());
            certificates.put(&format!("{name}.key"), &key.serialize_pem());
        }
        certificates
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}
