//! Compression, both ways.

use crate::direct::testbed::Sidecar;
use crate::door::Door;
use crate::support::{chat, joined, up};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::http::{Client, Reply};
use std::io::Read;

const CHAT: &str = "/v1/chat/completions";

/// The body of an answer, unpacked as its head says.
fn unpacked(reply: &Reply) -> (Option<&str>, Vec<u8>) {
    let coding = reply.headers.get("content-encoding").map(|coding| coding.to_str().unwrap());
    let mut bytes = Vec::new();
    match coding {
        Some("gzip") => {
            flate2::read::GzDecoder::new(&*reply.body).read_to_end(&mut bytes).unwrap();
        }
        Some("zstd") => bytes = zstd::stream::decode_all(&*reply.body).unwrap(),
        _ => bytes.extend_from_slice(&reply.body),
    }
    (coding, bytes)
}

#[tokio::test]
async fn large_answers_are_compressed_for_clients_that_take_it() {
    let door = Door::start(&[]).await;
    let plain = Client::new(door.address).get("/openapi.json").await;
    assert!(plain.body.len() > 20_000 && !plain.headers.contains_key("content-encoding"));
    for client in [Client::new(door.address), Client::new(door.address).over_http2()] {
        for (accepted, coding) in [
            ("gzip, deflate", Some("gzip")),
            ("gzip, deflate, br, zstd", Some("zstd")),
            ("br", None),
            ("gzip;q=0", None),
        ] {
            let client = client.clone().with_header("accept-encoding", accepted);
            let reply = client.get("/openapi.json").await;
            assert_eq!(unpacked(&reply), (coding, plain.body.to_vec()), "{accepted}");
            assert_eq!(reply.headers["content-length"], reply.body.len().to_string());
            assert_eq!(reply.headers["vary"], "accept-encoding");
            assert_eq!(coding.is_some(), reply.body.len() < plain.body.len() / 2);
            let small = client.get("/version").await;
            assert_eq!(unpacked(&small).0, None, "{accepted}");
            let head = client.send(Method::HEAD, "/openapi.json", "").await;
            assert_eq!(head.headers["content-length"], plain.body.len().to_string());
        }
    }
}

#[tokio::test]
async fn answers_of_engines_are_compressed_and_streams_never_are() {
    let up = up(&[]).await;
    let sidecar = Sidecar::start(up.client.address(), &[]).await;
    let mut body = chat("Hello", 40);
    body["n"] = json!(64);
    for client in [up.client.clone(), sidecar.client.clone()] {
        let texts = |bytes: &[u8]| -> Vec<Value> {
            let answer: Value = serde_json::from_slice(bytes).unwrap();
            let choices = answer["choices"].as_array().unwrap();
            choices.iter().map(|choice| choice["message"]["content"].clone()).collect()
        };
        let plain = client.post(CHAT, &body).await;
        assert!(plain.body.len() > 8 << 10, "{}", plain.body.len());
        let client = client.with_header("accept-encoding", "zstd, gzip;q=0.5");
        let reply = client.post(CHAT, &body).await;
        let (coding, bytes) = unpacked(&reply);
        assert_eq!(coding, Some("zstd"));
        assert_eq!(texts(&bytes), texts(&plain.body));
        let mut streamed = chat("Hello", 40);
        streamed["stream"] = json!(true);
        let mut events = client.stream(CHAT, &streamed).await;
        assert!(!events.response.headers().contains_key("content-encoding"));
        assert!(!joined(&events.rest().await).is_empty());
    }
}

#[tokio::test]
async fn bodies_may_come_as_zstd_within_their_bound() {
    let up = up(&["--max-body-bytes=100000"]).await;
    let request = chat("Hello", 3);
    let plain = up.client.post(CHAT, &request).await.json();
    let client = up.client.clone().with_header("content-encoding", "zstd");
    let send = async |bytes: &[u8], level| {
        let packed = zstd::encode_all(bytes, level).unwrap();
        client.send(Method::POST, CHAT, packed).await
    };
    // The level of Codex, and others.
    for level in [1, 3, 19] {
        let reply = send(request.to_string().as_bytes(), level).await;
        assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
        assert_eq!(reply.json()["choices"], plain["choices"]);
    }
    let bomb = send(&vec![b' '; 50_000_000], 3).await;
    assert_eq!(bomb.status, StatusCode::PAYLOAD_TOO_LARGE, "{bomb:?}");
    let whole = zstd::encode_all(request.to_string().as_bytes(), 3).unwrap();
    for broken in [&b"no zstd"[..], &whole[..whole.len() - 5], b""] {
        let reply = client.send(Method::POST, CHAT, broken.to_vec()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}");
    }
    let unknown = up.client.clone().with_header("content-encoding", "br");
    let reply = unknown.send(Method::POST, CHAT, whole).await;
    assert_eq!(reply.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{reply:?}");
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("zstd"));
}

#[tokio::test]
async fn a_target_that_is_too_long_is_told_from_headers_that_are() {
    let door = Door::start(&["--max-header-bytes=2000"]).await;
    for client in [Client::new(door.address), Client::new(door.address).over_http2()] {
        let reply = client.get(&format!("/live?{}", "x".repeat(3000))).await;
        assert_eq!(reply.status, StatusCode::URI_TOO_LONG, "{reply:?}");
        let reply = client.with_header("x-long", &"x".repeat(3000)).get("/live").await;
        assert_eq!(reply.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "{reply:?}");
        assert_eq!(reply.json()["error"]["code"], "headers_too_large");
    }
}
