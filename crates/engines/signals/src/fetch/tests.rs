use super::*;
use proptest::{collection::vec, prelude::*};

#[track_caller]
fn check(head: &str, status: u16, length: Length, keep_alive: bool) {
    let found = Head::parse(head.as_bytes(), 0).expect("a head").expect("all of it");
    assert_eq!((found.status, found.length, found.keep_alive), (status, length, keep_alive));
}

#[test]
fn heads_say_how_long_the_body_is() {
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, Length::Exact(5), true);
    check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 200, Length::Chunked, true);
    let both = "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n";
    check(both, 200, Length::Chunked, true);
    check("HTTP/1.1 200 OK\r\n\r\n", 200, Length::UntilClose, false);
    check("HTTP/1.1 204 None\r\n\r\n", 204, Length::Exact(0), true);
    check("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", 200, Length::Exact(5), false);
    let kept = "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 5\r\n\r\n";
    check(kept, 200, Length::Exact(5), true);
    let close = "HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";
    check(close, 500, Length::Exact(5), false);
}

#[test]
fn a_redirection_says_where_to() {
    let head = b"HTTP/1.1 302 Found\r\nLocation:  /there \r\n\r\n";
    let found = Head::parse(head, 0).expect("a head").expect("all of it");
    assert_eq!(found.location.map(|range| &head[range]), Some(&b"/there"[..]));
}

#[test]
fn what_is_no_head_is_refused() {
    for head in [
        "\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 20x OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
    ] {
        assert!(Head::parse(head.as_bytes(), 0).is_err(), "{head:?}");
    }
    assert!(matches!(Head::parse(b"HTTP/1.1 200 OK\r\n", 0), Ok(None)));
}

#[test]
fn malformed_chunks_are_refused() {
    for body in ["x\r\n", "\r\n", "12345678\r\n", "1\r\nabc\r\n", "-1\r\n"] {
        let mut buffer = body.as_bytes().to_vec();
        assert!(Chunks::new(0).advance(&mut buffer).is_err(), "{body:?}");
    }
}

#[test]
fn a_request_names_its_host_and_length() {
    let origin = Origin { host: "::1".into(), port: 80, tls: None };
    let text = String::from_utf8(request("POST", &origin, "/a", Some(b"{}"))).expect("ASCII");
    let expected = "POST /a HTTP/1.1\r\nhost: [::1]:80\r\naccept: */*\r\n\
        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(text, expected);
}

#[test]
fn a_key_is_sent_and_not_shown() {
    let origin = Origin { host: "h".into(), port: 80, tls: None };
    let bearer = Bearer::new("hush").expect("it is plain");
    assert!(!format!("{bearer:?}").contains("hush"));
    let text = request_as(Some(&bearer), &origin, ("GET", "/a"), None);
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
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
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
        let request = request("GET", &origin, "/", None);
        let mut connection = Connection::new(origin);
        let body = connection.exchange(&request, 100).await.map(|response| response.body.to_vec());
        assert_eq!(body.ok(), trusted.then(|| b"hi".to_vec()));
        assert!(!connection.is_up(), "a server that says more than it was asked is left");
    }
    let missing = TlsOptions { ca_path: Some("/missing".into()), ..TlsOptions::default() };
    assert!(missing.config().expect_err("no file").to_string().starts_with("/missing: "));
}

proptest! {
    /// However a body is cut into chunks, and however these arrive, it comes out whole.
    #[test]
    fn chunks_are_put_together(
        chunks in vec(vec(any::<u8>(), 1..20), 0..8),
        pieces in vec(1usize..30, 1..60),
        extension: bool,
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            let extension = if extension { ";a=b" } else { "" };
            wire.extend_from_slice(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\ntrailer: x\r\n\r\n");
        let mut buffer = b"head".to_vec();
        let mut body = Chunks::new(4);
        let mut left = &wire[..];
        for piece in pieces.iter().cycle() {
            let (now, later) = left.split_at((*piece).min(left.len()));
            buffer.extend_from_slice(now);
            left = later;
            let done = body.advance(&mut buffer).expect("well-formed");
            prop_assert_eq!(done, left.is_empty());
            if done {
                break;
            }
        }
        prop_assert_eq!(&buffer[4..body.end()], chunks.concat());
    }

    #[test]
    fn arbitrary_heads_never_panic(bytes in vec(any::<u8>(), 0..100), after: bool) {
        let mut wire = if after { b"HTTP/1.1 200 OK\r\n".to_vec() } else { Vec::new() };
        wire.extend_from_slice(&bytes);
        wire.extend_from_slice(b"\r\n\r\n");
        if let Ok(Some(head)) = Head::parse(&wire, 0) {
            prop_assert!(head.size <= wire.len());
        }
    }
}
