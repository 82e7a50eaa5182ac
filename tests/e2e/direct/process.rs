//! The process: its settings, its health and its end.

use super::testbed::{CHAT, Sidecar, chat};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::{Engine, HOLD};
use stator_tests::process::Process;

#[tokio::test]
async fn its_own_health_and_the_engines_are_two_things() {
    let engine = Engine::start().await;
    let sidecar = Sidecar::start(engine.address(), &[]).await;
    assert_eq!(sidecar.client.get("/healthz").await.status, StatusCode::OK);
    assert!(engine.requests().is_empty());
    assert_eq!(sidecar.client.get("/health").await.status, StatusCode::OK);
    assert_eq!(engine.last().path, "/health");
    let page = sidecar.client.get("/metrics").await.body;
    assert!(page.starts_with(b"# TYPE vllm:"), "pickers read the engine's metrics here");
    drop(engine);
    assert_eq!(sidecar.client.get("/health").await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(sidecar.client.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_streams_is_finished_before_the_end() {
    let engine = Engine::start().await;
    let mut sidecar = Sidecar::start(engine.address(), &[]).await;
    let client = sidecar.client.clone().with_header(HOLD, "1");
    let mut events = client.stream(CHAT, &chat("hello")).await;
    let held = engine.held().await;
    sidecar.process.terminate();
    sidecar.process.event("not ready any more").await;
    assert_eq!(sidecar.client.get("/healthz").await.status, StatusCode::SERVICE_UNAVAILABLE);
    held.event(&json!(1)).await;
    assert_eq!(events.next().await.as_deref(), Some("1"));
    drop(held);
    assert_eq!(events.next().await, None);
    drop(events);
    assert!(sidecar.process.ended().await.success(), "{}", sidecar.process.log());
}

#[tokio::test]
async fn every_fault_of_the_settings_is_named_at_once() {
    let mut process = Process::start(&[
        "sidecar",
        "--prefill-allow=nonsense",
        "--cert-path=/nowhere",
        "--api-key=secret",
    ]);
    assert!(!process.ended().await.success());
    let log = process.log();
    for part in ["prefill-allow: \"nonsense\"", "cert-path: ", "api-key: "] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
}

#[tokio::test]
async fn the_old_name_starts_a_sidecar_and_says_so() {
    let flags = ["proxy", "--mode=direct", "--http-port=0", "--metrics-port=0", "--engine-port=1"];
    let mut process = Process::start(&flags);
    process.event("`stator proxy --mode direct` is now called `stator sidecar`").await;
    process.event("listening").await;
}
