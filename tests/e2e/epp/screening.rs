//! No engine gets the fields that hand KV over from a client, and no client gets them from an engine,
//! however gateway and picker exchange bodies.

use super::testbed::{Bed, CHAT, Testbed, chat};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::engine::HOLD;
use stator_tests::engine_answers::grpc_frame;
use stator_tests::envoy::BodyMode;
use std::collections::BTreeSet;

/// The fields that a client must not set.
const STEERING: [&str; 4] = ["kv_transfer_params", "bootstrap_room", "rid", "made_up"];

/// A request with these fields, and a prompt of so many bytes.
fn handing_over(prompt: usize) -> Value {
    let mut body = json!({
        "model": "model",
        "messages": [{ "role": "user", "content": "x".repeat(prompt) }],
        "temperature": 0,
    });
    for name in STEERING {
        body[name] = json!({ "remote_host": "10.0.0.1" });
    }
    body
}

async fn bed(mode: BodyMode, flags: &[&str]) -> Option<Testbed> {
    Testbed::with(1, flags, |settings, _| settings.request_body = mode).await
}

/// Bodies of 1 KB, 100 KB and 5 MB, of known and of unknown length, on a path that a parser reads
/// and on one that none does.
async fn check(mode: BodyMode, sizes: &[usize]) {
    let Some(testbed) = bed(mode, &[]).await else { return };
    for &size in sizes {
        for path in [CHAT, "/v1/moderations"] {
            let body = handing_over(size);
            let reply = testbed.client().post(path, &body).await;
            check_arrived(&testbed, reply.status, &body);
            let bytes = serde_json::to_vec(&body).unwrap();
            let pieces = bytes.chunks(size / 3 + 1).map(Bytes::copy_from_slice).collect();
            let reply = testbed.client().post_pieces(path, pieces).await;
            check_arrived(&testbed, reply.status, &body);
        }
    }
    let requests = (sizes.len() * 4) as f64;
    testbed.metric_is("stator_epp_bodies_unscreened_total", 0.0).await;
    testbed.metric_is("stator_epp_fields_removed_total", requests * 4.0).await;
}

fn check_arrived(bed: &impl Bed, status: StatusCode, sent: &Value) {
    assert_eq!(status, StatusCode::OK, "{}", bed.picker().process.log());
    let mut expected = sent.clone();
    STEERING.iter().for_each(|name| drop(expected.as_object_mut().unwrap().remove(*name)));
    let seen = bed.engines()[0].last();
    assert_eq!(seen.json(), expected);
    let length = seen.body.len().to_string();
    assert!(seen.header("content-length").iter().all(|told| *told == length));
}

#[tokio::test]
async fn the_client_hears_which_fields_its_body_lost() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let mut body = chat("model", "hello");
    body["temprature"] = json!(1);
    body["a\u{e9}\r\nb"] = json!(1);
    let reply = testbed.client().post(CHAT, &body).await;
    let named = reply.headers["x-stator-ignored"].to_str().unwrap();
    let named: BTreeSet<_> = named.split(", ").collect();
    assert_eq!(named, BTreeSet::from(["temprature", "a\\u{e9}\\r\\nb"]));
    let reply = testbed.client().post(CHAT, &chat("model", "hello")).await;
    assert!(!reply.headers.contains_key("x-stator-ignored"), "{:?}", reply.headers);
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
    let body = handing_over(10);
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
async fn calls_lose_the_fields_that_steer() {
    let change = |settings: &mut stator_tests::envoy::EnvoySettings| settings.upstream_http2 = true;
    let Some(testbed) = Testbed::with(1, &[], |settings, _| change(settings)).await else { return };
    let client = testbed.client().over_http2();
    let client =
        client.with_header("content-type", "application/grpc").with_header("te", "trailers");
    let own = [&[3 << 3 | 2, 5][..], b"hello"].concat();
    let steering = [&[8 << 3 | 2, 2][..], b"{}"].concat();
    let path = "/vllm.grpc.engine.VllmEngine/Generate";
    let request = grpc_frame(&[&steering[..], &own, &steering].concat());
    let reply = client.send(Method::POST, path, request).await;
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
