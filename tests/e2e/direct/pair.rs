//! Prompts computed by one engine and answered by another, over NIXL's protocol.

use super::testbed::{CHAT, PARAMETERS, PREFILLER, Sidecar, chat};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::{Engine, HOLD, SERVED_BY};

#[tokio::test]
async fn the_engine_goes_on_from_what_another_one_computed() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let sidecar = Sidecar::pair(&engine, prefiller.address(), &[]).await;
    let client = sidecar.client_of(prefiller.address()).with_header("x-request-id", "mine");
    let reply = client.post(CHAT, &chat("hello")).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", sidecar.process.log());
    assert_eq!(reply.headers[SERVED_BY], engine.address().to_string());

    let asked = prefiller.last();
    assert_eq!(asked.json()["max_tokens"], 1);
    assert_eq!(asked.json()[PARAMETERS]["do_remote_decode"], true);
    let told = engine.last();
    assert_eq!(told.json()["max_tokens"], 9);
    assert_eq!(told.json()[PARAMETERS]["remote_engine_id"], "simulated");
    for seen in [&asked, &told] {
        assert_eq!(seen.header("x-request-id"), ["mine"]);
        assert!(!seen.headers.contains_key(PREFILLER));
    }
    let labels = ["connector=\"nixlv2\"", "way=\"handed_over\"", "status=\"200\""];
    sidecar.counts("stator_direct_requests_total", &labels, 1.0).await;
    sidecar.counts("stator_direct_prefill_duration_seconds_count", &[], 1.0).await;
}

#[tokio::test]
async fn a_lost_engine_of_prompts_costs_no_answer() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let gone = prefiller.address();
    let sidecar = Sidecar::pair(&engine, gone, &[]).await;
    drop(prefiller);
    let reply = sidecar.client_of(gone).post(CHAT, &chat("hello")).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", sidecar.process.log());
    assert_eq!(engine.last().json(), chat("hello"));
    sidecar.counts("stator_direct_fallbacks_total", &["prefill_"], 1.0).await;
}

#[tokio::test]
async fn only_engines_of_the_list_are_asked() {
    let (engine, outside) = (Engine::start().await, Engine::start().await);
    let sidecar = Sidecar::start(engine.address(), &[]).await;
    let client = sidecar.client_of(outside.address());
    let reply = client.post(CHAT, &chat("hello")).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert!(engine.requests().is_empty() && outside.requests().is_empty());
}

#[tokio::test]
async fn a_client_cannot_hand_over() {
    let engine = Engine::start().await;
    let sidecar = Sidecar::start(engine.address(), &[]).await;
    for (name, value) in
        [(PARAMETERS, json!({ "do_remote_prefill": true })), ("bootstrap_room", json!(1))]
    {
        let mut body = chat("kv_transfer_params");
        body[name] = value;
        let reply = sidecar.client.post(CHAT, &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert_eq!(reply.json()["error"]["param"], name);
    }
    assert!(engine.requests().is_empty());
    let mut body = chat("kv_transfer_params");
    body["rid"] = json!("another's");
    let reply = sidecar.client.post(CHAT, &body).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.headers["x-stator-ignored"], "rid");
    assert_eq!(engine.last().json(), chat("kv_transfer_params"));
    sidecar.counts("stator_direct_bodies_stripped_total", &[], 1.0).await;
}

#[tokio::test]
async fn events_come_as_they_are_made_and_stop_when_nobody_reads() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let sidecar = Sidecar::pair(&engine, prefiller.address(), &[]).await;
    // Not sent to the prefill engine, which would be held too: the engine alone streams.
    let client = sidecar.client.clone().with_header(HOLD, "1");
    let mut events = client.stream(CHAT, &chat("hello")).await;
    let held = engine.held().await;
    for n in 0..3 {
        held.event(&json!({ "n": n })).await;
        assert_eq!(events.next().await, Some(json!({ "n": n }).to_string()));
    }
    drop(events);
    held.aborted().await;
}
