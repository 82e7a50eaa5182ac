//! What engines get to see of a request's head.

use super::testbed::{Bed, CHAT, DESTINATION, Testbed, chat};
use hyper::{Method, StatusCode};
use serde_json::json;
use stator_tests::engine::Engine;

/// Headers by which a client could steer pickers, sidecars or engines, if they went through.
const STEERING: [&str; 13] = [
    DESTINATION,
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-stator-worker-id",
    "x-stator-anything",
    "x-override-bootstrap-room",
];

#[tokio::test]
async fn a_request_reaches_the_engine_that_was_picked() {
    let Some(testbed) = Testbed::start(3).await else { return };
    for n in 0..12 {
        let reply = testbed.chat(&format!("prompt {n}")).await;
        assert_eq!(reply.status, StatusCode::OK);
        let engine = &testbed.engines[testbed.served_by(&reply)];
        let picked = engine.address().to_string();
        assert_eq!(engine.last().header(DESTINATION), [picked]);
    }
    let seen: usize = testbed.engines.iter().map(|engine| engine.requests().len()).sum();
    assert_eq!(seen, 12);
}

#[tokio::test]
async fn a_client_cannot_steer() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let outside = Engine::start().await;
    let target = outside.address().to_string();
    let steered = STEERING.iter().fold(testbed.client(), |client, name| {
        // Twice, in case that only one of them goes.
        client.with_header(name, &target).with_header(name, &target)
    });
    let client = steered.with_header("x-tenant", "blue");
    let reply = client.post(CHAT, &chat("model", "hello")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert!(outside.requests().is_empty());

    let seen = testbed.engines[0].last();
    assert_eq!(seen.header(DESTINATION), [testbed.engines[0].address().to_string()]);
    let others = STEERING.iter().filter(|name| **name != DESTINATION);
    let leaked: Vec<_> = others.filter(|name| seen.headers.contains_key(**name)).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
    assert_eq!(seen.header("x-tenant"), ["blue"]);
}

#[tokio::test]
async fn a_clients_body_does_not_steer_engines() {
    let Some(testbed) = Testbed::with_flags(1, &["--pass-fields=lora_path"]).await else { return };
    let mut body = chat("model", "hello");
    body["lora_path"] = json!("adapter");
    body["nvext"] = json!({ "agent_hints": {} });
    for name in ["kv_transfer_params", "bootstrap_host", "bootstrap_room", "priority", "made_up"] {
        let mut body = body.clone();
        body[name] = json!(1);
        let reply = testbed.client().post(CHAT, &body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(name))
        );
    }
    assert!(testbed.engines[0].requests().is_empty());
    let expected = body.clone();
    body["rid"] = json!("a");
    let reply = testbed.client().post(CHAT, &body).await;
    assert_eq!(
        (reply.status, &reply.headers["x-stator-ignored"]),
        (StatusCode::OK, &"rid".parse().unwrap())
    );
    assert_eq!(testbed.engines[0].last().json(), expected);
    let removed = testbed.picker.metric("stator_epp_fields_removed_total").await;
    assert_eq!(removed, 1.0);
}

#[tokio::test]
async fn the_prompts_of_two_tenants_share_no_prefix() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let salt = async |tenant: &str| {
        let client = testbed.client().with_header("x-tenant-id", tenant);
        let reply = client.post(CHAT, &chat("model", "hello")).await;
        assert_eq!(reply.status, StatusCode::OK);
        let seen = testbed.engines[0].last();
        assert_eq!(seen.header("x-tenant-id"), [tenant]);
        seen.json()["cache_salt"].as_str().expect("a salt").to_owned()
    };
    // The salt of a proxy without keys and secret.
    assert_eq!(salt("blue").await, "5d6e2809f8d9cf6fe3a0f9af5b53765e");
    assert_ne!(salt("red").await, salt("blue").await);
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
    assert_eq!(testbed.engines[0].last().json().get("cache_salt"), None);
}

#[tokio::test]
async fn a_request_keeps_its_headers_and_its_identity() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let client = testbed.client().with_header("x-request-id", "mine");
    let client = client.with_header("x-tag", "a").with_header("x-tag", "b");
    client.post(CHAT, &chat("model", "hello")).await;
    let seen = testbed.engines[0].last();
    // Envoy itself may take the place of a client's identity, and then it is what goes on.
    assert_eq!(seen.header("x-request-id").len(), 1);
    assert_eq!(seen.header("x-tag"), ["a", "b"]);
    assert_eq!(seen.header("host"), ["test"]);
}

#[tokio::test]
async fn requests_without_a_body_are_routed_too() {
    let Some(testbed) = Testbed::start(2).await else { return };
    for method in [Method::GET, Method::POST, Method::DELETE] {
        let reply = testbed.client().send(method.clone(), "/v1/models?limit=1", "").await;
        assert_eq!(reply.status, StatusCode::OK);
        let seen = testbed.engines[testbed.served_by(&reply)].last();
        assert_eq!((seen.method.clone(), seen.path.as_str()), (method, "/v1/models?limit=1"));
        assert_eq!(seen.body, "");
    }
}

#[tokio::test]
async fn an_answer_keeps_its_headers() {
    for part in ["auto", "headers", "body"] {
        let flag = format!("--response-path={part}");
        let Some(testbed) = Testbed::with_flags(1, &[&flag]).await else { return };
        let reply = testbed.chat("hello").await;
        let cookies: Vec<_> = reply.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"], "{part}");
        let own = reply.headers.keys().filter(|name| name.as_str().starts_with("x-stator-"));
        assert_eq!(own.count(), 0);
    }
}
