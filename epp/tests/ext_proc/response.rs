//! The answer phase in full duplex.

use super::director::{Log, ReplyBody, Script};
use super::plane::*;
use super::show::routed;
use stator_epp::exchange::Interest;

fn script(interest: Interest, reply_body: ReplyBody) -> (Script, Log) {
    let (mut script, log) = Script::new();
    (script.interest, script.reply_body) = (interest, reply_body);
    (script, log)
}

/// A stream whose request phase is over.
async fn routed_stream(script: (Script, Log)) -> (Served, Stream) {
    let (mut served, mut stream) = plane(script).await;
    stream.send([post(), request_body("{}", true)]);
    stream.expect(&[&routed(2), "request_body \"{}\"."]).await;
    assert_eq!(served.logged().await, "POST /v1/completions {}");
    (served, stream)
}

const LAST: &str = "meta(envoy.lb x-gateway-inference-request-cost=7)";

#[tokio::test]
async fn a_streamed_answer_passes_chunk_for_chunk() {
    let (mut served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Pass)).await;
    stream.send([response_headers(
        &[(":status", "200"), ("content-type", "text/event-stream")],
        false,
    )]);
    stream.expect(&["response_headers"]).await;
    assert_eq!(served.logged().await, "200 content-type from unknown");
    stream.send([response_body("data: {}\n\n", false)]);
    stream.expect(&["response_body \"data: {}\\n\\n\""]).await;
    stream.send([response_body("data: [DONE]\n\n", false), response_body("", true)]);
    stream
        .expect(&["response_body \"data: [DONE]\\n\\n\"", &format!("response_body \"\". {LAST}")])
        .await;
    assert_eq!(served.logged().await, "complete");
    stream.ends("OK").await;
}

#[tokio::test]
async fn an_answer_can_be_held_until_it_is_complete() {
    let (_served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Hold)).await;
    stream.send([ok(), response_body("{\"a\":", false), response_body("1}", true)]);
    stream
        .expect(&["response_headers", &format!("response_body \"{{\\\"a\\\":1}}\". {LAST}")])
        .await;
    stream.ends("OK").await;
}

#[tokio::test]
async fn an_answer_that_is_no_json_passes() {
    let (_served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Pass)).await;
    stream.send([ok(), response_body("no healthy upstream", true)]);
    stream
        .expect(&["response_headers", &format!("response_body \"no healthy upstream\". {LAST}")])
        .await;
}

#[tokio::test]
async fn a_changed_answer_is_cut_into_chunks() {
    let (_served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Shout)).await;
    stream.send([ok(), response_body("y".repeat(70_000), false), response_body("z", true)]);
    let last = format!("response_body \"Z\". {LAST}");
    stream
        .expect(&["response_headers", "response_body 62000x'Y'", "response_body 8000x'Y'", &last])
        .await;
}

#[tokio::test]
async fn trailers_end_an_answer_whose_body_did_not() {
    let (mut served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Hold)).await;
    stream.send([ok(), response_body("frame", false), response_trailers()]);
    let last = format!("response_trailers {LAST}");
    stream.expect(&["response_headers", "response_body \"frame\"", &last]).await;
    served.logged().await;
    assert_eq!(served.logged().await, "complete");
    stream.ends("OK").await;
}

#[tokio::test]
async fn an_answer_can_be_a_head_alone() {
    let (mut served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Pass)).await;
    stream.send([response_headers(&[(":status", "204")], true)]);
    stream.expect(&[&format!("response_headers {LAST}")]).await;
    assert_eq!(served.logged().await, "204  from unknown");
    stream.ends("OK").await;
}

#[tokio::test]
async fn only_changed_headers_are_set() {
    let (mut script, log) = script(Interest::Headers, ReplyBody::Pass);
    script.reply_set = vec![("x-went-into-resp-headers", "true".to_owned())];
    let (_served, mut stream) = routed_stream((script, log)).await;
    // Two of a name: setting them again would make them one.
    stream.send([response_headers(
        &[(":status", "200"), ("set-cookie", "a"), ("set-cookie", "b")],
        false,
    )]);
    stream.expect(&["response_headers set(x-went-into-resp-headers=true)"]).await;
    stream.ends("OK").await;
}

#[tokio::test]
async fn the_endpoint_that_served_is_told_from_the_metadata() {
    let served_key = ("envoy.lb", "x-gateway-destination-endpoint-served");
    let (mut served, mut stream) = routed_stream(script(Interest::Headers, ReplyBody::Pass)).await;
    stream.send([with_metadata(ok(), served_key, text("10.0.0.3:8000"))]);
    assert_eq!(served.logged().await, "200 content-type from 10.0.0.3:8000");
}

#[tokio::test]
async fn both_forms_of_a_status_are_understood() {
    for raw in [true, false] {
        let (mut served, mut stream) =
            routed_stream(script(Interest::Headers, ReplyBody::Pass)).await;
        let head = response_headers(&[(":status", "503"), ("Content-Type", "text/plain")], false);
        stream.send([if raw { head } else { in_value(head) }]);
        assert_eq!(served.logged().await, "503 content-type from unknown");
    }
}

#[tokio::test]
async fn an_answer_without_a_request_is_followed_to_its_end() {
    // Also by one who would leave with the request.
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([ok(), response_body("data: {}\n\n", false), response_body("", true)]);
    let pieces = ["response_headers", "response_body \"data: {}\\n\\n\""];
    stream.expect(&pieces).await;
    stream.expect(&[format!("response_body \"\". {LAST}")]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "200 content-type from unknown");
    assert_eq!(served.logged().await, "complete");
}

#[tokio::test]
async fn an_answer_may_come_without_its_head() {
    let (mut served, mut stream) = routed_stream(script(Interest::Body, ReplyBody::Pass)).await;
    stream.send([response_body("abc", true)]);
    stream.expect(&[&format!("response_body \"abc\". {LAST}")]).await;
    assert_eq!(served.logged().await, "complete");
}
