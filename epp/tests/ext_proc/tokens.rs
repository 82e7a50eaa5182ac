//! Prompts as tokens: who makes them, where they are compared with what engines report, and how
//! they travel on.

use super::plane::*;
use super::pool::*;
use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use stator_epp_signals::WorkerSink;
use stator_epp_signals::tokenizer::{RenderSettings, Renderer};
use stator_events::KvSink;
use stator_model::Model;
use stator_protos::Generation;
use stator_protos::hash::{HashSeed, sequence_hashes};
use stator_protos::kv_event::{KvEvent, Medium, Stored};
use std::num::NonZeroU32;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const BLOCK_SIZE: u32 = 16;
const TOKENIZER: &[u8] = include_bytes!("../../../crates/model/fixtures/tokenizers/llama3.json");
/// Its plug-ins are those of the configuration for engines that publish events.
const PRECISE: &str = include_str!("../../../manifests/epp/configs/precise-prefix-cache.yaml");

fn completion(body: &str) -> [ProcessingRequest; 2] {
    let headers = [("x-request-id", "id"), (":method", "POST"), (":path", "/v1/completions")];
    [request_headers(&headers, false), request_body(body, true)]
}

/// The pod's engine reports that it holds these tokens, from the first on.
fn stored(bed: &Bed, number: u8, tokens: &[u32]) {
    let mut hashes = Vec::new();
    let block_size = NonZeroU32::new(BLOCK_SIZE).expect("it is not 0");
    sequence_hashes(tokens, block_size, HashSeed::new(None, None), &mut hashes);
    let event = KvEvent::Stored(Stored {
        hashes: hashes.iter().map(|hash| hash.0).collect(),
        parent: None,
        tokens: Vec::new(),
        block_size: BLOCK_SIZE,
        medium: Medium::Device,
        lora_name: None,
    });
    bed.pool.apply(worker(number), Generation(1), &[event]);
}

/// Pods whose engines hold nothing, and report what comes.
async fn reporting(config: &str, pods: u8, choices: Choices) -> Bed {
    let engine = |number| Engine { labels: vec![("stator.dev/token-ids", "true")], ..idle(number) };
    let engines: Vec<_> = (0..pods).map(engine).collect();
    let bed = Bed::with(config, &engines, choices).await;
    for number in 0..pods {
        bed.pool.life(worker(number), Generation(1));
        bed.pool.replace(worker(number), Generation(1), Vec::new());
    }
    bed
}

fn measured(bed: &Bed, mode: &str) -> u64 {
    let name = format!("stator_epp_tokenization_total{{mode=\"{mode}\"}} ");
    let lines = bed.served.metrics(&name);
    lines.iter().map(|line| line[name.len()..].parse::<u64>().expect("a count")).sum()
}

/// The model of the tests' tokenizer.
fn model() -> Arc<Model> {
    let files = [("tokenizer.json".to_owned(), Bytes::from_static(TOKENIZER))];
    Arc::new(Model::load("m", &files).expect("the tokenizer is sound"))
}

#[tokio::test]
async fn a_request_goes_where_its_tokens_are_reported() {
    for config in ["", "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: precise-prefix-cache-producer, parameters: {tokenProcessorConfig: {blockSizeTokens: 16}}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer}]}]
"] {
        let bed = reporting(config, 8, Choices::default()).await;
        for number in [5, 2] {
            let tokens: Vec<_> = (0..400).map(|n| n * 8 + u32::from(number)).collect();
            stored(&bed, number, &tokens);
            let body = json!({ "model": "m", "prompt": tokens });
            assert_eq!(bed.finish(completion(&body.to_string())).await, address(number));
        }
        assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (2, 0));
    }
}

/// Token ids join the body, and every other byte of it stays: large integers, key order and
/// spaces.
#[tokio::test]
async fn token_ids_travel_on_with_all_other_bytes_as_they_came() {
    let bed = reporting("", 2, Choices::default()).await;
    let model = model();
    bed.pool.set_tokenizer(Some(model.clone()));
    let text = "hello world, hello tokens ".repeat(20);
    let ids = model.encode_prompt(&text, true).expect("it is text");
    assert!(ids.len() as u32 > 2 * BLOCK_SIZE, "the prompt has blocks");
    stored(&bed, 1, &ids);
    let body = format!(
        "{{ \"seed\":9007199254740993,  \"prompt\" : \"{text}\",\"model\":\"m\",\"top_p\":1e0,\"n\":1}}"
    );
    let routed = bed.route(completion(&body)).await;
    assert_eq!(routed.to(), address(1));
    let sent = String::from_utf8(routed.body.clone()).expect("it is text");
    let parsed: Value = serde_json::from_str(&sent).expect("it is JSON");
    assert_eq!(parsed["nvext"]["token_data"], json!(ids));
    let token_data = json!({ "nvext": { "token_data": ids } }).to_string();
    let member = &token_data[1..token_data.len() - 1];
    let rest = sent.replacen(&format!(",{member}"), "", 1);
    assert_eq!(rest, body, "only the member was added");
    assert_eq!(routed.header("content-length"), Some(sent.len().to_string()));
    assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (1, 0));
}

fn asked(path: &str, body: &Value) -> [ProcessingRequest; 2] {
    let headers = [("x-request-id", "id"), (":method", "POST"), (":path", path)];
    [request_headers(&headers, false), request_body(body.to_string(), true)]
}

/// The model of the tests' tokenizer, with a template of its own.
fn chat_model() -> Arc<Model> {
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}";
    let files = [
        ("tokenizer.json".to_owned(), Bytes::from_static(TOKENIZER)),
        ("chat_template.jinja".to_owned(), Bytes::from_static(template.as_bytes())),
    ];
    Arc::new(Model::load("m", &files).expect("the files are sound"))
}

/// Responses and Messages are the tokens of the chat that says the same; embeddings those of their
/// text. None of them has a field for token ids.
#[tokio::test]
async fn other_apis_are_measured_in_tokens_and_their_bodies_stay() {
    let bed = reporting("", 4, Choices::default()).await;
    let model = chat_model();
    bed.pool.set_tokenizer(Some(model.clone()));
    let text = "hello world, hello tokens ".repeat(20);
    let turns = json!([{"role": "user", "content": text}]);
    let chat =
        json!({"model": "m", "messages": [{"role": "system", "content": "Be brief."}, turns[0]]});
    let chat = chat.to_string();
    let request = stator_api::openai::chat::read(chat.as_bytes()).expect("it is sound");
    let conversation = request.input.conversation().expect("it is one");
    let chat = model.encode_chat(conversation, std::time::SystemTime::now()).expect("it is text");
    stored(&bed, 3, &chat);
    stored(&bed, 1, &model.encode_prompt(&text, true).expect("it is text"));
    for (path, body, number) in [
        ("/v1/responses", json!({"model": "m", "instructions": "Be brief.", "input": text}), 3),
        ("/v1/responses", json!({"model": "m", "instructions": "Be brief.", "input": turns}), 3),
        (
            "/v1/messages",
            json!({"model": "m", "system": "Be brief.", "messages": turns, "max_tokens": 9}),
            3,
        ),
        ("/v1/embeddings", json!({"model": "m", "input": text}), 1),
    ] {
        let routed = bed.route(asked(path, &body)).await;
        assert_eq!(routed.to(), address(number), "{path} {body}");
        assert_eq!(routed.body, body.to_string().as_bytes(), "{path}");
        routed.answered().await;
    }
    assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (4, 0));
}

#[tokio::test]
async fn rankings_and_scores_are_measured_by_their_texts() {
    let bed = Bed::start("", &[0, 1, 2, 3].map(idle)).await;
    let document = "a long story about cities ".repeat(50);
    for (at, (path, body)) in [
        ("/v1/rerank", json!({"model": "m", "query": "q", "documents": [document]})),
        ("/v2/rerank", json!({"query": "q", "documents": [{"text": document}]})),
        ("/score", json!({"text_1": "q", "text_2": [document]})),
        ("/pooling", json!({"model": "m", "input": document})),
    ]
    .into_iter()
    .enumerate()
    {
        let home = bed.finish(asked(path, &body)).await;
        assert_eq!(bed.finish(asked(path, &body)).await, home, "{path}");
        assert_eq!(measured(&bed, "text"), 2 * (at as u64 + 1), "{path}");
    }
}

#[tokio::test]
async fn without_a_tokenizer_prompts_are_measured_as_text_and_that_is_counted() {
    let bed = Bed::start("", &[0, 1, 2, 3].map(idle)).await;
    let body = |turns: usize| {
        let text = "a long story about cities ".repeat(100 * turns);
        format!(r#"{{"model":"m","prompt":"{text}"}}"#)
    };
    let home = bed.finish(completion(&body(1))).await;
    for turns in 2..5 {
        let routed = bed.route(completion(&body(turns))).await;
        assert_eq!(routed.to(), home);
        assert!(routed.body == body(turns).as_bytes(), "the body is as it came");
        routed.answered().await;
    }
    assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (0, 4));
    // A tokenizer that comes later is used from then on.
    bed.pool.set_tokenizer(Some(model()));
    bed.finish(completion(&body(1))).await;
    assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (1, 4));
}

/// A server that answers every request with these token ids, and tells what it was asked.
async fn render_server(ids: Vec<u32>) -> (String, mpsc::UnboundedReceiver<(String, Bytes)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let (asked, log) = mpsc::unbounded_channel();
    let answer = Bytes::from(json!([{ "token_ids": ids }]).to_string());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (asked, answer) = (asked.clone(), answer.clone());
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let (asked, answer) = (asked.clone(), answer.clone());
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await?.to_bytes();
                    // A test that looks no more has dropped the log.
                    let _ = asked.send((path, body));
                    Ok::<_, hyper::Error>(Response::new(Full::new(answer)))
                }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            tokio::spawn(connection);
        }
    });
    (url, log)
}

/// As the configuration for engines with events has it: a render server makes the tokens.
/// Tokens in flight of a chat with a video of which the client tells this.
async fn tokens_of_a_video(told: &[(&str, &str)]) -> f64 {
    let bed = reporting(PRECISE, 1, Choices::default()).await;
    let video = json!({"type": "video_url", "video_url": {"url": "http://videos/1.mp4"}});
    let text = json!({"type": "text", "text": "What is it?"});
    let messages = json!([{"role": "user", "content": [video, text]}]);
    let body = json!({"model": "m", "messages": messages}).to_string();
    let mut headers = vec![(":method", "POST"), (":path", "/v1/chat/completions")];
    headers.extend_from_slice(told);
    let asked = [request_headers(&headers, false), request_body(&body, true)];
    let _routed = bed.route(asked).await;
    let rows = bed.served.metrics("llm_d_epp_inflight_tokens{");
    let level = |row: &String| row.rsplit(' ').next().and_then(|level| level.parse::<f64>().ok());
    rows.iter().filter_map(level).sum()
}

#[tokio::test]
async fn a_video_counts_for_its_frames_as_the_client_tells_of_them() {
    let unknown = tokens_of_a_video(&[]).await;
    let duration = ("x-llm-d-video-duration-seconds", "20");
    let longer = tokens_of_a_video(&[duration]).await;
    // A frame of 640 by 360 is 225 tokens, one of 1280 by 720 four times as much.
    assert_eq!(longer - unknown, 10.0 * 225.0);
    let larger = tokens_of_a_video(&[duration, ("x-llm-d-video-resolution", "1280x720")]).await;
    assert_eq!(larger - unknown, 20.0 * 900.0 - 10.0 * 225.0);
    let odd = tokens_of_a_video(&[("x-llm-d-video-resolution", "large")]).await;
    assert_eq!(odd, unknown);
}

#[tokio::test]
async fn an_external_tokenizer_is_asked_with_the_clients_own_bytes() {
    let ids: Vec<u32> = (100..300).collect();
    let (url, mut log) = render_server(ids.clone()).await;
    let renderer = Renderer::new(RenderSettings { url, ..RenderSettings::default() });
    let renderer = Some(renderer.expect("the address is sound"));
    let config = PRECISE.replace("blockSizeTokens: 64", "blockSizeTokens: 16");
    let bed = reporting(&config, 4, Choices { renderer, ..Choices::default() }).await;
    stored(&bed, 3, &ids);
    let body = r#"{"model":"m", "prompt":"whatever the server makes of it"}"#;
    let routed = bed.route(completion(body)).await;
    assert_eq!(routed.to(), address(3));
    let asked = within(log.recv()).await.expect("the server runs");
    assert_eq!(asked, ("/v1/completions/render".to_owned(), Bytes::from_static(body.as_bytes())));
    let sent: Value = serde_json::from_slice(&routed.body).expect("it is JSON");
    assert_eq!(sent["nvext"]["token_data"], json!(ids));
    assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (1, 0));
}

#[tokio::test]
async fn an_external_tokenizer_that_does_not_answer_costs_no_request() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", gone.local_addr().expect("it is bound"));
    drop(gone);
    let renderer = Renderer::new(RenderSettings { url, ..RenderSettings::default() });
    let renderer = Some(renderer.expect("the address is sound"));
    let bed = reporting(PRECISE, 4, Choices { renderer, ..Choices::default() }).await;
    let body = r#"{"model":"m","prompt":"hello"}"#;
    let routed = bed.route(completion(body)).await;
    assert_eq!(routed.body, body.as_bytes());
    assert_eq!((measured(&bed, "exact"), measured(&bed, "text")), (0, 1));
}
