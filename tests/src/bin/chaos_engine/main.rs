//! An engine for chaos and for pods: a pretend vLLM with known answers, which agents start as they
//! start a vLLM.
//!
//! With `--nnodes` it is one engine on several nodes: see [`nodes`].
//!
//! A token follows from all tokens before it, as a model's does, so that an answer that another
//! engine goes on with stays the same. Tokens come one by one at a regular pace. Two engines share a
//! request as over vLLM's NixlConnector: see [`handover`].

mod form;
mod handover;
mod nodes;
mod prompt;

use bytes::Bytes;
use form::Form;
use futures::stream;
use handover::Handover;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prompt::Prompt;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpListener;

/// Time from one token of an answer to the next.
const STEP: Duration = Duration::from_millis(10);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The engine: its name for the model, its way to others, and its counts.
struct Engine {
    model: String,
    handover: Option<Handover>,
    running: AtomicU64,
    prompt_tokens: AtomicU64,
    generated: AtomicU64,
}

/// A request that runs.
struct Running(Arc<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).unwrap_or_else(|| panic!("{name} is missing")).clone()
    };
    let _others = match args.iter().any(|arg| arg == "--nnodes") {
        true => nodes::meet(&value).await?,
        false => Vec::new(),
    };
    let address = format!("{}:{}", value("--host"), value("--port"));
    let listener = TcpListener::bind(address).await?;
    let engine = Arc::new(Engine {
        model: value("--served-model-name"),
        handover: Handover::listen().await?,
        running: AtomicU64::new(0),
        prompt_tokens: AtomicU64::new(0),
        generated: AtomicU64::new(0),
    });
    loop {
        let (stream, _) = listener.accept().await?;
        // Where this fails, the peer is gone, and serving ends by itself.
        let _ = stream.set_nodelay(true);
        let engine = engine.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| handle(engine.clone(), request));
            // A connection that breaks ends its answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Requests for answers, and what an agent asks an engine about itself.
async fn handle(
    engine: Arc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let form = Form::at(request.uri().path()).filter(|_| request.method() == Method::POST);
    if let Some(form) = form {
        return Ok(engine.answer(form, request).await.unwrap_or_else(|refusal| refusal));
    }
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, "/inference/v1/generate") => reply(StatusCode::METHOD_NOT_ALLOWED, ""),
        (&Method::GET, "/health") => reply(StatusCode::OK, ""),
        (&Method::GET, "/version") => reply(StatusCode::OK, json!({ "version": "0.32.0" })),
        (&Method::GET, "/v1/models") => {
            let model = json!({ "id": engine.model, "object": "model", "parent": null,
                "max_model_len": 8192 });
            reply(StatusCode::OK, json!({ "object": "list", "data": [model] }))
        }
        (&Method::GET, "/kv_event_sources") => reply(StatusCode::OK, json!({})),
        (&Method::GET, "/metrics") => reply(StatusCode::OK, engine.metrics()),
        _ => reply(StatusCode::NOT_FOUND, ""),
    })
}

impl Engine {
    /// Answers a request.
    ///
    /// # Errors
    ///
    /// The answer to a body that is no JSON, and to a hand-over that failed.
    async fn answer(
        self: Arc<Self>,
        form: Form,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Response<Body>> {
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        let asked: Option<Value> = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
        let asked = asked.ok_or_else(|| reply(StatusCode::BAD_REQUEST, "not JSON"))?;
        self.running.fetch_add(1, Relaxed);
        let running = Running(self.clone());
        let prompt = form.prompt(&asked);
        let (prompt, kept) = self.share(&asked["kv_transfer_params"], prompt).await?;
        let tokens = form.tokens(&asked);
        self.generated.fetch_add(tokens, Relaxed);
        if asked["stream"] != true {
            let mut prompt = prompt;
            let said: Vec<_> = (0..tokens).map(|_| prompt.say()).collect();
            let mut answer = form.whole(&self.model, &said);
            answer["kv_transfer_params"] = kept;
            return Ok(reply(StatusCode::OK, answer));
        }
        let model = self.model.clone();
        let next = move |(mut prompt, sent, running): (Prompt, u64, Running)| {
            let model = model.clone();
            async move {
                if sent > tokens {
                    return None;
                }
                if sent == tokens {
                    return Some((event("[DONE]"), (prompt, sent + 1, running)));
                }
                tokio::time::sleep(STEP).await;
                let piece = form.piece(&model, prompt.say(), sent + 1 == tokens);
                Some((event(&piece.to_string()), (prompt, sent + 1, running)))
            }
        };
        let events = stream::unfold((prompt, 0, running), next);
        let mut response = reply(StatusCode::OK, "");
        *response.body_mut() = StreamBody::new(events).boxed_unsync();
        let kind = "text/event-stream".parse().expect("a value");
        response.headers_mut().insert("content-type", kind);
        Ok(response)
    }

    /// The prompt as this engine has it, and what another one needs to go on from it.
    async fn share(&self, told: &Value, prompt: Prompt) -> Result<(Prompt, Value), Response<Body>> {
        let failed = |why: &str| {
            let error = json!({ "message": why, "type": "InternalServerError", "code": 500 });
            reply(StatusCode::INTERNAL_SERVER_ERROR, json!({ "error": error }))
        };
        if told["do_remote_prefill"] == true {
            let fetched =
                handover::fetch(told).await.map_err(|error| failed(&error.to_string()))?;
            return Ok((prompt.after(fetched), Value::Null));
        }
        self.prompt_tokens.fetch_add(prompt.length() as u64, Relaxed);
        if told["do_remote_decode"] != true {
            return Ok((prompt, Value::Null));
        }
        let Some(handover) = &self.handover else { return Err(failed("there is no connector")) };
        let kept = handover.keep(&prompt);
        Ok((prompt, kept))
    }

    /// The engine's description of itself.
    fn metrics(&self) -> String {
        let labels = format!("engine=\"0\",model_name=\"{}\"", self.model);
        let [running, prompt, generated] =
            [&self.running, &self.prompt_tokens, &self.generated].map(|count| count.load(Relaxed));
        format!(
            "vllm:num_requests_running{{{labels}}} {running}\n\
             vllm:num_requests_waiting{{{labels}}} 0\n\
             vllm:kv_cache_usage_perc{{{labels}}} 0.1\n\
             vllm:prompt_tokens_total{{{labels}}} {prompt}\n\
             vllm:generation_tokens_total{{{labels}}} {generated}\n\
             vllm:cache_config_info{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"16384\"}} 1.0\n"
        )
    }
}

fn event(data: &str) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(format!("data: {data}\n\n").into()))
}

fn reply(status: StatusCode, body: impl ToString) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response
}
