//! Quirks of single data planes.

use super::director::{Say, Script};
use super::plane::*;
use super::show::routed;

/// agentgateway sends pseudo-headers in `value` and others in `raw_value`.
#[tokio::test]
async fn headers_are_read_from_either_field() {
    let (mut served, mut stream) = plane(Script::new()).await;
    let mut head =
        request_headers(&[(":method", "POST"), (":path", "/v1/chat/completions")], false);
    head = in_value(head);
    stream.send([head, request_body("{}", true)]);
    assert_eq!(served.logged().await, "POST /v1/chat/completions {}");
}

/// Some data planes name themselves in metadata that is none of our business.
#[tokio::test]
async fn other_metadata_is_passed_over() {
    let (mut served, mut stream) = plane(Script::new()).await;
    let head =
        with_metadata(post(), ("envoy.lb", "x-gateway-destination-endpoint"), text("1.2.3.4:5"));
    stream.send([head, request_body("{}", true)]);
    assert_eq!(served.logged().await, "POST /v1/completions {}");
    stream.expect(&[&routed(2)]).await;
}

/// Envoy answers by itself, say after a timeout, and tells of that answer.
#[tokio::test]
async fn a_local_reply_gives_the_decision_up() {
    let (mut script, log) = Script::new();
    script.say = Say::Nothing;
    let (mut served, mut stream) = plane((script, log)).await;
    stream.send([post(), request_body("{}", true)]);
    assert_eq!(served.logged().await, "POST /v1/completions {}");
    stream.send([response_headers(&[(":status", "504")], false)]);
    stream.expect(&["response_headers"]).await;
    assert_eq!(served.logged().await, "given up");
    stream.send([response_body("timeout", true)]);
    stream.expect(&["response_body \"timeout\"."]).await;
    stream.ends("OK").await;
}

/// In observability mode nothing that we say counts.
#[tokio::test]
async fn an_observing_data_plane_is_left_alone() {
    let (_served, mut stream) = plane(Script::new()).await;
    let mut head = post();
    head.observability_mode = true;
    stream.send([head]);
    stream.ends("OK").await;
}
