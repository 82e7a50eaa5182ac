use super::*;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[test]
fn a_request_names_its_host_and_length() {
    let origin = Origin { host: "::1".into(), port: 80, tls: None };
    let text = String::from_utf8(request("POST", &origin, "/a", None, Some(b"{}"))).expect("ASCII");
    let expected = "POST /a HTTP/1.1\r\nhost: [::1]:80\r\naccept: */*\r\n\
        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(text, expected);
}

#[test]
fn a_key_is_sent_and_not_shown() {
    let origin = Origin { host: "h".into(), port: 80, tls: None };
    let bearer = Bearer::new("hush").expect("it is plain");
    assert!(!format!("{bearer:?}").contains("hush"));
    let text = request("GET", &origin, "/a", Some(&bearer), None);
    let expected =
        "GET /a HTTP/1.1\r\nhost: h:80\r\naccept: */*\r\nauthorization: Bearer hush\r\n\r\n";
    assert_eq!(String::from_utf8(text).expect("ASCII"), expected);
    assert_eq!(Bearer::new("a\r\nx: y"), None);
}

/// A server that answers everything with two answers, over TLS with this certificate.
async fn tls_server(certified: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Origin {
    let key = rustls_pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.expect("a key"))
        .expect("a certificate");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("a connection");
            // A client that does not trust us breaks off.
            let Ok(mut stream) = acceptor.accept(tcp).await else { continue };
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.expect("a request");
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n";
            stream.write_all(answer).await.expect("answered");
            stream.flush().await.expect("answered");
        }
    });
    Origin { host: "localhost".into(), port, tls: None }
}

#[tokio::test]
async fn who_is_trusted_is_a_setting() {
    let certificate = || rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let (own, other) = (certificate().expect("made"), certificate().expect("made"));
    let folder = tempfile::tempdir().expect("a folder");
    let trusting = |name: &str, certified: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let path = folder.path().join(name);
        std::fs::write(&path, certified.cert.pem()).expect("a file");
        TlsOptions { ca_path: Some(path), ..TlsOptions::default() }
    };
    let anybody = TlsOptions { insecure_skip_verify: true, ..TlsOptions::default() };
    let origin = tls_server(&own).await;
    for (options, trusted) in
        [(anybody, true), (trusting("own", &own), true), (trusting("other", &other), false)]
    {
        let tls = Some(options.config().expect("a configuration"));
        let origin = Origin { tls, ..origin.clone() };
        let request = request("GET", &origin, "/", None, None);
        let mut connection = Connection::new(origin);
        let body = connection.exchange(&request, 100).await.map(|response| response.body.to_vec());
        assert_eq!(body.ok(), trusted.then(|| b"hi".to_vec()));
        assert!(!connection.is_up(), "a server that says more than it was asked is left");
    }
    let missing = TlsOptions { ca_path: Some("/missing".into()), ..TlsOptions::default() };
    assert!(missing.config().expect_err("no file").to_string().starts_with("/missing: "));
}

/// A server that sends these bytes on each connection after the head of a request, piece by piece,
/// and then closes it.
async fn server(connections: Vec<Vec<String>>) -> Origin {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        for answers in connections {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            for answer in answers {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut request).await.expect("a request"), 0);
                }
                stream.write_all(answer.as_bytes()).await.expect("answered");
            }
        }
    });
    Origin { host: "127.0.0.1".into(), port, tls: None }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_request_that_got_no_answer_on_a_kept_connection_is_sent_again() {
    // The second request is read and not answered; the client cannot see that coming.
    let first = vec![ok("a"), String::new()];
    let origin = server(vec![first, vec![ok("b")]]).await;
    let request = request("GET", &origin, "/", None, None);
    let mut connection = Connection::new(origin);
    for expected in ["a", "b"] {
        let response = connection.exchange(&request, 10).await.expect("an answer");
        assert_eq!(response.body, expected.as_bytes());
    }
}

#[tokio::test]
async fn what_may_not_be_seen_twice_is_not_sent_again() {
    let origin = server(vec![vec![ok("a"), String::new()], vec![ok("b")]]).await;
    let request = request("POST", &origin, "/", None, None);
    let links = Links::new(origin, LinkSettings::default());
    let mut first = links.send(&request, b"").await.expect("an answer");
    first.body.collect(&mut Vec::new(), 10).await.expect("its body");
    assert!(matches!(links.send(&request, b"").await, Err(HttpError::Unanswered(_))));
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_not_held_however_it_comes() {
    let chunked = |body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        )
    };
    let endless = |body: &str| format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    for answer in [ok, chunked, endless] as [fn(&str) -> String; 3] {
        let long = "x".repeat(100_000);
        let answers = [long.as_str(), &long[1..]].map(|body| vec![answer(body)]);
        let origin = server(answers.to_vec()).await;
        let request = request("GET", &origin, "/", None, None);
        let mut connection = Connection::new(origin);
        let beyond = connection.exchange(&request, 99_999).await;
        assert!(matches!(beyond, Err(HttpError::TooLarge { limit: 99_999 })), "{beyond:?}");
        let within = connection.exchange(&request, 99_999).await.expect("an answer");
        assert_eq!(within.body, &long.as_bytes()[1..]);
    }
}

#[tokio::test]
async fn who_waits_for_the_first_byte_has_no_buffer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let origin = Origin { host: "127.0.0.1".into(), port, tls: None };
    let request = request("GET", &origin, "/", None, None);
    let buffers = Arc::new(Buffers::default());
    let mut connection = Connection::sharing(origin, buffers.clone());
    let exchange = async {
        let response = connection.exchange(&request, 10).await.expect("an answer");
        assert_eq!(response.body, b"abc");
        // That for the read is given back with the last byte, that for the body later.
        assert_eq!(buffers.spare(), (1, 0));
        connection.done();
        assert_eq!(buffers.spare(), (1, 1));
    };
    let serve = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.read(&mut [0; 1024]).await.expect("a request");
        // The client waits since it has sent it.
        assert_eq!(buffers.spare(), (1, 0));
        stream.write_all(ok("abc").as_bytes()).await.expect("answered");
        stream
    };
    let (_stream, ()) = tokio::join!(serve, exchange);
}
