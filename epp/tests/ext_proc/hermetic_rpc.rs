//! The hermetic tests of the llm-d router over gRPC: vLLM's messages in frames, and answers that
//! end with trailers.

use super::plane::*;
use super::pool::*;
use super::show::{header_set, piece, routed_to, show};
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;

const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer},
  {type: vllmgrpc-parser}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer},
    {pluginRef: prefix-cache-scorer}]
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}
";
const GENERATE: &str = "/vllm.grpc.engine.VllmEngine/Generate";
const EMBED: &str = "/vllm.grpc.engine.VllmEngine/Embed";

/// A message in a frame of its own.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("test messages are short");
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// A field with a number below 128.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// A field with a string, a message or packed numbers.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("test messages are short");
    [&[field << 3 | 2, length], value].concat()
}

/// A `GenerateRequest`: id 1, text 3, stream 5.
fn generate(prompt: &str, streams: bool) -> Vec<u8> {
    let fields = [bytes(1, b"id"), bytes(3, prompt.as_bytes()), number(5, streams.into())];
    frame(&fields.concat())
}

/// An `EmbedRequest` of two token ids: tokenized 2.
fn embed() -> Vec<u8> {
    frame(&bytes(2, &bytes(2, &[1, 2])))
}

fn head(path: &str) -> ProcessingRequest {
    let headers = [
        ("hi", "mom"),
        ("x-request-id", "test-request-id"),
        (":method", "POST"),
        (":path", path),
        ("content-type", "application/grpc"),
    ];
    request_headers(&headers, false)
}

async fn bed() -> Bed {
    let engines = [engine(0, 3, 0.2, &[]), engine(1, 0, 0.1, &[]), engine(2, 10, 0.2, &[])];
    Bed::start(CONFIG, &engines).await
}

/// A stream on which a call was routed to a pod, byte for byte.
async fn routed(bed: &Bed, messages: Vec<ProcessingRequest>, body: &[u8], number: u8) -> Stream {
    let mut stream = bed.served.open().await;
    stream.send(messages);
    stream.expect(&[&routed_to(address(number), body.len())]).await;
    let answer = stream.answer().await;
    assert_eq!(piece(&answer), Some((body, true)));
    stream
}

#[tokio::test]
async fn generate_and_embed_select_the_lower_queue() {
    let bed = bed().await;
    for (path, body) in
        [(GENERATE, generate("test", false)), (GENERATE, generate("test", true)), (EMBED, embed())]
    {
        routed(&bed, vec![head(path), request_body(&body, true)], &body, 1).await;
    }
}

#[tokio::test]
async fn a_frame_may_come_in_pieces() {
    let (bed, body) = (bed().await, generate("a prompt in two pieces", false));
    let (first, second) = body.split_at(9);
    let messages = vec![head(GENERATE), request_body(first, false), request_body(second, true)];
    routed(&bed, messages, &body, 1).await;
}

#[tokio::test]
async fn a_broken_frame_is_refused() {
    let bed = bed().await;
    let mut stream = bed.served.open().await;
    stream.send([head(GENERATE), request_body(b"\0\0\0\0\x09short", true)]);
    let found = show(&stream.answer().await);
    assert!(found.starts_with("immediate 400 "), "{found}");
    stream.ends("OK").await;
}

#[tokio::test]
async fn subsets_are_obeyed_by_calls_too() {
    let (bed, body) = (bed().await, generate("test", false));
    let allowing = |number: u8| {
        let only = list(&[text(&address(number).to_string())]);
        vec![with_metadata(head(GENERATE), SUBSET, only), request_body(&body, true)]
    };
    routed(&bed, allowing(2), &body, 2).await;
    let mut stream = bed.served.open().await;
    stream.send(allowing(98));
    let found = show(&stream.answer().await);
    assert!(found.starts_with("immediate 503 "), "{found}");
}

/// A part of a streamed answer, `chunk` 1: token ids 1, prompt tokens 2, completion tokens 3.
fn part(completion: u8) -> Vec<u8> {
    let fields = [bytes(1, &[5]), number(2, 7), number(3, completion)];
    frame(&bytes(1, &fields.concat()))
}

#[tokio::test]
async fn an_answer_ends_with_its_trailers() {
    let (bed, body) = (bed().await, generate("test", true));
    let messages = vec![head(GENERATE), request_body(&body, true)];
    let mut stream = routed(&bed, messages, &body, 1).await;
    assert_eq!(bed.served.metrics("llm_d_epp_inflight_requests{").len(), 3);
    let headers = [(":status", "200"), ("content-type", "application/grpc")];
    stream.send([response_headers(&headers, false)]);
    let parts = [part(3), part(10)];
    stream.send(parts.iter().map(|part| response_body(part, false)));
    stream.send([response_trailers()]);
    stream.expect(&["response_headers"]).await;
    for part in &parts {
        let answer = stream.answer().await;
        assert_eq!(piece(&answer), Some((&part[..], false)));
    }
    stream.expect(&["response_trailers"]).await;
    stream.ends("OK").await;
    let in_flight = bed.served.metrics("llm_d_epp_inflight_requests{");
    assert!(in_flight.iter().all(|line| line.ends_with(" 0.0")), "{in_flight:?}");
    for (name, tokens) in [("input", 7), ("output", 10)] {
        let sum = bed.served.metrics(&format!("llm_d_epp_request_{name}_tokens_sum{{"));
        assert!(sum.len() == 1 && sum[0].ends_with(&format!(" {tokens}.0")), "{sum:?}");
    }
    let bytes = bed.served.metrics("llm_d_epp_response_size_bytes_sum{");
    assert!(bytes[0].ends_with(&format!(" {}.0", parts.concat().len())), "{bytes:?}");
}

#[tokio::test]
async fn the_tokens_of_an_answer_without_a_call_are_counted_under_no_model() {
    let bed = bed().await;
    let mut stream = bed.served.open().await;
    let headers = [(":status", "200"), ("content-type", "application/grpc")];
    stream.send([response_headers(&headers, false), response_body(part(10), false)]);
    stream.send([response_trailers()]);
    stream.expect(&["response_headers"]).await;
    assert_eq!(piece(&stream.answer().await), Some((&part(10)[..], false)));
    stream.expect(&["response_trailers"]).await;
    stream.ends("OK").await;
    for (name, tokens) in [("input", 7), ("output", 10)] {
        let sum = bed.served.metrics(&format!("llm_d_epp_request_{name}_tokens_sum{{"));
        let nobody = "model_name=\"\",target_model_name=\"\",fairness_id=\"\",priority=\"0\"";
        assert_eq!(sum, [format!("llm_d_epp_request_{name}_tokens_sum{{{nobody}}} {tokens}.0")]);
    }
}

#[tokio::test]
async fn another_method_goes_to_any_pod_unread() {
    let bed = bed().await;
    let body = b"\xff\xff not ours to read";
    let mut stream = bed.served.open().await;
    stream.send([head("/vllm.grpc.engine.VllmEngine/HealthCheck"), request_body(body, true)]);
    assert!(header_set(&stream.answer().await, DESTINATION).is_some());
    assert_eq!(piece(&stream.answer().await), Some((&body[..], true)));
}
