//! Data planes that are not in full duplex.

use super::director::{Log, ReplyBody, Script};
use super::plane::*;
use super::show::ROUTED;
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::ExtProcSettings;

const NONE: i32 = 0;
const STREAMED: i32 = 1;
const BUFFERED: i32 = 2;
const PARTIAL: i32 = 3;
const FULL_DUPLEX: i32 = 4;

fn script(interest: Interest, reply_body: ReplyBody) -> (Script, Log) {
    let (mut script, log) = Script::new();
    (script.interest, script.reply_body) = (interest, reply_body);
    (script, log)
}

/// The decision on a message of the body.
fn on_body() -> String {
    ROUTED.replacen("request_headers", "request_body", 1)
}

fn changing(body: &'static str) -> (Script, Log) {
    let (mut script, log) = Script::new();
    script.body = Some(body);
    (script, log)
}

#[tokio::test]
async fn buffered_the_head_passes_and_the_body_brings_the_decision() {
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([with_modes(post(), (BUFFERED, NONE, false))]);
    stream.expect(&["request_headers"]).await;
    stream.send([request_body("{}", true)]);
    stream.expect(&[&on_body()]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "POST /v1/completions {}");
}

#[tokio::test]
async fn buffered_a_changed_body_comes_with_its_length() {
    let (_served, mut stream) = plane(changing("{\"a\":1}")).await;
    stream.send([with_modes(post(), (BUFFERED, NONE, false))]);
    stream.expect(&["request_headers"]).await;
    stream.send([request_body("{}", true)]);
    let head = on_body().replacen("8000)", "8000 content-length=7)", 1);
    let (change, metadata) = head.split_once(" meta").expect("there is metadata");
    stream.expect(&[&format!("{change} replace \"{{\\\"a\\\":1}}\" meta{metadata}")]).await;
}

#[tokio::test]
async fn buffered_trailers_follow_the_body() {
    let (_served, mut stream) = plane(script(Interest::Body, ReplyBody::Pass)).await;
    stream.send([with_modes(post(), (BUFFERED, BUFFERED, false))]);
    stream.expect(&["request_headers"]).await;
    stream.send([request_body("{}", false)]);
    stream.expect(&[&on_body()]).await;
    stream.send([request_trailers()]);
    stream.expect(&["request_trailers"]).await;
    stream.send([ok()]);
    stream.expect(&["response_headers"]).await;
}

#[tokio::test]
async fn buffered_without_a_body_only_the_metadata_can_tell() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([with_modes(post(), (BUFFERED, NONE, false)), request_trailers()]);
    let metadata = "meta(envoy.lb x-gateway-destination-endpoint=10.0.0.2:8000)";
    stream.expect(&["request_headers", &format!("request_trailers {metadata}")]).await;
}

#[tokio::test]
async fn buffered_in_part_what_is_whole_decides() {
    for (length, end, seen) in [("2", false, " {}"), ("9", true, " {}"), ("9", false, "")] {
        let (mut served, mut stream) = plane(changing("changed")).await;
        let head = request_headers(&[(":path", "/"), ("content-length", length)], false);
        stream.send([with_modes(head, (PARTIAL, NONE, false)), request_body("{}", end)]);
        assert_eq!(served.logged().await, format!(" /{seen}"));
        stream.expect(&["request_headers"]).await;
        let answer = super::show::show(&stream.answer().await);
        assert_eq!(answer.contains("replace"), !seen.is_empty(), "{answer}");
        stream.ends("OK").await;
    }
}

#[tokio::test]
async fn none_the_head_decides() {
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([with_modes(post(), (NONE, NONE, false))]);
    stream.expect(&[ROUTED]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "POST /v1/completions");
}

#[tokio::test]
async fn streamed_a_body_that_waits_is_not_waited_for() {
    let (mut served, mut stream) = plane(script(Interest::Headers, ReplyBody::Pass)).await;
    stream.send([with_modes(post(), (STREAMED, NONE, false))]);
    stream.expect(&[ROUTED]).await;
    stream.send([request_body("{", false)]);
    stream.expect(&["request_body"]).await;
    stream.send([request_body("}", true)]);
    stream.expect(&["request_body"]).await;
    stream.send([ok()]);
    stream.expect(&["response_headers"]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "POST /v1/completions");
}

/// A director that changes bodies that come after the decision to `{"a":1}`.
fn amending() -> (Script, Log) {
    let (mut script, log) = script(Interest::Body, ReplyBody::Pass);
    script.late_body = Some("{\"a\":1}");
    (script, log)
}

/// The decision on a head whose body may change later.
fn on_late_head() -> String {
    ROUTED.replacen(" strip", " strip +content-length", 1)
}

#[tokio::test]
async fn streamed_a_body_that_waits_is_held_back_and_changed() {
    let (mut served, mut stream) = plane(amending()).await;
    stream.send([with_modes(post(), (STREAMED, STREAMED, false))]);
    stream.expect(&[on_late_head()]).await;
    for piece in ["{", "\"b\":"] {
        stream.send([request_body(piece, false)]);
        stream.expect(&["request_body clear"]).await;
    }
    stream.send([request_body("2}", true)]);
    stream.expect(&["request_body replace \"{\\\"a\\\":1}\""]).await;
    assert_eq!(served.logged().await, "POST /v1/completions");
    assert_eq!(served.logged().await, "late {\"b\":2}");
    stream.send([ok()]);
    stream.expect(&["response_headers"]).await;
}

#[tokio::test]
async fn streamed_a_body_of_known_length_ends_with_its_last_byte() {
    let (_served, mut stream) = plane(amending()).await;
    let head = request_headers(&[("content-length", "2")], false);
    stream.send([with_modes(head, (STREAMED, STREAMED, false))]);
    stream.expect(&[on_late_head()]).await;
    stream.send([request_body("{", false)]);
    stream.expect(&["request_body clear"]).await;
    stream.send([request_body("}", false), request_trailers()]);
    stream.expect(&["request_body replace \"{\\\"a\\\":1}\"", "request_trailers"]).await;
}

#[tokio::test]
async fn streamed_a_late_body_that_finds_no_room_is_refused() {
    let settings = ExtProcSettings { max_body_bytes: 3, ..ExtProcSettings::default() };
    let (_served, mut stream) = plane_with(amending(), settings).await;
    stream.send([with_modes(post(), (STREAMED, STREAMED, false))]);
    stream.expect(&[on_late_head()]).await;
    stream.send([request_body("ab", false)]);
    stream.expect(&["request_body clear"]).await;
    stream.send([request_body("cd", false)]);
    let refused = super::show::show(&stream.answer().await);
    assert!(refused.contains("413"), "{refused}");
    stream.ends("OK").await;
}

#[tokio::test]
async fn streamed_a_body_that_outgrows_the_wait_is_held_back_and_changed() {
    let settings = ExtProcSettings { max_streamed_bytes: 3, ..ExtProcSettings::default() };
    let (mut served, mut stream) = plane_with(amending(), settings).await;
    stream.send([with_modes(post(), (STREAMED, STREAMED, true))]);
    stream.send([request_body("{\"b\"", false)]);
    stream.expect(&[on_late_head(), "request_body clear".to_owned()]).await;
    stream.send([request_body(":2", false)]);
    stream.expect(&["request_body clear"]).await;
    stream.send([request_body("}", true)]);
    stream.expect(&["request_body replace \"{\\\"a\\\":1}\""]).await;
    assert_eq!(served.logged().await, "POST /v1/completions");
    assert_eq!(served.logged().await, "late {\"b\":2}");
}

#[tokio::test]
async fn streamed_a_late_body_is_never_lost_to_trailers() {
    let (_served, mut stream) = plane(amending()).await;
    stream.send([with_modes(post(), (STREAMED, STREAMED, false))]);
    stream.expect(&[on_late_head()]).await;
    stream.send([request_body("{}", false)]);
    stream.expect(&["request_body clear"]).await;
    stream.send([request_trailers()]);
    let refused = super::show::show(&stream.answer().await);
    assert!(refused.contains("400"), "{refused}");
    stream.ends("OK").await;
}

#[tokio::test]
async fn streamed_a_body_that_comes_unasked_decides() {
    let (mut served, mut stream) = plane(Script::new()).await;
    let head = with_modes(post(), (STREAMED, NONE, true));
    stream.send([head, request_body("{", false), request_body("}", true)]);
    stream.expect(&[ROUTED, "request_body", "request_body"]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "POST /v1/completions {}");
}

#[tokio::test]
async fn streamed_a_changed_body_takes_the_place_of_the_first_piece() {
    let (_served, mut stream) = plane(changing("{\"a\":1}")).await;
    let head = with_modes(post(), (STREAMED, NONE, true));
    stream.send([head, request_body("{", false), request_body("}", false), request_trailers()]);
    let head = ROUTED.replacen("8000)", "8000 content-length=7)", 1);
    let body = "request_body replace \"{\\\"a\\\":1}\"";
    stream.expect(&[&head, body, "request_body clear", "request_trailers"]).await;
}

#[tokio::test]
async fn streamed_a_body_that_fills_the_data_planes_buffer_is_not_waited_for() {
    let settings = ExtProcSettings { max_streamed_bytes: 3, ..ExtProcSettings::default() };
    let (mut served, mut stream) = plane_with(Script::new(), settings.clone()).await;
    let head = with_modes(post(), (STREAMED, NONE, true));
    stream.send([head.clone(), request_body("ab", false), request_body("cd", false)]);
    stream.expect(&[ROUTED, "request_body", "request_body"]).await;
    stream.send([request_body("e", true)]);
    stream.expect(&["request_body"]).await;
    stream.ends("OK").await;
    assert_eq!(served.logged().await, "POST /v1/completions");

    let (_served, mut stream) = plane_with(Script::new(), settings).await;
    let head = request_headers(&[("content-length", "4")], false);
    stream.send([with_modes(head, (STREAMED, NONE, true))]);
    stream.expect(&[ROUTED]).await;
}

#[tokio::test]
async fn answers_outside_full_duplex_are_changed_only_where_they_differ() {
    let metadata = " meta(envoy.lb x-gateway-inference-request-cost=7)";
    let cases: [(i32, ReplyBody, &[&str]); 4] = [
        (STREAMED, ReplyBody::Pass, &["response_body", "response_body"]),
        (STREAMED, ReplyBody::Hold, &["response_body clear", "response_body replace \"ab\""]),
        (
            STREAMED,
            ReplyBody::Shout,
            &["response_body replace \"A\"", "response_body replace \"B\""],
        ),
        (PARTIAL, ReplyBody::Hold, &["response_body"]),
    ];
    for (mode, reply_body, expected) in cases {
        let (_served, mut stream) = plane(script(Interest::Body, reply_body)).await;
        let head = request_headers(&[(":method", "GET")], true);
        stream.send([with_modes(head, (NONE, mode, false))]);
        stream.expect(&[ROUTED]).await;
        stream.send([ok()]);
        stream.expect(&["response_headers"]).await;
        for (index, piece) in ["a", "b"].iter().take(expected.len()).enumerate() {
            let last = index + 1 == expected.len();
            stream.send([response_body(piece, last)]);
            let metadata = if last { metadata } else { "" };
            stream.expect(&[&format!("{}{metadata}", expected[index])]).await;
        }
    }
}

#[tokio::test]
async fn a_buffered_answer_that_changes_comes_with_its_length() {
    let (_served, mut stream) = plane(script(Interest::Body, ReplyBody::Shout)).await;
    stream.send([with_modes(post(), (NONE, BUFFERED, false))]);
    stream.expect(&[ROUTED]).await;
    stream.send([ok(), response_body("abc", true)]);
    let body = "response_body set(content-length=3) replace \"ABC\"";
    let metadata = "meta(envoy.lb x-gateway-inference-request-cost=7)";
    stream.expect(&["response_headers", &format!("{body} {metadata}")]).await;
    stream.ends("OK").await;
}

#[tokio::test]
async fn full_duplex_needs_no_promise_to_send_the_body_at_once() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([with_modes(post(), (FULL_DUPLEX, FULL_DUPLEX, false)), request_body("{}", true)]);
    stream.expect(&[&super::show::routed(2), "request_body \"{}\"."]).await;
}

#[tokio::test]
async fn a_mode_that_nobody_knows_is_refused() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([with_modes(post(), (5, NONE, false))]);
    stream.ends("Unimplemented: body send mode 5 is not supported").await;
}
