//! An engine for chaos: a pretend vLLM with known answers, which agents start as they start a vLLM.
//!
//! With `--nnodes` it is one engine on several nodes: the first serves once all others have met it,
//! and they end when it ends.
//!
//! A token follows from all tokens before it, as a model's does, so that an answer that another
//! engine goes on with stays the same. Tokens come one by one at a regular pace.

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// Time from one token of an answer to the next.
const STEP: Duration = Duration::from_millis(10);
/// The tokens of answers: those of whole words, none of which ends an answer.
const TOKENS: std::ops::Range<u32> = 300..2800;
/// The engine's description of itself.
const METRICS: &str = r#"vllm:num_requests_running{engine="0",model_name="stator-tiny"} 0
vllm:num_requests_waiting{engine="0",model_name="stator-tiny"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="stator-tiny"} 0.1
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="16384"} 1.0
"#;

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).unwrap_or_else(|| panic!("{name} is missing")).clone()
    };
    let _others = match args.iter().any(|arg| arg == "--nnodes") {
        true => meet(&value).await?,
        false => Vec::new(),
    };
    let address = format!("{}:{}", value("--host"), value("--port"));
    let listener = TcpListener::bind(address).await?;
    let model: &str = value("--served-model-name").leak();
    loop {
        let (stream, _) = listener.accept().await?;
        // Where this fails, the peer is gone, and serving ends by itself.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(|request| handle(model, request));
            // A connection that breaks ends its answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Meets the other nodes, and returns the connections to them. On all but the first it returns only
/// when that has ended.
async fn meet(value: &impl Fn(&str) -> String) -> std::io::Result<Vec<TcpStream>> {
    let number = |name: &str| value(name).parse::<u16>().expect("a number");
    let (nodes, port) = (number("--nnodes"), number("--master-port"));
    if number("--node-rank") > 0 {
        let leader = value("--master-addr");
        let mut stream = loop {
            match TcpStream::connect((leader.as_str(), port)).await {
                Ok(stream) => break stream,
                // Its name, its node and its process all come in their own time.
                Err(_) => tokio::time::sleep(STEP).await,
            }
        };
        println!("met {leader}");
        stream.read_u8().await?;
    }
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    let mut others = Vec::new();
    while others.len() + 1 < usize::from(nodes) {
        others.push(listener.accept().await?.0);
    }
    Ok(others)
}

/// Requests for tokens, and what an agent asks an engine about itself.
async fn handle(model: &str, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::POST, "/inference/v1/generate") => generate(request).await,
        (&Method::GET, "/inference/v1/generate") => reply(StatusCode::METHOD_NOT_ALLOWED, ""),
        (&Method::GET, "/health") => reply(StatusCode::OK, ""),
        (&Method::GET, "/version") => reply(StatusCode::OK, json!({ "version": "0.32.0" })),
        (&Method::GET, "/v1/models") => {
            let model =
                json!({ "id": model, "object": "model", "parent": null, "max_model_len": 8192 });
            reply(StatusCode::OK, json!({ "object": "list", "data": [model] }))
        }
        (&Method::GET, "/kv_event_sources") => reply(StatusCode::OK, json!({})),
        (&Method::GET, "/metrics") => reply(StatusCode::OK, METRICS),
        _ => reply(StatusCode::NOT_FOUND, ""),
    })
}

async fn generate(request: Request<Incoming>) -> Response<Body> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes());
    let asked: Option<Value> = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
    let Some(asked) = asked else { return reply(StatusCode::BAD_REQUEST, "not JSON") };
    let prompt = asked["token_ids"].as_array().map_or(&[][..], Vec::as_slice);
    let state = prompt.iter().filter_map(Value::as_u64).fold(0, |state, token| mix(state ^ token));
    let tokens = asked["sampling_params"]["max_tokens"].as_u64().unwrap_or(1);
    if asked["stream"] != true {
        let (mut state, mut ids) = (state, Vec::new());
        for _ in 0..tokens {
            let token = token(state);
            state = mix(state ^ u64::from(token));
            ids.push(token);
        }
        return reply(StatusCode::OK, said(&ids, true));
    }
    let events = stream::unfold((state, 0), move |(state, sent)| async move {
        if sent > tokens {
            return None;
        }
        if sent == tokens {
            return Some((event("[DONE]"), (state, sent + 1)));
        }
        tokio::time::sleep(STEP).await;
        let token = token(state);
        let event = event(&said(&[token], sent + 1 == tokens).to_string());
        Some((event, (mix(state ^ u64::from(token)), sent + 1)))
    });
    let mut response = reply(StatusCode::OK, "");
    *response.body_mut() = StreamBody::new(events).boxed_unsync();
    response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a value"));
    response
}

fn event(data: &str) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(format!("data: {data}\n\n").into()))
}

/// Tokens of an answer as vLLM says them.
fn said(tokens: &[u32], last: bool) -> Value {
    let finish = last.then_some("length");
    let choice = json!({ "index": 0, "finish_reason": finish, "token_ids": tokens });
    json!({ "request_id": "generate-tokens-0", "choices": [choice] })
}

/// The token that follows what has led to this state.
fn token(state: u64) -> u32 {
    TOKENS.start + (state >> 32) as u32 % (TOKENS.end - TOKENS.start)
}

/// Scrambles a number so that neighbours have nothing in common.
///
/// Source: the output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn reply(status: StatusCode, body: impl ToString) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response
}
