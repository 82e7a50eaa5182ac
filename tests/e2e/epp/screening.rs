//! No client says how KV is handed over, and none hears it from an engine, however gateway and picker
//! exchange bodies.

use super::testbed::{Bed, CHAT, Testbed, chat};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::engine::HOLD;
use stator_tests::engine_answers::grpc_frame;
use stator_tests::envoy::BodyMode;
use stator_tests::http::Reply;
use std::collections::BTreeSet;

/// Fields that change nothing: an answer names them.
const NAMED: [&str; 2] = ["rid", "made_up"];
const IGNORE: &str = "--unknown-fields=ignore";

/// A request with these fields, and a prompt of so many bytes.
fn request(fields: &[&str], prompt: usize) -> Value {
    let mut body = json!({
        "model": "model",
        "messages": [{ "role": "user", "content": "x".repeat(prompt) }],
        "temperature": 0,
    });
    for name in fields {
        body[*name] = json!({ "remote_host": "10.0.0.1" });
    }
    body
}

async fn bed(mode: BodyMode, flags: &[&str]) -> Option<Testbed> {
    Testbed::with(1, flags, |settings, _| settings.request_body = mode).await
}

/// Bodies of 1 KB, 100 KB and 5 MB, of known and of unknown length, on a path that a parser reads
/// and on one that none does.
async fn check(mode: BodyMode, sizes: &[usize]) {
    let Some(testbed) = bed(mode, &[IGNORE]).await else { return };
    for &size in sizes {
        for path in [CHAT, "/v1/moderations"] {
            let body = request(&NAMED, size);
            let steers = request(&["kv_transfer_params"], size);
            for reply in both_ways(&testbed, path, &body, size).await {
                check_arrived(&testbed, &reply, &body);
            }
            let arrived = testbed.engines[0].requests().len();
            for reply in both_ways(&testbed, path, &steers, size).await {
                check_refused(&reply, "kv_transfer_params");
            }
            assert_eq!(testbed.engines[0].requests().len(), arrived);
        }
    }
    let requests = (sizes.len() * 4) as f64;
    testbed.metric_is("stator_epp_bodies_unscreened_total", 0.0).await;
    testbed.metric_is("stator_epp_fields_removed_total", requests * 2.0).await;
}

/// The answers to a body of known and of unknown length.
async fn both_ways(testbed: &Testbed, path: &str, body: &Value, size: usize) -> [Reply; 2] {
    let whole = testbed.client().post(path, body).await;
    let bytes = serde_json::to_vec(body).unwrap();
    let pieces = bytes.chunks(size / 3 + 1).map(Bytes::copy_from_slice).collect();
    [whole, testbed.client().post_pieces(path, pieces).await]
}

fn check_arrived(bed: &impl Bed, reply: &Reply, sent: &Value) {
    assert_eq!(reply.status, StatusCode::OK, "{}", bed.picker().process.log());
    let mut expected = sent.clone();
    NAMED.iter().for_each(|name| drop(expected.as_object_mut().unwrap().remove(*name)));
    let seen = bed.engines()[0].last();
    assert_eq!(seen.json(), expected);
    let length = seen.body.len().to_string();
    assert!(seen.header("content-length").iter().all(|told| *told == length));
}

/// A refusal as proxy and sidecar write it.
fn check_refused(reply: &Reply, field: &str) {
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{:?}", reply.body);
    let error = &reply.json()["error"];
    assert_eq!(error["param"], field);
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with(field)), "{error}");
}

#[tokio::test]
async fn the_client_hears_which_fields_changed_nothing_and_which_are_refused() {
    let Some(testbed) = Testbed::with_flags(1, &[IGNORE]).await else { return };
    let mut body = chat("model", "hello");
    body["temprature"] = json!(1);
    body["a\u{e9}\r\nb"] = json!(1);
    let client = testbed.client().with_header("x-worker-instance-id", "7");
    let reply = client.post(CHAT, &body).await;
    let named = reply.headers["x-stator-ignored"].to_str().unwrap();
    let named: BTreeSet<_> = named.split(", ").collect();
    let expected = ["temprature", "a\\u{e9}\\r\\nb", "x-worker-instance-id"];
    assert_eq!(named, BTreeSet::from(expected));
    let reply = testbed.client().post(CHAT, &chat("model", "hello")).await;
    assert!(!reply.headers.contains_key("x-stator-ignored"), "{:?}", reply.headers);

    let Some(testbed) = Testbed::start(1).await else { return };
    let mut body = chat("model", "hello");
    body["temprature"] = json!(1);
    check_refused(&testbed.client().post(CHAT, &body).await, "temprature");
    assert!(testbed.engines[0].requests().is_empty());
}

#[tokio::test]
async fn in_full_duplex() {
    check(BodyMode::FullDuplex, &[1_000, 100_000, 5_000_000]).await;
}

#[tokio::test]
async fn streamed() {
    check(BodyMode::Streamed, &[1_000, 100_000, 5_000_000]).await;
}

#[tokio::test]
async fn streamed_at_once() {
    check(BodyMode::StreamedAtOnce, &[1_000, 100_000, 5_000_000]).await;
}

#[tokio::test]
async fn buffered() {
    check(BodyMode::Buffered, &[1_000, 100_000]).await;
}

#[tokio::test]
async fn a_late_body_that_nobody_can_read_is_refused() {
    let Some(testbed) = bed(BodyMode::Streamed, &[]).await else { return };
    let body = Bytes::from_static(b"{\"model\":\"model\",\"rid\":NaN}");
    let reply = testbed.client().send(Method::POST, CHAT, body).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(testbed.engines[0].requests().is_empty());
}

#[tokio::test]
async fn what_the_gateway_keeps_to_itself_is_counted_and_told_or_refused() {
    let Some(testbed) = bed(BodyMode::None, &[]).await else { return };
    let body = request(&["kv_transfer_params", "made_up"], 10);
    assert_eq!(testbed.client().post(CHAT, &body).await.status, StatusCode::OK);
    assert_eq!(testbed.engines[0].last().json(), body);
    testbed.metric_is("stator_epp_bodies_unscreened_total", 1.0).await;
    let log = testbed.picker.process.log();
    assert!(log.contains("reach engines with every field that their clients set"), "{log}");

    let Some(testbed) = bed(BodyMode::None, &["--refuse-unscreened"]).await else { return };
    assert_eq!(testbed.client().post(CHAT, &body).await.status, StatusCode::FORBIDDEN);
    assert!(testbed.engines[0].requests().is_empty());
    let reply = testbed.client().send(Method::GET, "/v1/models", Bytes::new()).await;
    assert_ne!(reply.status, StatusCode::FORBIDDEN, "there is no body to screen");
}

#[tokio::test]
async fn calls_may_not_steer() {
    let change = |settings: &mut stator_tests::envoy::EnvoySettings| settings.upstream_http2 = true;
    let Some(testbed) = Testbed::with(1, &[], |settings, _| change(settings)).await else { return };
    let client = testbed.client().over_http2();
    let client =
        client.with_header("content-type", "application/grpc").with_header("te", "trailers");
    let own = [&[3 << 3 | 2, 5][..], b"hello"].concat();
    let steering = [&[8 << 3 | 2, 2][..], b"{}"].concat();
    let path = "/vllm.grpc.engine.VllmEngine/Generate";
    let call = grpc_frame(&[&steering[..], &own, &steering].concat());
    let refused = client.send(Method::POST, path, call).await;
    let message = refused.headers.get("grpc-message").or(refused.trailers.get("grpc-message"));
    let message = message.and_then(|message| message.to_str().ok()).expect("a reason");
    assert!(message.contains("kv_transfer_params"), "{message}");
    assert!(testbed.engines[0].requests().is_empty());
    // A field with a number that nobody knows.
    let strange = [&own[..], &[15 << 3, 1]].concat();
    let reply = client.send(Method::POST, path, grpc_frame(&strange)).await;
    assert_eq!(reply.trailers["grpc-status"], "0", "{}", testbed.picker.process.log());
    assert_eq!(testbed.engines[0].last().body, grpc_frame(&own));
}

/// An engine's events lose the fields by which engines find each other, piece by piece.
async fn check_answers(mode: BodyMode) {
    let flags = ["--response-path=body"];
    let testbed = Testbed::with(1, &flags, |settings, _| settings.response_body = mode).await;
    let Some(testbed) = testbed else { return };
    let client = testbed.client().with_header(HOLD, "1");
    let write = async {
        let held = testbed.engines[0].held().await;
        held.send("data: {\"n\":1,\"kv_transfer_params\":{\"remote_host\":\"h\"}}\n\n").await;
        held.send("data: {\"n\":2,\"bootstrap_").await;
        held.send("room\":7}\n\ndata: [DONE]\n\n").await;
    };
    let request = chat("model", "hello");
    let (reply, ()) = tokio::join!(client.post(CHAT, &request), write);
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let events: Vec<&str> =
        text.split("\n\n").filter_map(|event| event.strip_prefix("data:")).collect();
    let json = |event: &str| serde_json::from_str::<Value>(event).expect("it is sound");
    assert_eq!([json(events[0]), json(events[1])], [json!({ "n": 1 }), json!({ "n": 2 })]);
    assert_eq!((events.len(), events[2].trim()), (3, "[DONE]"));
}

#[tokio::test]
async fn answers_are_cleaned_in_full_duplex() {
    check_answers(BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn streamed_answers_are_cleaned() {
    check_answers(BodyMode::Streamed).await;
}

#[tokio::test]
async fn buffered_answers_are_cleaned() {
    check_answers(BodyMode::Buffered).await;
}
