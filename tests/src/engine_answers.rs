//! What simulated engines say.

use crate::engine::Load;
use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::HeaderMap;
use hyper::body::Frame;
use serde_json::{Value, json};
use std::convert::Infallible;

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A message as gRPC frames it.
pub fn grpc_frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a test's message is small");
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

/// The messages that came, and success.
pub(crate) fn echo(messages: Bytes) -> Body {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", 0.into());
    let frames = [Frame::data(messages), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(frames.map(Ok))).boxed_unsync()
}

/// A chat completion for a request. One whose KV is for another engine says where it is.
///
/// Source: the parameters of vLLM's NixlConnector.
pub(crate) fn completion(request: &Value) -> Value {
    let message = json!({ "role": "assistant", "content": "Hello" });
    let parameters = (request["kv_transfer_params"]["do_remote_decode"] == true).then(|| {
        json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": "simulated",
        })
    });
    json!({
        "kv_transfer_params": parameters,
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": request["model"],
        "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8 },
    })
}

/// Source: names and labels of vLLM's `/metrics`.
pub(crate) fn page(Load { waiting, running, kv_usage, further_ranks }: Load) -> String {
    let labels = "engine=\"0\",model_name=\"model\"";
    let further: String = (1..=further_ranks)
        .map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0\n"))
        .collect();
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{{labels}}} {running}\n{further}\
         # TYPE vllm:num_requests_waiting gauge\n\
         vllm:num_requests_waiting{{{labels}}} {waiting}\n\
         # TYPE vllm:kv_cache_usage_perc gauge\n\
         vllm:kv_cache_usage_perc{{{labels}}} {kv_usage}\n\
         # TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"10000\"}} 1\n"
    )
}
