//! Engines that speak gRPC: HTTP/2 without TLS, and vLLM's messages.

use super::testbed::{Bed, DESTINATION, Testbed};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use stator_tests::engine::HOLD;
use stator_tests::engine_answers::grpc_frame;
use stator_tests::http::Client;

const GENERATE: &str = "/vllm.grpc.engine.VllmEngine/Generate";
const PARSER: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: kv-aware
- type: vllmgrpc-parser
schedulingProfiles:
- name: default
  plugins: [{ pluginRef: kv-aware }]
requestHandler:
  parsers: [{ pluginRef: vllmgrpc-parser }]
";

async fn grpc(engines: usize) -> Option<Testbed> {
    let config = format!("--config-text={PARSER}");
    let flags = [config.as_str(), "--response-path=body"];
    Testbed::with(engines, &flags, |settings, _| settings.upstream_http2 = true).await
}

fn client(testbed: &Testbed) -> Client {
    let client = testbed.client().over_http2();
    client.with_header("content-type", "application/grpc").with_header("te", "trailers")
}

/// A frame with a `GenerateRequest` for this prompt: its field `text` is 3.
fn generate(prompt: &str) -> Bytes {
    let length = u8::try_from(prompt.len()).expect("a short prompt");
    grpc_frame(&[&[3 << 3 | 2, length], prompt.as_bytes()].concat())
}

#[tokio::test]
async fn a_call_reaches_the_picked_engine_and_comes_back() {
    let Some(testbed) = grpc(2).await else { return };
    let request = generate("hello");
    let reply = client(&testbed).send(Method::POST, GENERATE, request.clone()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", testbed.picker.process.log());
    assert_eq!(reply.body, request);
    assert_eq!(reply.trailers["grpc-status"], "0");
    let engine = &testbed.engines[testbed.served_by(&reply)];
    assert_eq!(engine.last().header(DESTINATION), [engine.address().to_string()]);
    testbed.metric_is("llm_d_epp_request_total", 1.0).await;
    testbed.metric_is("llm_d_epp_request_running", 0.0).await;
}

#[tokio::test]
async fn methods_that_the_picker_does_not_know_are_routed_too() {
    let Some(testbed) = grpc(1).await else { return };
    let request = grpc_frame(b"\xff\xff not ours to read");
    let path = "/grpc.health.v1.Health/Check";
    let reply = client(&testbed).send(Method::POST, path, request.clone()).await;
    assert_eq!(reply.body, request);
    assert_eq!(reply.trailers["grpc-status"], "0");
}

#[tokio::test]
async fn messages_of_a_stream_come_one_by_one() {
    let Some(testbed) = grpc(1).await else { return };
    let client = client(&testbed).with_header(HOLD, "1");
    let mut call = client.begin(Method::POST, GENERATE, generate("hello")).await;
    let held = testbed.engines[0].held().await;
    for message in ["one", "two"] {
        held.send(grpc_frame(message.as_bytes())).await;
        call.until(message).await;
    }
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("grpc-status", 0.into());
    held.trailers(trailers).await;
    let whole = [grpc_frame(b"one"), grpc_frame(b"two")].concat();
    assert_eq!(call.end().await.unwrap(), whole);
}

#[tokio::test]
async fn tokens_of_a_call_are_counted() {
    let Some(testbed) = grpc(1).await else { return };
    let client = client(&testbed).with_header(HOLD, "1");
    let mut call = client.begin(Method::POST, GENERATE, generate("hello")).await;
    let held = testbed.engines[0].held().await;
    // Parts of a `GenerateResponse`, 1: a token id, then tokens of the prompt, of the answer and
    // in the cache, 2 to 4.
    let part = |answered: u8| {
        grpc_frame(&[1 << 3 | 2, 9, 1 << 3 | 2, 1, 5, 2 << 3, 7, 3 << 3, answered, 4 << 3, 3])
    };
    held.send(part(1)).await;
    held.send(part(10)).await;
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("grpc-status", 0.into());
    held.trailers(trailers).await;
    assert_eq!(call.end().await.unwrap(), [part(1), part(10)].concat());
    for (name, tokens) in [("input", 7.0), ("output", 10.0), ("cached", 3.0)] {
        testbed.metric_is(&format!("llm_d_epp_request_{name}_tokens_sum"), tokens).await;
    }
}
