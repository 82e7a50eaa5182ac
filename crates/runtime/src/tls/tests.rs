//! Real handshakes over loopback sockets.

use super::material::Material;
use super::suites::provider;
use super::testkit::{Authority, Echo, client, settings};
use super::{
    CertificateSource, Listener, RELOAD_INTERVAL, ServerSettings, TlsError, TlsPeer, Version,
    certificate, install_provider, server_config,
};
use crate::Shutdown;
use crate::dial::{Dial, DialArgs};
use opentelemetry_proto::tonic::collector::trace::v1 as otlp;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::CertificateDer;
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Server};
use tonic::{Request, Response, Status};

fn self_signed(names: &[&str]) -> ServerSettings {
    settings(CertificateSource::SelfSigned {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    })
}

fn folder(path: &Path) -> ServerSettings {
    settings(CertificateSource::Folder(path.to_owned()))
}

/// Whether a client that trusts exactly the certificate made for `names` accepts it for `name`.
fn check_name(names: &[&str], name: &str) -> bool {
    let settings = self_signed(names);
    let material = Material::read(&settings).unwrap();
    let certified = certificate::certified(settings.names(), &material).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert[0].clone()).unwrap();
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
            .build()
            .unwrap();
    let name = name.to_owned().try_into().unwrap();
    let now = rustls_pki_types::UnixTime::now();
    verifier.verify_server_cert(&certified.cert[0], &[], &name, &[], now).is_ok()
}

#[test]
fn a_self_signed_certificate_is_good_for_its_names_only() {
    let names = ["picker.default.svc", "10.1.2.3"];
    for name in ["localhost", "picker.default.svc", "10.1.2.3"] {
        assert!(check_name(&names, name), "{name}");
    }
    for name in ["example.org", "10.1.2.4"] {
        assert!(!check_name(&names, name), "{name}");
    }
}

#[tokio::test]
async fn a_certificate_from_files_is_shown_and_the_protocol_negotiated() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let leaf = authority.sign("localhost");
    leaf.write(dir.path());
    let echo = Echo::start(&folder(dir.path())).await;

    let mut config = client(&authority.der, None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut open = echo.connect(config).await.unwrap();
    assert_eq!(open.server(), leaf.der);
    assert_eq!(open.0.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    assert_eq!(open.says("hello").await.unwrap(), "hello");

    let stranger = client(&Authority::new().der, None);
    assert!(!echo.answers(stranger).await);
}

#[tokio::test]
async fn new_connections_get_a_new_certificate_and_open_ones_go_on() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.sign("localhost").write(dir.path());
    let mut echo = Echo::start(&folder(dir.path())).await;
    let mut open = echo.connect(client(&authority.der, None)).await.unwrap();

    let renewed = authority.sign("localhost");
    renewed.write(dir.path());
    echo.look();
    let new = echo.connect(client(&authority.der, None)).await.unwrap();
    assert_eq!(new.server(), renewed.der);
    assert_ne!(open.server(), renewed.der);
    assert_eq!(open.says("still here").await.unwrap(), "still here");
}

#[tokio::test(start_paused = true)]
async fn files_are_looked_at_until_shutdown() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.sign("localhost").write(dir.path());
    let mut echo = Echo::start(&folder(dir.path())).await;
    let (trigger, shutdown) = Shutdown::new();
    let task = tokio::spawn(echo.reload.take().unwrap().run(shutdown));

    let renewed = authority.sign("localhost");
    renewed.write(dir.path());
    tokio::time::sleep(2 * RELOAD_INTERVAL).await;
    tokio::time::resume();
    let new = echo.connect(client(&authority.der, None)).await.unwrap();
    assert_eq!(new.server(), renewed.der);

    trigger.set();
    task.await.unwrap();
}

#[test]
fn nothing_is_looked_at_where_nothing_can_change() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new().sign("localhost").write(dir.path());
    let reloads = |settings| server_config(&settings).unwrap().1.is_some();
    assert!(reloads(folder(dir.path())));
    assert!(!reloads(ServerSettings { reload: false, ..folder(dir.path()) }));
    assert!(!reloads(self_signed(&[])));
}

#[tokio::test]
async fn broken_files_leave_the_old_certificate_until_they_are_mended() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let first = authority.sign("localhost");
    first.write(dir.path());
    let mut echo = Echo::start(&folder(dir.path())).await;
    let second = authority.sign("localhost");
    let shown = async |echo: &Echo| -> CertificateDer<'static> {
        echo.connect(client(&authority.der, None)).await.unwrap().server()
    };

    // The certificate of one pair and the key of another, then no PEM, then no file.
    std::fs::write(dir.path().join("tls.crt"), &second.pem).unwrap();
    echo.look();
    assert_eq!(shown(&echo).await, first.der);
    std::fs::write(dir.path().join("tls.key"), "no key").unwrap();
    echo.look();
    assert_eq!(shown(&echo).await, first.der);
    std::fs::remove_file(dir.path().join("tls.key")).unwrap();
    echo.look();
    assert_eq!(shown(&echo).await, first.der);

    second.write(dir.path());
    echo.look();
    assert_eq!(shown(&echo).await, second.der);
}

#[tokio::test]
async fn only_clients_of_the_authority_get_in() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.sign("localhost").write(dir.path());
    let (old, new) = (Authority::new(), Authority::new());
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, &old.pem).unwrap();
    let mut echo =
        Echo::start(&ServerSettings { client_ca: Some(ca.clone()), ..folder(dir.path()) }).await;
    let (theirs, ours) = (new.sign("client"), old.sign("client"));

    assert!(!echo.answers(client(&authority.der, None)).await);
    assert!(!echo.answers(client(&authority.der, Some(&theirs))).await);
    assert_eq!(echo.failures.get(), 2);
    assert!(echo.answers(client(&authority.der, Some(&ours))).await);

    std::fs::write(&ca, &new.pem).unwrap();
    echo.look();
    assert!(echo.answers(client(&authority.der, Some(&theirs))).await);
    assert!(!echo.answers(client(&authority.der, Some(&ours))).await);
}

#[tokio::test]
async fn a_session_is_not_resumed_past_its_authority() {
    let (old, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    old.sign("localhost").write(dir.path());
    let ca = dir.path().join("ca.crt");
    std::fs::write(&ca, &old.pem).unwrap();
    let mut echo =
        Echo::start(&ServerSettings { client_ca: Some(ca.clone()), ..folder(dir.path()) }).await;

    // The same client configuration keeps its tickets from one connection to the next.
    let config = client(&old.der, Some(&old.sign("client")));
    assert!(echo.answers(config.clone()).await);
    std::fs::write(&ca, Authority::new().pem).unwrap();
    echo.look();
    assert!(!echo.answers(config).await);
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_ends_is_dropped_and_holds_up_nobody() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    authority.sign("localhost").write(dir.path());
    let echo = Echo::start(&folder(dir.path())).await;

    let mut silent = TcpStream::connect(echo.address).await.unwrap();
    // The clock jumps to the limit once everything waits.
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(echo.failures.get(), 1);
    tokio::time::resume();

    let _silent = TcpStream::connect(echo.address).await.unwrap();
    assert!(echo.answers(client(&authority.der, None)).await);
}

#[tokio::test]
async fn bytes_that_are_no_handshake_are_counted_and_end_nothing() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.sign("localhost").write(dir.path());
    let echo = Echo::start(&folder(dir.path())).await;

    let mut confused = TcpStream::connect(echo.address).await.unwrap();
    confused.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    // An alert, or the end: either way the server is done with it.
    let _ = confused.read_to_end(&mut Vec::new()).await;
    assert_eq!(echo.failures.get(), 1);
    assert!(echo.answers(client(&authority.der, None)).await);
}

#[tokio::test]
async fn plain_connections_take_the_same_way() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, failures) = Echo::serve(Listener::plain(tcp));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!((&answer, failures.get()), (b"hello", 0));
}

#[tokio::test]
async fn an_old_version_is_refused_where_a_new_one_is_asked_for() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.sign("localhost").write(dir.path());
    let roots = {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.der.clone()).unwrap();
        roots
    };
    for (min_version, accepted) in [(Version::Tls12, true), (Version::Tls13, false)] {
        let echo = Echo::start(&ServerSettings { min_version, ..folder(dir.path()) }).await;
        let old = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        assert_eq!(echo.answers(old).await, accepted, "{min_version:?}");
    }
}

#[test]
fn faults_of_files_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let check = |expected: &str| {
        let error = server_config(&folder(dir.path())).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("cannot read");
    let (one, other) = (Authority::new().sign("localhost"), Authority::new().sign("localhost"));
    one.write(dir.path());
    std::fs::write(dir.path().join("tls.key"), other.key.serialize_pem()).unwrap();
    check("certificate and key are refused");
    std::fs::write(dir.path().join("tls.key"), "").unwrap();
    check("tls.key\" holds no private key");
    std::fs::write(dir.path().join("tls.crt"), "").unwrap();
    check("tls.crt\" holds no certificate");

    let error = server_config(&self_signed(&["höst"])).err().unwrap();
    assert!(matches!(error, TlsError::SelfSigned { .. }), "{error}");
}

/// A gRPC service that says nothing but whether its client is `proxy`, to be called over TLS.
struct Silent;

#[tonic::async_trait]
impl otlp::trace_service_server::TraceService for Silent {
    async fn export(
        &self,
        request: Request<otlp::ExportTraceServiceRequest>,
    ) -> Result<Response<otlp::ExportTraceServiceResponse>, Status> {
        let peer = request.extensions().get::<TlsPeer>().unwrap();
        assert!(peer.address.is_some());
        if peer.certificate.is_some() && !peer.is("proxy") {
            assert!(peer.is("other"));
            return Err(Status::permission_denied("not the proxy"));
        }
        Ok(Response::new(otlp::ExportTraceServiceResponse::default()))
    }
}

#[tokio::test]
async fn grpc_is_served_over_it() {
    install_provider();
    install_provider();
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.sign("localhost").write(dir.path());
    let (config, _) = server_config(&folder(dir.path())).unwrap();
    let listener = Listener::tls(TcpListener::bind("127.0.0.1:0").await.unwrap(), config);
    let address = listener.address().unwrap();
    let service = otlp::trace_service_server::TraceServiceServer::new(Silent);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(listener.incoming()));

    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&authority.pem))
        .domain_name("localhost");
    let channel =
        Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    let mut client =
        otlp::trace_service_client::TraceServiceClient::new(channel.connect().await.unwrap());
    client.export(otlp::ExportTraceServiceRequest::default()).await.unwrap();
}

/// Calls a server at `address` as `dial` says.
async fn call(dial: &Dial, address: SocketAddr) -> Result<(), String> {
    let channel = dial.target(&format!("https://{address}")).unwrap().connect().await;
    let channel = channel.map_err(|error| format!("{error:?}"))?;
    let mut client = otlp::trace_service_client::TraceServiceClient::new(channel);
    let called = client.export(otlp::ExportTraceServiceRequest::default()).await;
    called.map(drop).map_err(|status| status.message().to_owned())
}

#[tokio::test]
async fn both_sides_are_known_by_their_certificates_whichever_is_there_now() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for folder in ["server", "client"] {
        std::fs::create_dir(path(folder)).unwrap();
    }
    authority.sign("agent").write(&path("server"));
    std::fs::write(path("ca.crt"), &authority.pem).unwrap();
    let settings = ServerSettings { client_ca: Some(path("ca.crt")), ..folder(&path("server")) };
    let (config, _) = server_config(&settings).unwrap();
    let listener = Listener::tls(TcpListener::bind("127.0.0.1:0").await.unwrap(), config);
    let address = listener.address().unwrap();
    let service = otlp::trace_service_server::TraceServiceServer::new(Silent);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(listener.incoming()));

    let dial = |certificate: bool, name: Option<&str>| DialArgs {
        request_tls_ca_file: Some(path("ca.crt")),
        request_tls_cert_dir: certificate.then(|| path("client")),
        request_tls_server_name: name.map(str::to_owned),
    };
    authority.sign("proxy").write(&path("client"));
    let known = dial(true, Some("agent")).dial().unwrap();
    assert_eq!(call(&known, address).await, Ok(()));
    let nobody = dial(false, Some("agent")).dial().unwrap();
    assert!(call(&nobody, address).await.is_err(), "a certificate is asked for");
    let misled = dial(true, None).dial().unwrap();
    assert!(call(&misled, address).await.is_err(), "the server is not 127.0.0.1");
    // The files count that are there when a connection is made.
    authority.sign("other").write(&path("client"));
    assert_eq!(call(&known, address).await, Err("not the proxy".into()));
    stranger.sign("proxy").write(&path("client"));
    assert!(call(&known, address).await.is_err(), "of another authority");
}
