//! Answers in chunks, between raw connections: what is on the wire.

use super::testkit::Proxy;
use crate::upstream::testkit::{Engine, Peer, soon, tree};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const CHUNKS: &str = "--decode-chunk-size=2";

/// A chat that may have five tokens.
fn chat(stream: bool) -> String {
    json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 5, "stream": stream })
        .to_string()
}

/// What an engine answers for a chunk.
fn chunk(text: &str, finish: &str, tokens: u64) -> String {
    let message = json!({ "role": "assistant", "content": text });
    json!({
        "id": "chatcmpl-1",
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens,
                   "prompt_tokens_details": { "cached_tokens": 2 } },
    })
    .to_string()
}

/// The text so far and the budget that the engine is asked to go on with.
fn so_far(asked: &Peer) -> (Value, u64) {
    let body = tree(&asked.body);
    assert_eq!(body["stream"], false);
    let budget = body["max_tokens"].as_u64().expect("a budget");
    (body["messages"][1]["content"].clone(), budget)
}

/// How often chats were decoded in one piece for this reason.
fn whole(proxy: &Proxy, reason: &'static str) -> u64 {
    proxy.metrics.decoded_whole.get_or_create(&super::metrics::Cause { reason }).get()
}

#[tokio::test]
async fn the_client_gets_one_answer_of_all_chunks() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[CHUNKS]).await;
    let mut client = proxy.post(CHAT, "Accept-Encoding: gzip\r\n", &chat(false)).await;
    let mut asked = engine.asked().await;
    assert_eq!(so_far(&asked), (Value::Null, 2));
    assert_eq!(asked.header("accept-encoding"), Some("identity"));
    asked.answer(200, &chunk("a b", "length", 2)).await;
    assert!(asked.read().await, "the same connection is used");
    assert_eq!(so_far(&asked), (json!("a b"), 2));
    asked.answer(200, &chunk(" c d", "length", 2)).await;
    assert!(asked.read().await);
    assert_eq!(so_far(&asked), (json!("a b c d"), 1));
    asked.answer(200, &chunk(" e", "length", 1)).await;
    assert!(client.read().await);
    assert_eq!(client.header("content-type"), Some("application/json"));
    let got = tree(&client.body);
    assert_eq!(got["choices"][0]["message"]["content"], "a b c d e");
    assert_eq!(got["choices"][0]["finish_reason"], "length");
    let usage = &got["usage"];
    assert_eq!((&usage["completion_tokens"], &usage["total_tokens"]), (&json!(5), &json!(8)));
    assert_eq!(proxy.metrics.decode_chunks.get(), 3);

    // Others are decoded in one piece, and as they came.
    for (path, body) in [("/v1/messages", chat(false)), (CHAT, "{\"stop\":\"x\"}".to_owned())] {
        client.post(path, "", &body).await;
        assert!(asked.read().await);
        assert_eq!(asked.body, body);
        asked.answer(200, "{}").await;
        assert!(client.read().await);
    }
    assert_eq!(whole(&proxy, "parameter"), 1);
}

#[tokio::test]
async fn a_client_that_streams_gets_an_event_with_each_chunk() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[CHUNKS]).await;
    let mut client = proxy.post(CHAT, "", &chat(true)).await;
    let mut asked = engine.asked().await;
    asked.answer(200, &chunk("a", "length", 2)).await;
    assert!(client.read_head().await);
    assert_eq!(client.header("content-type"), Some("text/event-stream"));
    let first = client.until("\n\n").await.expect("an event");
    assert!(first.contains(r#""delta":{"role":"assistant","content":"a"}"#), "{first}");
    assert!(asked.read().await, "the first event did not wait for more");
    asked.answer(200, &chunk("b", "stop", 1)).await;
    let last = client.until("data: [DONE]\n\n").await.expect("the end");
    assert!(last.contains(r#""delta":{"content":"b"}"#), "{last}");
    assert!(last.contains(r#""finish_reason":"stop""#) && !last.contains("usage"), "{last}");
    assert!(client.until("0\r\n\r\n").await.is_some());
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_the_chunk() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[CHUNKS]).await;
    let client = proxy.post(CHAT, "", &chat(false)).await;
    let mut asked = engine.asked().await;
    asked.answer(200, &chunk("a", "length", 2)).await;
    assert!(asked.read().await);
    drop(client);
    soon("the engine's connection is closed", asked.closed()).await;
    assert!(engine.is_idle(), "no further chunk is asked for");
}

/// Statuses and answers for a second chunk that cannot be joined to the first.
fn failures() -> [(u16, String); 3] {
    [(500, "{\"error\":{}}".to_owned()), (400, "{}".to_owned()), (200, chunk("", "length", 2))]
}

/// A client that waits for its answer, and the engine after the first chunk.
async fn second_chunk_fails(
    engine: &Engine,
    stream: bool,
    failure: (u16, &str),
) -> (Proxy, Peer, Peer) {
    let proxy = Proxy::start(&[engine], &[CHUNKS]).await;
    let client = proxy.post(CHAT, "", &chat(stream)).await;
    let mut asked = engine.asked().await;
    asked.answer(200, &chunk("a", "length", 2)).await;
    assert!(asked.read().await);
    asked.answer(failure.0, failure.1).await;
    (proxy, client, asked)
}

#[tokio::test]
async fn a_client_that_has_a_part_of_its_answer_learns_that_the_rest_is_missing() {
    let engine = Engine::start().await;
    for (status, answer) in failures() {
        let (proxy, mut client, _) = second_chunk_fails(&engine, true, (status, &answer)).await;
        let end = client.until("data: [DONE]\n\n").await.expect("the end");
        let error = end.split("data: ").nth(2).expect("an error");
        let error = tree(error.split("\n\n").next().expect("its data"));
        assert_eq!(error["error"]["code"], "bad_gateway", "{error}");
        assert_eq!(proxy.metrics.cut.get(), 1);
        client.closed().await;
    }
}

#[tokio::test]
async fn a_client_that_has_nothing_gets_the_answer_in_one_piece_or_the_engines_error() {
    let engine = Engine::start().await;
    for (status, answer) in failures() {
        let (proxy, mut client, mut asked) =
            second_chunk_fails(&engine, false, (status, &answer)).await;
        if status == 400 {
            asked = engine.connected().await;
        }
        if status != 500 {
            assert!(asked.read().await);
            assert_eq!(asked.body, chat(false));
            asked.answer(200, "{\"all\":1}").await;
        }
        assert!(client.read().await);
        let expected = if status == 500 { (500, &*answer) } else { (200, "{\"all\":1}") };
        assert_eq!((client.status(), &*client.body), expected);
        assert_eq!(whole(&proxy, "answer"), u64::from(status != 500));
    }
}

#[tokio::test]
async fn an_engine_that_is_lost_between_chunks_is_an_error() {
    let engine = Engine::start().await;
    let proxy = Proxy::start(&[&engine], &[CHUNKS]).await;
    let mut client = proxy.post(CHAT, "", &chat(false)).await;
    let mut asked = engine.asked().await;
    asked.write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").await;
    drop(asked);
    assert!(client.read().await);
    assert_eq!(client.status(), 502);
}

#[tokio::test]
async fn only_the_first_chunk_is_handed_over() {
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let proxy = Proxy::pair(&engine, &prefiller, "nixlv2", &[CHUNKS]).await;
    let header = format!("x-prefiller-host-port: {}\r\n", prefiller.address());
    let mut client = proxy.post(CHAT, &header, &chat(false)).await;
    let mut prefill = prefiller.asked().await;
    assert_eq!(tree(&prefill.body)["max_tokens"], 1);
    let usage = r#"{"prompt_tokens_details":{"cached_tokens":1}}"#;
    let answer = format!(r#"{{"kv_transfer_params":{{"at":7}},"usage":{usage}}}"#);
    prefill.answer(200, &answer).await;
    let mut asked = engine.asked().await;
    assert_eq!(tree(&asked.body)["kv_transfer_params"]["at"], 7);
    assert_eq!(so_far(&asked), (Value::Null, 2));
    asked.answer(200, &chunk("a", "length", 2)).await;
    assert!(asked.read().await);
    assert_eq!(tree(&asked.body).get("kv_transfer_params"), None);
    assert_eq!(so_far(&asked), (json!("a"), 2));
    asked.answer(200, &chunk("b", "stop", 1)).await;
    assert!(client.read().await);
    let got = tree(&client.body);
    assert_eq!(got["choices"][0]["message"]["content"], "ab");
    // What the engine that computed the prompt says.
    assert_eq!(got["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
    assert!(prefiller.is_idle());

    let sglang = Proxy::pair(&engine, &prefiller, "sglang", &[CHUNKS]).await;
    let mut client = sglang.post(CHAT, &header, &chat(false)).await;
    prefiller.asked().await.answer(200, "{}").await;
    let mut asked = engine.asked().await;
    assert_eq!(tree(&asked.body)["max_tokens"], 5);
    asked.answer(200, "{}").await;
    assert!(client.read().await);
    assert_eq!(whole(&sglang, "handed_over"), 1);
}
