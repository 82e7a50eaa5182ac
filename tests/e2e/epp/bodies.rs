//! Request bodies reach engines byte for byte, however gateway and picker exchange them.

use super::testbed::{Bed, CHAT, DESTINATION, Testbed};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use stator_tests::envoy::BodyMode;

/// A request that any re-serialisation would change: order of keys, numbers past 2^53, escapes,
/// odd whitespace, a key twice. It has at least `prompt` bytes of prompt.
fn odd_body(model: &str, prompt: usize) -> Vec<u8> {
    let text = "The \\u00e9t\\u00E9, \\/ and 日本. ".repeat(prompt / 34 + 1);
    format!(
        "{{ \"title\" :1,\"seed\":9007199254740993 ,\n\t\"model\":\"{model}\", \"top_p\":1.0e0,\
         \"messages\" : [ {{\"role\":\"user\",\"content\":\"{text}\"}} ]\r\n,\"style\":\
         18446744073709551615,\"title\":2, \"nvext\":{{\"x\":[1,2 ,3]}} }}\n"
    )
    .into_bytes()
}

async fn check(mode: BodyMode) {
    let testbed = Testbed::with(2, &[], |settings, _| {
        (settings.request_body, settings.response_body) = (mode, mode);
    });
    let Some(testbed) = testbed.await else { return };
    check_bodies(&testbed).await;
}

/// Bodies with prompts of 1 KB, 100 KB and 1 MB arrive as they were sent, with their length and in
/// pieces of unknown number.
pub(super) async fn check_bodies(bed: &impl Bed) {
    for size in [1_000, 100_000, 1_000_000] {
        let body = odd_body("model", size);
        let reply = bed.client().send(Method::POST, CHAT, body.clone()).await;
        check_arrived(bed, &reply, &body);
        let pieces = body.chunks(size / 3 + 1).map(Bytes::copy_from_slice).collect();
        let reply = bed.client().post_pieces(CHAT, pieces).await;
        check_arrived(bed, &reply, &body);
    }
}

fn check_arrived(bed: &impl Bed, reply: &stator_tests::http::Reply, body: &[u8]) {
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let engine = bed.engines()[bed.served_by(reply)];
    let seen = engine.last();
    assert!(seen.body == body, "{} bytes became {}", body.len(), seen.body.len());
    assert_eq!(seen.header(DESTINATION), [engine.address().to_string()]);
    let lengths = seen.header("content-length");
    assert!(lengths.iter().all(|length| *length == body.len().to_string()), "{lengths:?}");
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "Hello");
}

#[tokio::test]
async fn in_full_duplex() {
    check(BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn streamed() {
    check(BodyMode::Streamed).await;
}

#[tokio::test]
async fn streamed_at_once() {
    check(BodyMode::StreamedAtOnce).await;
}

#[tokio::test]
async fn buffered() {
    check(BodyMode::Buffered).await;
}

#[tokio::test]
async fn buffered_in_part() {
    check(BodyMode::BufferedPartial).await;
}

#[tokio::test]
async fn unseen() {
    check(BodyMode::None).await;
}

#[tokio::test]
async fn with_the_answers_watched() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else { return };
    let body = odd_body("model", 100_000);
    let reply = testbed.client().send(Method::POST, CHAT, body.clone()).await;
    check_arrived(&testbed, &reply, &body);
}

/// Only the model's name changes in a body, wherever it stands.
async fn check_renamed(mode: BodyMode) {
    let testbed = Testbed::with(1, &[], |settings, _| {
        (settings.request_body, settings.response_body) = (mode, mode);
    });
    let Some(testbed) = testbed.await else { return };
    let client = testbed.client().with_header("x-llm-d-model-name-rewrite", "a-longer-\"name\"");
    for size in [1_000, 100_000, 980_000] {
        let reply = client.send(Method::POST, CHAT, odd_body("model", size)).await;
        let expected = odd_body("a-longer-\\\"name\\\"", size);
        check_arrived(&testbed, &reply, &expected);
        assert_eq!(reply.json()["model"], "model", "the client reads the name that it knows");
    }
}

#[tokio::test]
async fn a_rewrite_changes_only_the_name_in_full_duplex() {
    check_renamed(BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn a_rewrite_changes_only_the_name_of_streamed_bodies() {
    check_renamed(BodyMode::StreamedAtOnce).await;
}

#[tokio::test]
async fn a_rewrite_changes_only_the_name_of_bodies_that_wait_for_the_heads_answer() {
    check_renamed(BodyMode::Streamed).await;
}

#[tokio::test]
async fn a_rewrite_changes_only_the_name_of_buffered_bodies() {
    check_renamed(BodyMode::Buffered).await;
}

#[tokio::test]
async fn a_rewrite_of_a_body_that_nobody_sees_is_counted_and_told() {
    let testbed = Testbed::with(1, &[], |settings, _| settings.request_body = BodyMode::None);
    let Some(testbed) = testbed.await else { return };
    let client = testbed.client().with_header("x-llm-d-model-name-rewrite", "another");
    let body = odd_body("model", 1_000);
    for count in 1..3 {
        let reply = client.send(Method::POST, CHAT, body.clone()).await;
        check_arrived(&testbed, &reply, &body);
        testbed.metric_is("stator_epp_model_rewrites_lost_total", f64::from(count)).await;
    }
    let log = testbed.picker.process.log();
    assert!(log.contains("sends no request body before its head is answered"), "{log}");
}
