//! Requests that are answered without an engine, and the gateway's own choice of endpoints.

use super::testbed::{Bed, CHAT, DROPPED, Testbed, chat, header};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use stator_tests::http::Reply;
use std::net::SocketAddr;

fn check_no_endpoints(reply: &Reply) {
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{reply:?}");
    assert_eq!(header(reply, DROPPED), "rejected-no-endpoints");
    assert!(header(reply, "retry-after").parse::<u32>().is_ok_and(|seconds| seconds > 0));
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(text.starts_with("inference error: ServiceUnavailable - "), "{text:?}");
}

/// Sends a request that the gateway restricts to what `subset` makes of two engines' addresses.
async fn restricted(subset: impl FnOnce(&[SocketAddr]) -> Value) -> Option<(Testbed, Reply)> {
    let change = |settings: &mut stator_tests::envoy::EnvoySettings, engines: &[SocketAddr]| {
        settings.subset = Some(subset(engines));
    };
    let testbed = Testbed::with(2, &[], change).await?;
    let reply = testbed.chat("hello").await;
    Some((testbed, reply))
}

/// The gateway allows only the second engine, and another that nobody has.
async fn check_second(subset: impl FnOnce(SocketAddr) -> Value) {
    let Some((testbed, reply)) = restricted(|engines| subset(engines[1])).await else { return };
    assert_eq!(testbed.served_by(&reply), 1);
    for n in 0..5 {
        let reply = testbed.chat(&format!("prompt {n}")).await;
        assert_eq!(testbed.served_by(&reply), 1);
    }
    let reply = testbed.client().get("/v1/models").await;
    assert_eq!(testbed.served_by(&reply), 1, "without a body");
}

#[tokio::test]
async fn a_list_of_endpoints_restricts_the_choice() {
    check_second(|engine| json!([engine.to_string(), "192.0.2.1:80"])).await;
}

#[tokio::test]
async fn a_string_of_endpoints_restricts_the_choice() {
    check_second(|engine| json!(format!("192.0.2.1:80, {engine}"))).await;
}

#[tokio::test]
async fn where_no_allowed_endpoint_is_of_the_pool_nobody_answers() {
    let Some((testbed, reply)) = restricted(|_| json!(["192.0.2.1:80"])).await else { return };
    check_no_endpoints(&reply);
    check_no_endpoints(&testbed.client().get("/v1/models").await);
    assert!(testbed.chat("hello").await.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn an_empty_list_allows_nobody() {
    let Some((_testbed, reply)) = restricted(|_| json!([])).await else { return };
    check_no_endpoints(&reply);
}

#[tokio::test]
async fn the_gateways_choice_can_be_ignored() {
    let flags = ["--disable-endpoint-subset-filter"];
    let restrict = |settings: &mut stator_tests::envoy::EnvoySettings, _: &[SocketAddr]| {
        settings.subset = Some(json!(["192.0.2.1:80"]));
    };
    let Some(testbed) = Testbed::with(1, &flags, restrict).await else { return };
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_empty_pool_answers_503() {
    let Some(testbed) = Testbed::start(0).await else { return };
    check_no_endpoints(&testbed.chat("hello").await);
    check_no_endpoints(&testbed.client().get("/v1/models").await);
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused() {
    let Some(testbed) = Testbed::start(1).await else { return };
    for body in ["no healthy upstream", "{\"model\": \"m\", \"messages\": [", "[1]"] {
        let reply = testbed.client().send(Method::POST, CHAT, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(text.starts_with("inference error: BadRequest - "), "{text:?}");
    }
    let reply = testbed.client().post(CHAT, &json!({ "messages": [] })).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "a request without a model");
    assert!(testbed.engines[0].requests().is_empty());
}

#[tokio::test]
async fn a_body_past_the_limit_is_refused() {
    let Some(testbed) = Testbed::with_flags(1, &["--max-body-bytes=64KiB"]).await else { return };
    let long = chat("model", &"x".repeat(70_000));
    let reply = testbed.client().post(CHAT, &long).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    let long = long.to_string().into_bytes();
    let pieces = long.chunks(9_000).map(Bytes::copy_from_slice).collect();
    let reply = testbed.client().post_pieces(CHAT, pieces).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(testbed.engines[0].requests().is_empty());
    assert_eq!(testbed.chat(&"x".repeat(60_000)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn refusals_can_be_objects_of_the_openai_api() {
    let Some(testbed) = Testbed::with_flags(0, &["--error-format=openai"]).await else { return };
    let reply = testbed.chat("hello").await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&reply, "content-type"), "application/json");
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "server_error");
    assert_eq!(error["code"], "rejected-no-endpoints");
    assert!(error["message"].is_string());
}
