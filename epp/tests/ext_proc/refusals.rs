//! Immediate responses.

use super::director::{Log, Say, Script};
use super::plane::*;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use stator_epp::exchange::Refusal;
use stator_epp::ext_proc::{BodyBudget, ErrorFormat, ExtProcSettings};
use std::time::Duration;

fn refusing(status: u16, message: &str, reason: Option<&'static str>) -> (Script, Log) {
    let (mut script, log) = Script::new();
    let message = message.to_owned();
    script.say = Say::Refuse(Refusal { status, message, reason, retry_after: None, body: None });
    (script, log)
}

async fn check(status: u16, message: &str, reason: Option<&'static str>, expected: &str) {
    let (_served, mut stream) = plane(refusing(status, message, reason)).await;
    stream.send([post(), request_body("{\"prompt\":\"hello\"}", true)]);
    stream.expect(&[expected]).await;
    stream.ends("OK").await;
}

#[tokio::test]
async fn refusals_read_as_those_of_the_llm_d_router() {
    check(
        400,
        "model not found in request body",
        None,
        "immediate 400 set(content-type=text/plain) \
         \"inference error: BadRequest - model not found in request body\"",
    )
    .await;
    check(
        503,
        "failed to find endpoint candidates for serving the request",
        Some("rejected-no-endpoints"),
        // We add when to come back.
        "immediate 503 set(x-llm-d-request-dropped-reason=rejected-no-endpoints \
         retry-after=1 content-type=text/plain) \"inference error: ServiceUnavailable - failed to find endpoint \
         candidates for serving the request\"",
    )
    .await;
    check(
        500,
        "no pods available in datastore",
        None,
        "immediate 500 set(content-type=text/plain) \
         \"inference error: Internal - no pods available in datastore\"",
    )
    .await;
    check(
        412,
        "no decode worker has the requested KV cache",
        None,
        "immediate 412 set(content-type=text/plain) \
         \"inference error: PreconditionFailed - no decode worker has the requested KV cache\"",
    )
    .await;
}

#[tokio::test]
async fn a_shed_request_is_told_when_to_come_back() {
    let (mut script, log) = Script::new();
    script.say = Say::Refuse(Refusal {
        status: 429,
        message: "saturated".to_owned(),
        reason: Some("rejected-saturated"),
        retry_after: Some(Duration::from_millis(2300)),
        body: None,
    });
    let settings =
        ExtProcSettings { error_format: ErrorFormat::OpenAi, ..ExtProcSettings::default() };
    let (_served, mut stream) = plane_with((script, log), settings).await;
    stream.send([post(), request_body("{}", true)]);
    let answer = "immediate 429 set(x-llm-d-request-dropped-reason=rejected-saturated \
                  retry-after=3 content-type=application/json) ";
    let body = r#"{"error":{"message":"saturated","type":"rate_limit_error","param":null,"code":"rejected-saturated"}}"#;
    stream.expect(&[&format!("{answer}{body:?}")]).await;
}

#[tokio::test]
async fn a_request_without_a_body_is_refused_alike() {
    let (_served, mut stream) = plane(refusing(500, "no pods", None)).await;
    stream.send([request_headers(&[(":method", "GET")], true)]);
    let body = "\"inference error: Internal - no pods\"";
    stream.expect(&[&format!("immediate 500 set(content-type=text/plain) {body}")]).await;
}

#[tokio::test]
async fn a_body_past_the_limit_is_refused_before_it_is_complete() {
    let settings = ExtProcSettings { max_body_bytes: 10, ..ExtProcSettings::default() };
    let (_served, mut stream) = plane_with(Script::new(), settings.clone()).await;
    stream.send([post(), request_body("0123456789", false), request_body("0", false)]);
    let body = "\"inference error: PayloadTooLarge - the request body has 11 bytes or more, the \
                limit is 10\"";
    let refusal = format!("immediate 413 set(content-type=text/plain) {body}");
    stream.expect(&[&refusal]).await;
    stream.ends("OK").await;

    let (_served, mut stream) = plane_with(Script::new(), settings).await;
    stream.send([request_headers(&[("content-length", "11")], false)]);
    stream.expect(&[&refusal]).await;
}

#[tokio::test]
async fn a_body_that_finds_no_room_beside_others_is_refused_until_they_are_sent_on() {
    let body_budget = BodyBudget::new(10);
    let settings =
        ExtProcSettings { body_budget: body_budget.clone(), ..ExtProcSettings::default() };
    let (_served, mut first) = plane_with(Script::new(), settings.clone()).await;
    first.send([post(), request_body("01234", false)]);
    let (_served, mut second) = plane_with(Script::new(), settings.clone()).await;
    second.send([post(), request_body("01234", false)]);
    let mut registry = Registry::default();
    body_budget.register(&mut registry);
    let held = || {
        let mut text = String::new();
        encode(&mut text, &registry).expect("it is text");
        let line = text.lines().find(|line| line.starts_with("stator_epp_bodies_held_bytes "));
        line.expect("it is there").to_owned()
    };
    let settles = async |bytes: u32| {
        let wanted = format!("stator_epp_bodies_held_bytes {bytes}");
        let settled = async {
            while held() != wanted {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, settled).await.expect("it settles in time");
    };
    settles(10).await;
    let (_served, mut third) = plane_with(Script::new(), settings.clone()).await;
    third.send([post(), request_body("0", false)]);
    let body = "\"inference error: ServiceUnavailable - request bodies that are being read have \
                10 bytes, the limit\"";
    let set = "set(retry-after=1 content-type=text/plain)";
    third.expect(&[&format!("immediate 503 {set} {body}")]).await;
    // One is sent on, the other given up.
    first.send([request_body("", true)]);
    settles(5).await;
    // A body waits for the room that another one gives back.
    let (_served, mut fourth) = plane_with(Script::new(), settings.clone()).await;
    fourth.send([post(), request_body("012345", false)]);
    drop(second);
    settles(6).await;
    fourth.send([request_body("", true)]);
    settles(0).await;
}

#[tokio::test]
async fn a_head_past_the_limits_is_refused() {
    let settings =
        ExtProcSettings { max_headers: 2, max_header_bytes: 30, ..ExtProcSettings::default() };
    let heads: [(&[(&str, &str)], &str); 2] = [
        (&[("a", "1"), ("b", "2"), ("c", "3")], "3 headers, the limit is 2"),
        (&[("a", "1"), (":path", "/0123456789012345678901234")], "33 bytes, the limit is 30"),
    ];
    for (head, what) in heads {
        let (_served, mut stream) = plane_with(Script::new(), settings.clone()).await;
        stream.send([request_headers(head, true)]);
        let body = format!(
            "\"inference error: RequestHeaderFieldsTooLarge - the request head has {what}\""
        );
        stream.expect(&[&format!("immediate 431 set(content-type=text/plain) {body}")]).await;
    }
}
