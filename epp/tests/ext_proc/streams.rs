//! Streams that break the rules, or off.

use super::director::{Say, Script};
use super::plane::*;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::ExtProcSettings;

const INFLIGHT: &str = "llm_d_epp_extproc_streams_inflight";
const TOTAL: &str = "llm_d_epp_extproc_streams_total";

async fn check(messages: Vec<ProcessingRequest>, status: &str) {
    let (mut script, log) = Script::new();
    script.interest = Interest::Body;
    let (_served, mut stream) = plane((script, log)).await;
    stream.send(messages);
    let end = loop {
        let answer = within(stream.next()).await;
        match answer {
            Ok(Some(_)) => {}
            Ok(None) => break "OK".to_owned(),
            Err(status) => break format!("{:?}: {}", status.code(), status.message()),
        }
    };
    assert_eq!(end, status);
}

#[tokio::test]
async fn messages_out_of_order_end_the_stream_with_what_was_wrong() {
    let unexpected = |what| format!("InvalidArgument: unexpected {what}");
    let body = || request_body("{}", true);
    check(vec![body()], &unexpected("request body before request headers")).await;
    check(vec![request_trailers()], &unexpected("request trailers before request headers")).await;
    let while_coming = "request headers while the request body comes";
    check(vec![post(), post()], &unexpected(while_coming)).await;
    let headers_twice = "response headers after response headers";
    check(vec![ok(), ok()], &unexpected(headers_twice)).await;
}

#[tokio::test]
async fn a_body_after_its_end_is_refused() {
    let (mut script, log) = Script::new();
    script.interest = Interest::Body;
    let (_served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{}", true)]);
    stream.expect(&[&super::show::routed(2), "request_body \"{}\"."]).await;
    stream.send([request_body("more", true)]);
    stream.ends("InvalidArgument: unexpected request body after the request's end").await;
}

#[tokio::test]
async fn an_empty_message_is_passed_over() {
    let (_served, mut stream) = plane(Script::new()).await;
    stream.send([ProcessingRequest::default(), post(), request_body("{}", true)]);
    stream.expect(&[&super::show::routed(2)]).await;
}

#[tokio::test]
async fn a_data_plane_that_hangs_up_gives_the_decision_up() {
    let (mut script, log) = Script::new();
    script.say = Say::Nothing;
    let (mut served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{}", true)]);
    assert_eq!(served.logged().await, "POST /v1/completions {}");
    stream.close();
    assert_eq!(served.logged().await, "given up");
    stream.ends("OK").await;
}

#[tokio::test]
async fn a_data_plane_that_half_closes_gets_the_answer_to_a_large_body() {
    let (mut script, log) = Script::new();
    let (say, said) = tokio::sync::watch::channel(false);
    script.say = Say::Later(said);
    let (mut served, mut stream) = plane((script, log)).await;
    let body = "x".repeat(100_000);
    stream.send([post(), request_body(&body, true)]);
    assert_eq!(served.logged().await, format!("POST /v1/completions {body}"));
    stream.close();
    say.send_replace(true);
    stream.expect(&[super::show::routed(body.len())]).await;
    stream.expect(&["request_body 62000x'x'", "request_body 38000x'x'."]).await;
    stream.ends("OK").await;
}

#[tokio::test]
async fn a_cancelled_stream_gives_the_decision_up() {
    let (mut script, log) = Script::new();
    script.say = Say::Nothing;
    let (mut served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{}", true)]);
    assert_eq!(served.logged().await, "POST /v1/completions {}");
    assert_eq!(served.metrics(INFLIGHT), [format!("{INFLIGHT} 1.0")]);
    drop(stream);
    assert_eq!(served.logged().await, "given up");
}

#[tokio::test]
async fn a_revoked_request_is_refused_whatever_came_of_it() {
    for answered in [false, true] {
        let (mut script, log) = Script::new();
        let (revoke, revoked) = tokio::sync::watch::channel(false);
        (script.interest, script.revoke) = (Interest::Body, Some(revoked));
        let (_served, mut stream) = plane((script, log)).await;
        stream.send([post(), request_body("{}", true)]);
        stream.expect(&[&super::show::routed(2), "request_body \"{}\"."]).await;
        if answered {
            stream.send([ok(), response_body("a", false)]);
            stream.expect(&["response_headers", "response_body \"a\""]).await;
        }
        revoke.send_replace(true);
        let refused = super::show::show(&stream.answer().await);
        assert!(refused.contains("429") && refused.contains("evicted"), "{refused}");
        stream.ends("OK").await;
    }
}

#[tokio::test]
async fn a_stream_that_ends_early_is_no_error() {
    for messages in [vec![], vec![post()], vec![post(), request_body("{", false)]] {
        let (_served, mut stream) = plane(Script::new()).await;
        stream.send(messages);
        stream.close();
        stream.ends("OK").await;
    }
}

#[tokio::test]
async fn a_message_past_the_limit_ends_the_stream() {
    let settings = ExtProcSettings { max_message_bytes: 100, ..ExtProcSettings::default() };
    let (_served, mut stream) = plane_with(Script::new(), settings).await;
    stream.send([post(), request_body("x".repeat(100), true)]);
    let status = "ResourceExhausted: the message has 106 bytes, the limit is 100";
    stream.ends(status).await;
}

#[tokio::test]
async fn streams_are_counted_by_how_they_end() {
    let (mut served, mut stream) = plane(Script::new()).await;
    stream.send([post(), request_body("{}", true)]);
    stream.expect(&[&super::show::routed(2), "request_body \"{}\"."]).await;
    stream.ends("OK").await;
    let mut wrong = served.open().await;
    wrong.send([request_trailers()]);
    wrong.ends("InvalidArgument: unexpected request trailers before request headers").await;
    served.trigger.set();
    drop((stream, wrong));
    within(&mut served.task).await.expect("it does not panic");
    let counts = [("InvalidArgument", 1), ("OK", 1)]
        .map(|(code, count)| format!("{TOTAL}{{code=\"{code}\"}} {count}"));
    let mut found = served.metrics(TOTAL);
    found.sort();
    assert_eq!(found, counts);
    assert_eq!(served.metrics(INFLIGHT), [format!("{INFLIGHT} 0.0")]);
}
