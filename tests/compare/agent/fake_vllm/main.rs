//! A pretend vLLM, for measuring the agent in front of it: token ids in and out, KV events.
//!
//! When it listens, one line is printed: its URL. All streams emit one token per step, as those of
//! a real batch do, each as its own write. A token's id is when it was made, in microseconds since
//! the Unix epoch, modulo 2^32, so that whoever receives it knows how long it was on its way.
//! `POST /bench/events` has KV events published, see [`events`]. SIGTERM or SIGINT ends the process.

mod answer;
mod events;

use answer::{Answer, steps};
use bytes::Bytes;
use clap::Parser;
use events::{Events, Order};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Largest request body, 16 MiB.
const BODY_MAX_BYTES: usize = 16 << 20;
/// Connections that may wait to be accepted: thousands of streams start at once.
const BACKLOG: u32 = 4096;
/// Tokens per KV block.
const BLOCK_SIZE: u32 = 16;

/// A pretend vLLM.
#[derive(Parser)]
struct Args {
    /// Microseconds between steps, each of which gives one token to every stream, 0 to 60000000;
    /// 0 gives every token at once.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(0..=60_000_000))]
    step_us: u64,
    /// KV blocks that it says it has.
    #[arg(long, default_value_t = 1 << 20)]
    blocks: u32,
    /// Folder for the sockets of KV events; without it none are published.
    #[arg(long)]
    events: Option<PathBuf>,
}

/// The engine: what it says of itself, and what it counts.
struct Engine {
    blocks: u32,
    steps: Option<watch::Receiver<u64>>,
    events: Option<Events>,
    requests: AtomicU64,
    active: Arc<AtomicU64>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;
/// Why it does not run; only printed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let events = match &args.events {
        Some(folder) => Some(Events::bind(folder).await?),
        None => None,
    };
    let engine = Arc::new(Engine {
        blocks: args.blocks,
        steps: (args.step_us > 0).then(|| steps(Duration::from_micros(args.step_us))),
        events,
        requests: AtomicU64::new(0),
        active: Arc::default(),
    });
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let listener = socket.listen(BACKLOG)?;
    println!("http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        () = serve(listener, engine) => Ok(()),
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
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
            // A connection that breaks ends its answer.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Requests for tokens, and what an agent asks an engine about itself.
async fn handle(
    engine: Arc<Engine>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let answer = match (request.method(), request.uri().path()) {
        (&Method::POST, "/inference/v1/generate") => generate(&engine, request).await,
        (&Method::GET, "/inference/v1/generate") => {
            Ok(reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "post"))
        }
        (&Method::POST, "/bench/events") => publish(&engine, request).await,
        (&Method::GET, "/health") => Ok(reply(StatusCode::OK, "text/plain", "")),
        (&Method::GET, "/version") => Ok(json_reply(json!({"version": "0.32.0"}))),
        (&Method::GET, "/v1/models") => Ok(json_reply(json!({"object": "list", "data": [
            {"id": "fake", "object": "model", "root": "fake", "parent": null, "max_model_len": 131_072}]}))),
        (&Method::GET, "/kv_event_sources") => {
            Ok(json_reply(engine.events.as_ref().map_or_else(|| json!({}), Events::sources)))
        }
        (&Method::GET, "/metrics") => Ok(reply(StatusCode::OK, "text/plain", engine.metrics())),
        _ => Ok(reply(StatusCode::NOT_FOUND, "text/plain", "no such path")),
    };
    Ok(answer.unwrap_or_else(|error| {
        let error = json!({"error": {"message": error.to_string(), "code": 400}});
        reply(StatusCode::BAD_REQUEST, "application/json", error.to_string())
    }))
}

async fn generate(engine: &Engine, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let asked = serde_json::from_slice(&body(request).await?)?;
    let id = engine.requests.fetch_add(1, Relaxed);
    let answer = Answer::new(id, &asked, engine.steps.clone(), engine.active.clone());
    let events = futures::stream::unfold(answer, |mut answer| async {
        let event = answer.next().await?;
        Some((Ok(Frame::data(event)), answer))
    });
    let mut response = reply(StatusCode::OK, "text/event-stream; charset=utf-8", "");
    *response.body_mut() = StreamBody::new(events).boxed_unsync();
    Ok(response)
}

/// Publishes what is ordered, and answers when all of it is out.
async fn publish(engine: &Engine, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let order: Order = serde_json::from_slice(&body(request).await?)?;
    let events = engine.events.as_ref().ok_or("--events was not given")?;
    let seconds = events.publish(order).await?;
    Ok(json_reply(json!({ "seconds": seconds })))
}

async fn body(request: Request<Incoming>) -> Result<Bytes, Failure> {
    Ok(Limited::new(request.into_body(), BODY_MAX_BYTES).collect().await?.to_bytes())
}

impl Engine {
    fn metrics(&self) -> String {
        let labels = "engine=\"0\",model_name=\"fake\"";
        let (active, requests) = (self.active.load(Relaxed), self.requests.load(Relaxed));
        let blocks = self.blocks;
        format!(
            "vllm:num_requests_running{{{labels}}} {active}\n\
             vllm:num_requests_waiting{{{labels}}} 0\n\
             vllm:kv_cache_usage_perc{{{labels}}} 0.5\n\
             vllm:request_success_total{{{labels}}} {requests}\n\
             vllm:cache_config_info{{block_size=\"{BLOCK_SIZE}\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}} 1.0\n"
        )
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
