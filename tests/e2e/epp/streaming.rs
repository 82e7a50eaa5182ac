//! Answers while they are made: nothing is held back, and an end is an end on both sides.

use super::testbed::{Bed, CHAT, Testbed, chat, until};
use futures::{StreamExt, stream};
use hyper::header::HeaderName;
use hyper::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use stator_tests::engine::{HOLD, HOLD_HEAD};
use stator_tests::envoy::BodyMode;
use stator_tests::http::Reply;

/// Requests that the picker knows to be running.
const RUNNING: &str = "llm_d_epp_request_running";
/// Requests that are booked at engines.
const IN_FLIGHT: &str = "llm_d_epp_inflight_requests";
/// A trailer.
const X_CHECKSUM: HeaderName = HeaderName::from_static("x-checksum");

async fn check_piece_by_piece(flags: &[&str], mode: BodyMode) {
    let testbed = Testbed::with(1, flags, |settings, _| settings.response_body = mode).await;
    let Some(testbed) = testbed else { return };
    check_pieces(&testbed).await;
}

/// Every event reaches the client while the engine still holds the rest.
pub(super) async fn check_pieces(bed: &impl Bed) {
    let mut answer = bed.open().await;
    assert_eq!(answer.response.status(), StatusCode::OK);
    let held = bed.engines()[0].held().await;
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

/// The answer begins when the picker has left: Envoy loses one that begins at that very moment.
#[tokio::test]
async fn an_answer_arrives_that_begins_after_the_picker_left_with_the_request() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=none"]).await else { return };
    let client = testbed.client().with_header(HOLD, HOLD_HEAD);
    let asking = tokio::spawn(async move { client.post(CHAT, &chat("model", "hello")).await });
    let held = testbed.engines[0].held().await;
    let left = async || {
        let active = testbed.envoy().stat("cluster.picker.upstream_rq_active").await;
        (active == 0).then_some(())
    };
    until("the picker's leaving", left).await;
    held.event(&json!({ "n": 7 })).await;
    drop(held);
    let reply = asking.await.expect("it is asked");
    assert_eq!((reply.status, &*reply.body), (StatusCode::OK, &b"data: {\"n\":7}\n\n"[..]));
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let Some(testbed) = Testbed::with_flags(1, &["--response-path=body"]).await else { return };
    check_large_answer(&testbed).await;
}

pub(super) async fn check_large_answer(bed: &impl Bed) {
    let mut answer = bed.open().await;
    let held = bed.engines()[0].held().await;
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
    check_hanging_up(&testbed).await;
}

/// A client hangs up in the middle of its request, before its answer begins, and in the middle of
/// its answer, which the picker watches: nothing of it is left.
pub(super) async fn check_hanging_up(bed: &impl Bed) {
    hang_up_in_the_request(bed).await;
    hang_up_before_the_answer(bed).await;
    hang_up_in_the_answer(bed).await;
}

async fn runs(bed: &impl Bed, requests: f64) {
    bed.metric_is(RUNNING, requests).await;
    bed.metric_is(IN_FLIGHT, requests).await;
}

async fn hang_up_in_the_request(bed: &impl Bed) {
    let envoy = bed.envoy();
    let streams = async || envoy.stat("http.gateway.ext_proc.streams_started").await;
    let (before, seen) = (streams().await, bed.engines()[0].requests().len());
    let mut socket = tokio::net::TcpStream::connect(envoy.address()).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\n{{");
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes()).await.unwrap();
    until("the stream to the picker", async || (streams().await > before).then_some(())).await;
    drop(socket);
    until("its end", async || {
        let active = envoy.stat("cluster.picker.upstream_rq_active").await;
        (active == 0).then_some(())
    })
    .await;
    runs(bed, 0.0).await;
    assert_eq!(bed.engines()[0].requests().len(), seen);
}

async fn hang_up_before_the_answer(bed: &impl Bed) {
    let client = bed.client().with_header(HOLD, HOLD_HEAD);
    let asking = tokio::spawn(async move { client.post(CHAT, &chat("model", "hello")).await });
    let held = bed.engines()[0].held().await;
    runs(bed, 1.0).await;
    asking.abort();
    held.aborted().await;
    runs(bed, 0.0).await;
}

async fn hang_up_in_the_answer(bed: &impl Bed) {
    let mut answer = bed.open().await;
    let held = bed.engines()[0].held().await;
    held.event(&json!({ "n": 0 })).await;
    answer.next().await.unwrap();
    runs(bed, 1.0).await;
    drop(answer);
    held.aborted().await;
    runs(bed, 0.0).await;
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
    check_trailers(&testbed).await;
}

/// Trailers of a request and of its answer pass, where engines speak HTTP/2.
pub(super) async fn check_trailers(bed: &impl Bed) {
    let client = bed.client().over_http2().with_header(HOLD, "1");
    let checksum = |sum: &str| HeaderMap::from_iter([(X_CHECKSUM, sum.parse().unwrap())]);
    let write = async {
        let held = bed.engines()[0].held().await;
        assert_eq!(held.request.json(), chat("model", "hello"));
        assert_eq!(held.request.trailers.get(X_CHECKSUM).unwrap(), "29");
        held.send("body").await;
        held.trailers(checksum("17")).await;
    };
    let request = chat("model", "hello");
    let ask = client.post_with_trailers(CHAT, &request, checksum("29"));
    let (reply, ()) = tokio::join!(ask, write);
    assert_eq!(reply.body, "body");
    assert_eq!(reply.trailers[X_CHECKSUM], "17");
    bed.metric_is(RUNNING, 0.0).await;
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
