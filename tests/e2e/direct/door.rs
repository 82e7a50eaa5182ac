//! The front door beside an engine: the same limits as before a fleet.

use super::testbed::{CHAT, Sidecar, chat};
use crate::door::raw::Raw;
use hyper::StatusCode;
use stator_tests::engine::Engine;
use stator_tests::soon;

#[tokio::test]
async fn clients_that_are_too_slow_are_not_waited_for() {
    let engine = Engine::start().await;
    let flags =
        ["--header-timeout-ms=200", "--body-deadline-ms=200", "--keep-alive-timeout-ms=500"];
    let sidecar = Sidecar::start(engine.address(), &flags).await;
    let connect = async || Raw::connect(sidecar.client.address()).await;
    let post = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 9999\r\n";
    let file = "--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n";
    let upload = format!("content-type: multipart/form-data; boundary=b\r\n\r\n{file}");
    for head in
        ["GET /healthz HTTP/1.1\r\nx-drip: ", &format!("{post}\r\n"), &format!("{post}{upload}")]
    {
        let mut client = connect().await;
        client.send(head).await;
        client.drip(b'x').await;
        assert_eq!(client.answer().await.status, 408, "{head}");
    }
    connect().await.closed().await;
    for phase in ["phase=\"head\"", "phase=\"body\""] {
        assert!(sidecar.metric("stator_direct_client_timeouts_total", &[phase]).await >= 1.0);
    }
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_not_waited_for() {
    let engine = Engine::start().await;
    let flags = ["--secure-serving", "--header-timeout-ms=200", "--max-connections=64"];
    let sidecar = Sidecar::start(engine.address(), &flags).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(Raw::connect(sidecar.client.address()).await);
    }
    for client in silent {
        client.closed().await;
    }
    sidecar.counts("stator_direct_client_timeouts_total", &["phase=\"handshake\""], 8.0).await;
    sidecar.counts("stator_direct_connections", &[], 0.0).await;
}

#[tokio::test]
async fn the_probe_is_answered_when_all_places_are_held() {
    let engine = Engine::start().await;
    let flags = ["--max-connections=2", "--address-share-percent=100"];
    let sidecar = Sidecar::start(engine.address(), &flags).await;
    let held = [(); 2].map(|()| Raw::connect(sidecar.client.address()));
    let held = futures::future::join_all(held).await;
    let full = async { while sidecar.client.get("/healthz").await.status != 503 {} };
    soon("the door is full", full).await;
    assert_eq!(sidecar.client.get("/healthz").await.json()["status"], "full");
    let refused = sidecar.client.post(CHAT, &chat("hello")).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers.contains_key("retry-after"));
    drop(held);
    let served = async { while sidecar.client.post(CHAT, &chat("hello")).await.status != 200 {} };
    soon("places are free again", served).await;
    assert_eq!(engine.requests().len(), 1, "the engine was asked once");
}
