//! Answers that a real vLLM decodes in chunks, and that clients get as one.

use super::testbed::{CHAT, Sidecar};
use serde_json::{Value, json};
use stator_tests::stock::{Bed, CONTEXT, Engine, MODEL, Role};
use stator_tests::vllm;

/// Tokens of the answers, of which the last chunk has fewer than the others.
const TOKENS: u64 = 100;

/// A chat with a greedy answer that does not end by itself.
fn chat(more: &Value) -> Value {
    let mut body = json!({
        "model": MODEL, "temperature": 0, "ignore_eos": true, "logprobs": true,
        "messages": [{ "role": "user", "content": "Say something long." }],
    });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

#[tokio::test]
async fn vllm_decodes_in_chunks_and_the_client_gets_one_answer() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let server = vllm::serve(&bed, Role::Aggregated, &[]).await;
    let sidecar = Sidecar::start(server.address(), &["--decode-chunk-size=32"]).await;
    let first = server.post(CHAT, &chat(&json!({ "max_tokens": 32 }))).await;

    let reply = sidecar.client.post(CHAT, &chat(&json!({ "max_tokens": TOKENS }))).await.json();
    let choice = &reply["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    let beginning = first["choices"][0]["message"]["content"].as_str().unwrap();
    let beginning = beginning.trim_end_matches(char::REPLACEMENT_CHARACTER);
    assert!(text.len() > beginning.len() && text.starts_with(beginning), "{text:?} {beginning:?}");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["content"].as_array().map(Vec::len), Some(TOKENS as usize));
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let usage = &reply["usage"];
    let counts = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| &usage[name]);
    assert_eq!(counts, [&json!(prompt), &json!(TOKENS), &json!(prompt + TOKENS)]);
    sidecar.counts("stator_direct_decode_chunks_total", &[], 4.0).await;

    let options = json!({ "include_usage": true });
    let streamed = json!({ "max_tokens": TOKENS, "stream": true, "stream_options": options });
    let mut events = sidecar.client.stream(CHAT, &chat(&streamed)).await;
    let (mut joined, mut told) = (String::new(), Value::Null);
    while let Some(event) = events.next().await.filter(|event| event != "[DONE]") {
        let event: Value = serde_json::from_str(&event).unwrap();
        joined.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        told = event["usage"].clone();
    }
    assert_eq!((&*joined, &told["completion_tokens"]), (text, &json!(TOKENS)));
    sidecar.counts("stator_direct_decode_chunks_total", &[], 8.0).await;

    // Without a limit it goes on until the context is full.
    let sidecar = Sidecar::start(server.address(), &["--decode-chunk-size=1024"]).await;
    let reply = sidecar.client.post(CHAT, &chat(&json!({}))).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length", "{reply}");
    let tokens = reply["usage"]["completion_tokens"].as_u64().unwrap();
    assert!((1025..CONTEXT as u64 * 2).contains(&tokens), "{tokens}");

    // What cannot be joined is decoded in one piece.
    let several = chat(&json!({ "max_tokens": 2, "n": 2, "temperature": 1 }));
    let reply = sidecar.client.post(CHAT, &several).await.json();
    assert_eq!(reply["choices"].as_array().map(Vec::len), Some(2), "{reply}");
    sidecar.counts("stator_direct_decoded_whole_total", &["several_answers"], 1.0).await;
}
