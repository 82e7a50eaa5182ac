//! A pretend engine, for measuring what stands in front of engines: it speaks the OpenAI chat
//! API and takes no time, or a fixed time for each token.
//!
//! One process is several engines, each on a free loopback port of its own. When all of them
//! listen, one line is printed: their addresses, separated by spaces. Every token is its own
//! write, as with a real engine that streams; with `--step-ms` all streams of one engine emit
//! together, as those of a real batch do. SIGTERM or SIGINT ends the process at once.

use bytes::Bytes;
use clap::Parser;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// What answers are made of; none of them needs escaping in JSON.
const WORDS: [&str; 8] = [" the", " value", " of", " this", " name", " is", " not", " set"];
/// What ends a chunk's choice, or the answer's, before its last token and after it.
const UNFINISHED: &str = ",\"logprobs\":null,\"finish_reason\":null";
const FINISHED: &str = ",\"logprobs\":null,\"finish_reason\":\"length\"";
/// When every answer was made, in Unix seconds; nothing depends on it.
const CREATED: u64 = 1_700_000_000;
/// Tokens of an answer where the request does not say.
const TOKENS_DEFAULT: u64 = 16;
/// Largest request body, 16 MiB.
const BODY_MAX_BYTES: usize = 16 << 20;
/// Connections that may wait to be accepted: thousands of streams start at once.
const BACKLOG: u32 = 4096;

/// A pretend OpenAI-compatible engine.
#[derive(Parser)]
struct Args {
    /// Engines, each on a port of its own, 1 to 64.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: u16,
    /// Name of the served model.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Folder of the model, told to routers that ask for it.
    #[arg(long, default_value = "tiny")]
    model_path: String,
    /// Milliseconds between the steps of an engine, each of which gives one token to every
    /// stream, 0 to 60000; 0 gives every token at once.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    step_ms: u64,
}

/// One engine: what it serves, and what it has counted.
struct Engine {
    args: Arc<Args>,
    /// Changes at each step; `None` where tokens take no time.
    steps: Option<watch::Receiver<u64>>,
    requests: AtomicU64,
    tokens: AtomicU64,
    active: AtomicU64,
    active_max: AtomicU64,
    aborted: AtomicU64,
}

/// The part of a chat request that matters here; the messages are not looked at.
#[derive(Deserialize)]
struct ChatRequest {
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// An answer in the making. Dropping it before its end counts as aborted.
struct Answer {
    engine: Arc<Engine>,
    steps: Option<watch::Receiver<u64>>,
    /// What every chunk, and the whole answer, begins with.
    head: String,
    /// Tokens that it will have, and those that it has.
    tokens: u64,
    sent: u64,
    /// Tokens of the prompt, where usage is to be reported.
    usage: Option<u64>,
    ended: bool,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args = Arc::new(Args::parse());
    let mut addresses = Vec::new();
    for _ in 0..args.engines {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let listener = socket.listen(BACKLOG)?;
        addresses.push(format!("http://{}", listener.local_addr()?));
        tokio::spawn(serve(listener, Arc::new(Engine::new(args.clone()))));
    }
    println!("{}", addresses.join(" "));
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}

async fn serve(listener: TcpListener, engine: Arc<Engine>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, or the peer is gone: others may still be served.
            tokio::task::yield_now().await;
            continue;
        };
        // Where this fails, the peer is gone, and serving ends by itself.
        let _ = stream.set_nodelay(true);
        let engine = engine.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| handle(engine.clone(), request));
            // A connection that breaks shows as an aborted answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Chat completions, and what the routers under test ask an engine before and while they use it.
async fn handle(
    engine: Arc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let Args { model, model_path, .. } = &*engine.args;
    let active = engine.active.load(Relaxed);
    Ok(match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/chat/completions") => chat(engine, request).await,
        (&Method::GET, "/health") => reply(StatusCode::OK, "text/plain", "ok"),
        (&Method::GET, "/stats") => json_reply(engine.stats()),
        (&Method::GET, "/v1/models") => json_reply(json!({"object": "list", "data": [{
            "id": model, "object": "model", "created": CREATED, "owned_by": "fake",
            "root": model_path, "max_model_len": 131_072}]})),
        (&Method::GET, "/server_info") => json_reply(json!({
            "model_path": model_path, "tokenizer_path": model_path, "served_model_name": model,
            "tp_size": 1, "dp_size": 1, "pp_size": 1, "disaggregation_mode": "null",
            "max_total_num_tokens": 1_048_576, "internal_states": [{"load": active}]})),
        (&Method::GET, "/model_info") => json_reply(json!({
            "model_path": model_path, "tokenizer_path": model_path, "served_model_name": model,
            "is_generation": true, "model_type": "llama"})),
        (&Method::GET, "/v1/loads") => json_reply(json!([{
            "dp_rank": 0, "num_reqs": active, "num_waiting_reqs": 0, "num_tokens": active}])),
        (&Method::GET, "/metrics") => reply(
            StatusCode::OK,
            "text/plain; version=0.0.4",
            format!("vllm:num_requests_running{{model_name=\"{model}\"}} {active}\n"),
        ),
        (&Method::GET, "/version") => json_reply(json!({"version": "0.32.0"})),
        _ => refuse(StatusCode::NOT_FOUND, "no such path"),
    })
}

async fn chat(engine: Arc<Engine>, request: Request<Incoming>) -> Response<Body> {
    let body = match Limited::new(request.into_body(), BODY_MAX_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let request: ChatRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let mut answer = Answer::new(engine, &request, body.len() as u64);
    if !request.stream {
        return json_reply(answer.whole().await);
    }
    let events = futures::stream::unfold(answer, |mut answer| async {
        let event = answer.next().await?;
        Some((Ok(Frame::data(event)), answer))
    });
    let mut response = reply(StatusCode::OK, "text/event-stream", "");
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    *response.body_mut() = StreamBody::new(events).boxed_unsync();
    response
}

impl Engine {
    fn new(args: Arc<Args>) -> Self {
        let steps = (args.step_ms > 0).then(|| steps(Duration::from_millis(args.step_ms)));
        let [requests, tokens, active, active_max, aborted] = Default::default();
        Self { args, steps, requests, tokens, active, active_max, aborted }
    }

    fn stats(&self) -> Value {
        json!({
            "requests": self.requests.load(Relaxed), "tokens": self.tokens.load(Relaxed),
            "active": self.active.load(Relaxed), "active_max": self.active_max.load(Relaxed),
            "aborted": self.aborted.load(Relaxed)})
    }
}

/// Ticks that all streams of an engine share. A late step delays those after it, as in an engine.
fn steps(period: Duration) -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    tokio::spawn(async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            sender.send_modify(|step| *step += 1);
        }
    });
    receiver
}

impl Answer {
    fn new(engine: Arc<Engine>, request: &ChatRequest, body_bytes: u64) -> Self {
        let tokens = request.max_completion_tokens.or(request.max_tokens);
        let tokens = tokens.unwrap_or(TOKENS_DEFAULT).max(1);
        let usage = !request.stream
            || request.stream_options.as_ref().is_some_and(|options| options.include_usage);
        // Nothing is tokenized here: a token is about six letters and a space.
        let prompt_tokens = body_bytes / 7;
        let id = engine.requests.fetch_add(1, Relaxed);
        let active = engine.active.fetch_add(1, Relaxed) + 1;
        engine.active_max.fetch_max(active, Relaxed);
        let model = Value::from(engine.args.model.as_str());
        let kind = if request.stream { "chat.completion.chunk" } else { "chat.completion" };
        let head = format!(
            r#"{{"id":"chatcmpl-{id:016x}","object":"{kind}","created":{CREATED},"model":{model},"choices":["#
        );
        let steps = engine.steps.clone();
        Self {
            engine,
            steps,
            head,
            tokens,
            sent: 0,
            usage: usage.then_some(prompt_tokens),
            ended: false,
        }
    }

    /// The next write of a stream: a token, or after the last one the end; `None` after that.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut events = String::with_capacity(2 * (self.head.len() + 128));
        if self.sent == 0 {
            self.event(&mut events, &["{\"role\":\"assistant\",\"content\":\"\"}", UNFINISHED]);
        }
        if self.sent < self.tokens {
            let word = self.word().await;
            self.event(&mut events, &["{\"content\":\"", word, "\"}", UNFINISHED]);
        } else {
            self.event(&mut events, &["{}", FINISHED]);
            if let Some(usage) = self.usage() {
                events.extend(["data: ", &self.head, "],", &usage, "}\n\n"]);
            }
            events.push_str("data: [DONE]\n\n");
            self.ended = true;
        }
        Some(events.into())
    }

    /// The whole answer of a request that is not streamed.
    async fn whole(&mut self) -> String {
        let mut text = String::new();
        while self.sent < self.tokens {
            text.push_str(self.word().await);
        }
        self.ended = true;
        let usage = self.usage().unwrap_or_default();
        let message = r#"{"index":0,"message":{"role":"assistant","content":""#;
        [&self.head, message, &text, "\"}", FINISHED, "}],", &usage, "}"].concat()
    }

    /// Waits for the engine's next step, and says the next word.
    async fn word(&mut self) -> &'static str {
        match &mut self.steps {
            Some(steps) => {
                steps.mark_unchanged();
                // An error would mean that steps have ended, which they never do.
                let _ = steps.changed().await;
            }
            // Lets the connection write what it has, so that every token is its own write.
            None if self.sent > 0 => tokio::task::yield_now().await,
            None => {}
        }
        let word = WORDS[(self.sent % WORDS.len() as u64) as usize];
        self.sent += 1;
        self.engine.tokens.fetch_add(1, Relaxed);
        word
    }

    /// Appends one event whose only choice has the delta that `parts` begin with.
    fn event(&self, events: &mut String, parts: &[&str]) {
        events.extend(["data: ", &self.head, "{\"index\":0,\"delta\":"]);
        events.extend(parts.iter().copied());
        events.push_str("}]}\n\n");
    }

    fn usage(&self) -> Option<String> {
        let (prompt, completion) = (self.usage?, self.tokens);
        let total = prompt + completion;
        let counts = json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total});
        Some(format!("\"usage\":{counts}"))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.engine.active.fetch_sub(1, Relaxed);
        self.engine.aborted.fetch_add(u64::from(!self.ended), Relaxed);
    }
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json_reply(body: impl ToString) -> Response<Body> {
    reply(StatusCode::OK, "application/json", body.to_string())
}

fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    let error = json!({"error": {"message": why, "type": "invalid_request_error", "param": null, "code": null}});
    reply(status, "application/json", error.to_string())
}
