//! Media that other engines encode, and KV that is pulled from them.

use super::testbed::{CHAT, PARAMETERS, Sidecar, chat};
use hyper::StatusCode;
use serde_json::json;
use stator_tests::engine::Engine;

#[tokio::test]
async fn media_are_encoded_by_the_engines_that_a_picker_names() {
    let (engine, encoder) = (Engine::start().await, Engine::start().await);
    let sidecar = Sidecar::pair(&engine, encoder.address(), &["--ec-connector=ec-example"]).await;
    let client = sidecar.client.clone();
    let client = client.with_header("x-encoder-hosts-ports", &encoder.address().to_string());
    let image = json!({ "type": "image_url", "image_url": { "url": "http://a/1.png" } });
    let mut body = chat("hello");
    body["messages"][0]["content"] = json!([{ "type": "text", "text": "look" }, image, image]);
    let reply = client.post(CHAT, &body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", sidecar.process.log());
    let asked: Vec<_> = encoder.requests().iter().map(|seen| seen.json()).collect();
    let messages: Vec<_> = asked.iter().map(|request| &request["messages"]).collect();
    assert_eq!(messages, [&json!([{ "role": "user", "content": [image] }])]);
    assert_eq!(asked[0]["max_tokens"], 1);
    assert_eq!(engine.last().json(), body);
    sidecar.counts("stator_direct_media_total", &["outcome=\"encoded\""], 1.0).await;
    sidecar.counts("stator_direct_encode_duration_seconds_count", &[], 1.0).await;

    // One that is lost costs no answer.
    drop(encoder);
    let reply = client.post(CHAT, &body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", sidecar.process.log());
    sidecar.counts("stator_direct_media_total", &[], 2.0).await;
}

#[tokio::test]
async fn kv_is_pulled_from_the_engine_that_a_picker_names() {
    let (engine, peer) = (Engine::start().await, Engine::start().await);
    let flags = ["--connector=offloading", "--p2p-connector-port=5710"];
    let sidecar = Sidecar::pair(&engine, peer.address(), &flags).await;
    for (source, port) in [(peer.address().to_string(), json!(5710)), ("no".into(), json!(null))] {
        let client = sidecar.client.clone().with_header("x-kv-cache-source-host-port", &source);
        let reply = client.post(CHAT, &chat("hello")).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", sidecar.process.log());
        assert_eq!(engine.last().json()[PARAMETERS]["remote_kv_source"]["remote_port"], port);
    }
    sidecar.counts("stator_direct_headers_unused_total", &["x-kv-cache"], 1.0).await;
}
