//! Responses in a real PostgreSQL that several proxies share.

use crate::support::{MODEL, Up, up};
use hyper::Method;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use stator_tests::http::{Client, Reply};
use stator_tests::postgres::{PASSWORD, Postgres, USER};
use stator_tests::process::Process;
use stator_tests::soon;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

fn response(input: &str) -> Value {
    json!({"model": MODEL, "input": input, "max_output_tokens": 4, "temperature": 0})
}

fn path(made: &Value) -> String {
    format!("/v1/responses/{}", made["id"].as_str().unwrap_or_else(|| panic!("{made}")))
}

/// A proxy with a worker of its own, whose responses are at `url`.
async fn proxy(url: &str, further: &[&str]) -> Up {
    let store = format!("--responses-store={url}");
    up(&[&["--engine=sim", "--workers=1", "--api-key=one,two", &store], further].concat()).await
}

fn client(up: &Up, key: &str) -> Client {
    up.client.clone().with_header("authorization", &format!("Bearer {key}"))
}

async fn made(up: &Up, body: &Value) -> Value {
    let reply = client(up, "one").post("/v1/responses", body).await;
    assert_eq!(reply.status, 200, "{} {}", reply.json(), up.process.log());
    reply.json()
}

fn count(postgres: &Postgres, table: &str) -> String {
    postgres.ask(&format!("SELECT count(*) FROM {table}"))
}

#[tokio::test]
async fn a_response_of_one_proxy_is_every_proxys() {
    let Some(postgres) = Postgres::start().await else { return };
    let url = postgres.url();
    let (first, second) = (proxy(&url, &[]).await, proxy(&url, &[]).await);
    let begun = made(&first, &response("Hello")).await;
    assert_eq!(client(&second, "one").get(&path(&begun)).await.json(), begun);
    assert_eq!(client(&second, "two").get(&path(&begun)).await.status, 404);

    let mut next = response("And then?");
    next["previous_response_id"] = begun["id"].clone();
    let next = made(&second, &next).await;
    let (before, after) = (&begun["usage"]["input_tokens"], &next["usage"]["input_tokens"]);
    assert!(after.as_u64() > before.as_u64(), "{next}");
    let listed = client(&first, "one").get(&format!("{}/input_items", path(&next))).await.json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(3), "{listed}");
    let mut referring = response("");
    let said = json!({"type": "item_reference", "id": begun["output"][0]["id"]});
    referring["input"] = json!([said, {"role": "user", "content": "And then?"}]);
    let referred = made(&second, &referring).await;
    let items = client(&first, "one").get(&format!("{}/input_items", path(&referred))).await.json();
    assert_eq!(items["data"][1], begun["output"][0], "{items}");
    let gone = client(&first, "one").send(Method::DELETE, &path(&referred), "").await;
    assert_eq!(gone.status, 200, "{}", gone.json());
    // The items of the conversation are there once.
    assert_eq!(count(&postgres, "stator_response_items"), "4");

    let gone = client(&first, "one").send(Method::DELETE, &path(&begun), "").await;
    assert_eq!(gone.status, 200, "{}", gone.json());
    for up in [&first, &second] {
        assert_eq!(client(up, "one").get(&path(&begun)).await.status, 404);
        assert_eq!(client(up, "one").get(&path(&next)).await.json(), next);
    }
    let gone = client(&second, "one").send(Method::DELETE, &path(&next), "").await;
    assert_eq!(gone.status, 200, "{}", gone.json());
    assert_eq!(client(&first, "one").get(&path(&next)).await.status, 404);
    assert_eq!(count(&postgres, "stator_response_items"), "0");
    for up in [&first, &second] {
        assert!(!up.process.log().contains(PASSWORD), "{}", up.process.log());
    }
}

#[tokio::test]
async fn a_response_in_the_background_outlives_its_proxy() {
    let Some(postgres) = Postgres::start().await else { return };
    let mut first = proxy(&postgres.url(), &[]).await;
    let mut body = response("Hello");
    body["background"] = json!(true);
    body["stream"] = json!(true);
    let events = client(&first, "one").post("/v1/responses", &body).await;
    let text = String::from_utf8_lossy(&events.body).into_owned();
    let id = text.split('"').find(|text| text.starts_with("resp_")).expect("an id").to_owned();
    first.process.terminate();
    assert!(first.process.ended().await.success(), "{}", first.process.log());

    let second = proxy(&postgres.url(), &[]).await;
    let again = client(&second, "one").get(&format!("/v1/responses/{id}?stream=true")).await;
    assert_eq!(again.status, 200, "{}", second.process.log());
    assert_eq!(String::from_utf8_lossy(&again.body), text);
}

#[tokio::test]
async fn a_database_that_is_away_takes_what_waits_for_it_when_it_is_back() {
    let Some(mut postgres) = Postgres::start().await else { return };
    let (first, second) = (proxy(&postgres.url(), &[]).await, proxy(&postgres.url(), &[]).await);
    let before = made(&first, &response("Hello")).await;
    postgres.stop();
    let during = made(&first, &response("Are you there?")).await;
    // This process has both; the other one has neither, and does not say that there is none.
    for made in [&before, &during] {
        assert_eq!(client(&first, "one").get(&path(made)).await.json(), *made);
        let refused = client(&second, "one").get(&path(made)).await;
        is_unavailable(&refused);
    }
    let mut next = response("And then?");
    next["previous_response_id"] = during["id"].clone();
    is_unavailable(&client(&second, "one").post("/v1/responses", &next).await);
    postgres.serve().await;
    soon("the response", async {
        while client(&second, "one").get(&path(&during)).await.status != 200 {}
    })
    .await;
    assert_eq!(client(&second, "one").get(&path(&during)).await.json(), during);
    assert_eq!(client(&second, "one").get(&path(&before)).await.json(), before);
}

fn is_unavailable(refused: &Reply) {
    let error = refused.json()["error"].clone();
    assert_eq!(refused.status, 503, "{error}");
    assert!(refused.headers.contains_key("retry-after"), "{error}");
    assert!(error["message"].as_str().unwrap().contains("database of responses"), "{error}");
}

#[tokio::test]
async fn responses_leave_the_database_when_their_stay_is_over_or_they_are_too_many() {
    let Some(postgres) = Postgres::start().await else { return };
    let url = postgres.url();
    let mut first = proxy(&url, &[]).await;
    let old = made(&first, &response("An old one")).await;
    let kept = [made(&first, &response("A")).await, made(&first, &response("B")).await];
    let newest = made(&first, &response("C")).await;
    first.process.terminate();
    first.process.ended().await;
    let age = |made: &Value, seconds: u32| {
        let id = made["id"].as_str().unwrap();
        postgres.ask(&format!(
            "UPDATE stator_responses SET kept_at_s = kept_at_s - {seconds} WHERE id = '{id}'"
        ))
    };
    age(&old, 1000);
    age(&kept[0], 10);
    age(&kept[1], 5);
    // A proxy looks when it starts.
    let _second = proxy(&url, &["--responses-ttl-s=500", "--responses-max=2"]).await;
    soon("a sweep", async { while count(&postgres, "stator_responses") != "2" {} }).await;
    let left = postgres.ask("SELECT id FROM stator_responses ORDER BY kept_at_s");
    let ids = [&kept[1], &newest].map(|made| made["id"].as_str().unwrap());
    assert_eq!(left, ids.join("\n"));
    let items = "SELECT count(*) FROM stator_response_items WHERE uses <= 0 OR number NOT IN
        (SELECT unnest(items) FROM stator_responses)";
    assert_eq!(postgres.ask(items), "0");
}

#[tokio::test]
async fn what_is_wrong_with_a_database_is_said_at_the_start() {
    let Some(postgres) = Postgres::start().await else { return };
    let refused = async |url: &str| {
        let store = format!("--responses-store={url}");
        let mut process = Process::start(&["up", "--http-port=0", "--engine=sim", &store]);
        assert!(!process.ended().await.success());
        let log = process.log();
        assert!(!log.contains(PASSWORD) && !log.contains("wrong-word"), "{log}");
        log
    };
    let wrong = postgres.url().replace(PASSWORD, "wrong-word");
    let log = refused(&wrong).await;
    assert!(log.contains("password authentication failed"), "{log}");
    let nowhere = format!("postgres://{USER}:{PASSWORD}@127.0.0.1:1/{USER}");
    assert!(refused(&nowhere).await.contains("127.0.0.1/stator"), "where it is not");
    let log = refused(&format!("{}?sslmode=prefer", postgres.url())).await;
    assert!(log.contains("sslmode is \"prefer\""), "{log}");
    postgres.ask("CREATE TABLE stator_responses_form (form INTEGER)");
    postgres.ask("INSERT INTO stator_responses_form VALUES (9)");
    let log = refused(&postgres.url()).await;
    assert!(log.contains("the form 9, this version reads the form 1"), "{log}");
}

/// The wheel's server has no TLS, so TLS ends before it, as PostgreSQL begins it.
#[tokio::test]
async fn a_servers_certificate_is_checked() {
    let Some(postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let authorities = folder.path().join("ca.crt");
    std::fs::write(&authorities, authority.pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let named = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = named.signed_by(&key, &issuer).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut config = ServerConfig::builder_with_provider(Arc::new(
        tokio_rustls::rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(
        vec![certificate.der().clone()],
        PrivateKeyDer::Pkcs8(key.serialize_der().into()),
    )
    .unwrap();
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    tokio::spawn(secured(listener, TlsAcceptor::from(Arc::new(config)), postgres.socket()));

    let url = |host: &str, rest: &str| {
        format!("postgres://{USER}:{PASSWORD}@{host}:{port}/{USER}?{rest}")
    };
    let authorities = format!("sslmode=verify-full&sslrootcert={}", authorities.display());
    let trusted = proxy(&url("localhost", &authorities), &[]).await;
    let begun = made(&trusted, &response("Hello")).await;
    let anybody = proxy(&url("127.0.0.1", "sslmode=require"), &[]).await;
    assert_eq!(client(&anybody, "one").get(&path(&begun)).await.json(), begun);
    for (host, rest) in [("127.0.0.1", &*authorities), ("localhost", "sslmode=verify-full")] {
        let store = format!("--responses-store={}", url(host, rest));
        let mut process = Process::start(&["up", "--http-port=0", "--engine=sim", &store]);
        assert!(!process.ended().await.success());
        assert!(process.log().contains("invalid peer certificate"), "{}", process.log());
    }
}

/// Answers as a server with TLS, and passes on what comes to one without.
async fn secured(listener: TcpListener, tls: TlsAcceptor, socket: std::path::PathBuf) {
    while let Ok((mut client, _)) = listener.accept().await {
        let (tls, socket) = (tls.clone(), socket.clone());
        tokio::spawn(async move {
            let mut asked = [0; 8];
            client.read_exact(&mut asked).await?;
            // Length 8, and the code of a request for TLS. Source: PostgreSQL's protocol 3.0.
            assert_eq!(asked, [0, 0, 0, 8, 4, 210, 22, 47]);
            client.write_all(b"S").await?;
            let mut client = tls.accept(client).await?;
            let mut server = UnixStream::connect(socket).await?;
            copy_bidirectional(&mut client, &mut server).await.map(drop)
        });
    }
}
