//! Answers while they are made: nothing is held back, and an end is an end on both sides.

use super::testbed::{CHAT, Testbed, chat};
use futures::{StreamExt, stream};
use hyper::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use stator_tests::engine::HOLD;
use stator_tests::envoy::BodyMode;
use stator_tests::http::Reply;

/// Requests that the picker knows to be running.
const RUNNING: &str = "llm_d_epp_request_running";
/// Requests that are booked at engines.
const IN_FLIGHT: &str = "llm_d_epp_inflight_requests";

/// Every event reaches the client while the engine still holds the rest.
async fn check_piece_by_piece(flags: &[&str], mode: BodyMode) {
    let testbed = Testbed::with(1, flags, |settings, _| settings.response_body = mode).await;
    let Some(testbed) = testbed else { return };
    let mut answer = testbed.open().await;
    assert_eq!(answer.response.status(), StatusCode::OK);
    let held = testbed.engines[0].held().await;
    for n in 0..5 {
        held.event(&json!({ "n": n })).await;
        assert_eq!(answer.next().await.unwrap(), format!("{{\"n\":{n}}}"));
    }
    held.send("data: [DONE]\n\n").await;
    drop(held);
    assert_eq!(answer.end().await.unwrap(), "data: [DONE]\n\n");
}

#[tokio::test]
async fn answers_that_nobody_watches_come_piece_by_piece() {
    check_piece_by_piece(&[], BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn answers_that_are_watched_come_piece_by_piece() {
    check_piece_by_piece(&["--response-path=body"], BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn answers_whose_heads_are_watched_come_piece_by_piece() {
    check_piece_by_piece(&["--response-path=headers"], BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn streamed_answers_come_piece_by_piece() {
    check_piece_by_piece(&["--response-path=body"], BodyMode::Streamed).await;
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else { return };
    let mut answer = testbed.open().await;
    let held = testbed.engines[0].held().await;
    let piece = (0..=255).cycle().take(100_003).collect::<Vec<u8>>();
    let write = async {
        for _ in 0..50 {
            held.send(piece.clone()).await;
        }
        drop(held);
    };
    let ((), read) = tokio::join!(write, answer.end());
    assert!(read.unwrap() == piece.repeat(50));
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_its_engine_and_its_place() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else { return };
    let mut answer = testbed.open().await;
    let held = testbed.engines[0].held().await;
    held.event(&json!({ "n": 0 })).await;
    answer.next().await.unwrap();
    assert_eq!(testbed.picker.metric(RUNNING).await, 1.0);
    assert_eq!(testbed.picker.metric(IN_FLIGHT).await, 1.0);
    drop(answer);
    held.aborted().await;
    testbed.metric_is(RUNNING, 0.0).await;
    testbed.metric_is(IN_FLIGHT, 0.0).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_in_the_middle_of_its_request_leaves_nothing() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else { return };
    let envoy = testbed.envoy.address();
    let mut socket = tokio::net::TcpStream::connect(envoy).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\n{{");
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes()).await.unwrap();
    super::testbed::until("the stream to the picker", async || {
        let streams = testbed.envoy.stat("http.gateway.ext_proc.streams_started").await;
        (streams == 1).then_some(())
    })
    .await;
    drop(socket);
    super::testbed::until("its end", async || {
        let active = testbed.envoy.stat("cluster.picker.upstream_rq_active").await;
        (active == 0).then_some(())
    })
    .await;
    testbed.metric_is(RUNNING, 0.0).await;
    testbed.metric_is(IN_FLIGHT, 0.0).await;
    assert!(testbed.engines[0].requests().is_empty());
}

#[tokio::test]
async fn an_engine_that_dies_breaks_its_answers_off() {
    let Some(mut testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else {
        return;
    };
    let mut answer = testbed.open().await;
    let engine = testbed.engines.remove(0);
    let held = engine.held().await;
    held.event(&json!({ "n": 0 })).await;
    answer.next().await.unwrap();
    drop(engine);
    answer.end().await.expect_err("the answer was not complete");
    testbed.metric_is(RUNNING, 0.0).await;
    testbed.metric_is(IN_FLIGHT, 0.0).await;
}

#[tokio::test]
async fn trailers_pass() {
    let flags = ["--response-path=body"];
    let testbed = Testbed::with(1, &flags, |settings, _| settings.upstream_http2 = true).await;
    let Some(testbed) = testbed else { return };
    let client = testbed.client().over_http2().with_header(HOLD, "1");
    let write = async {
        let held = testbed.engines[0].held().await;
        held.send("body").await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", "17".parse().unwrap());
        held.trailers(trailers).await;
    };
    let request = chat("model", "hello");
    let (reply, ()) = tokio::join!(client.post(CHAT, &request), write);
    assert_eq!(reply.body, "body");
    assert_eq!(reply.trailers["x-checksum"], "17");
    testbed.metric_is(RUNNING, 0.0).await;
}

#[tokio::test]
async fn usage_is_counted_where_answers_are_watched() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else { return };
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
    testbed.metric_is("llm_d_epp_request_input_tokens_sum", 7.0).await;
    testbed.metric_is("llm_d_epp_request_output_tokens_sum", 1.0).await;
    testbed.metric_is("llm_d_epp_request_total", 1.0).await;
}

/// Answers that engines give at once arrive whole, whenever the picker lets go of them.
async fn check_whole(flags: &[&str], mode: BodyMode) {
    let testbed = Testbed::with(1, flags, |settings, _| settings.response_body = mode).await;
    let Some(testbed) = testbed else { return };
    let client = testbed.client();
    let replies: Vec<_> = stream::iter(0..200)
        .map(|n| {
            let client = client.clone();
            async move { client.post(CHAT, &chat("model", &format!("prompt {n}"))).await }
        })
        .buffer_unordered(8)
        .collect()
        .await;
    let is_whole = |reply: &&Reply| {
        let json = serde_json::from_slice::<Value>(&reply.body).unwrap_or_default();
        reply.status == StatusCode::OK && json["model"] == "model"
    };
    let whole = replies.iter().filter(is_whole).count();
    assert_eq!(whole, replies.len());
}

#[tokio::test]
async fn answers_that_nobody_watches_are_whole() {
    check_whole(&[], BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn answers_whose_heads_are_watched_are_whole() {
    check_whole(&["--response-path=headers"], BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn answers_that_are_watched_are_whole() {
    check_whole(&["--response-path=body"], BodyMode::FullDuplex).await;
}

#[tokio::test]
async fn answers_in_streamed_mode_are_whole() {
    check_whole(&[], BodyMode::Streamed).await;
    check_whole(&["--response-path=headers"], BodyMode::Streamed).await;
}

#[tokio::test]
async fn answers_in_buffered_mode_are_whole() {
    check_whole(&[], BodyMode::Buffered).await;
}

#[tokio::test]
async fn answers_whose_bodies_the_gateway_keeps_are_whole() {
    check_whole(&[], BodyMode::None).await;
    check_whole(&["--response-path=headers"], BodyMode::None).await;
}
