//! A pretend engine that costs as little as one can, for measuring a gateway and its endpoint
//! picker: it throws bodies away unread and answers all requests alike.
//!
//! One process is many engines, each on a free loopback port of its own. When all of them listen,
//! one line is printed: their addresses, separated by spaces. `/metrics` is a page of the size and
//! kind of vLLM's; with `--named-metrics` its `name[]` parameter is obeyed, as Prometheus' own
//! Python client does. SIGTERM or SIGINT ends the process at once.

use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};

/// What every request is answered with.
const ANSWER: &str = r#"{"id":"chatcmpl-0","object":"chat.completion","created":1700000000,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"the value of this name"},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105}}"#;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// Size of the metrics page in bytes; vLLM's is 40 to 70 KB.
const PAGE_BYTES: usize = 40 << 10;
/// What a picker asks for.
const GAUGES: [(&str, &str, &str); 4] = [
    ("vllm:num_requests_running", "engine=\"0\",model_name=\"tiny\"", "3.0"),
    ("vllm:num_requests_waiting", "engine=\"0\",model_name=\"tiny\"", "1.0"),
    ("vllm:kv_cache_usage_perc", "engine=\"0\",model_name=\"tiny\"", "0.25"),
    ("vllm:cache_config_info", "block_size=\"16\",engine=\"0\",num_gpu_blocks=\"8192\"", "1.0"),
];
/// What else is on the page, by the beginning of its name.
const HISTOGRAMS: [&str; 8] = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
];

/// Pretend engines that answer at once.
#[derive(Parser)]
struct Args {
    /// Engines, each on a port of its own, 1 to 1024.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Serve only the metrics that are asked for by name.
    #[arg(long)]
    named_metrics: bool,
}

/// The metrics page, and the part of it that was asked for last.
struct Page {
    whole: Bytes,
    named: bool,
    last: Mutex<(String, Bytes)>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let page = Arc::new(Page::new(args.named_metrics));
    let mut addresses = Vec::new();
    for _ in 0..args.engines {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let listener = socket.listen(BACKLOG)?;
        addresses.push(listener.local_addr()?.to_string());
        tokio::spawn(serve(listener, page.clone()));
    }
    println!("{}", addresses.join(" "));
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}

async fn serve(listener: TcpListener, page: Arc<Page>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, or the peer is gone: others may still be served.
            tokio::task::yield_now().await;
            continue;
        };
        // Where this fails, the peer is gone, and serving ends by itself.
        let _ = stream.set_nodelay(true);
        let page = page.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| handle(page.clone(), request));
            // A connection that breaks is its client's to notice.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn handle(
    page: Arc<Page>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let uri = request.uri();
    if uri.path() == "/metrics" {
        let part = page.part(uri.query().unwrap_or_default());
        return Ok(reply(StatusCode::OK, "text/plain; version=0.0.4", part));
    }
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return Ok(reply(StatusCode::BAD_REQUEST, "text/plain", Bytes::new()));
        }
    }
    Ok(reply(StatusCode::OK, "application/json", Bytes::from_static(ANSWER.as_bytes())))
}

impl Page {
    fn new(named: bool) -> Self {
        let mut page = String::with_capacity(PAGE_BYTES + 4096);
        for (name, labels, value) in GAUGES {
            let _ = write!(page, "# HELP {name} What it says.\n# TYPE {name} gauge\n");
            let _ = writeln!(page, "{name}{{{labels}}} {value}");
        }
        for round in 0.. {
            let histogram = HISTOGRAMS[round % HISTOGRAMS.len()];
            let name = format!("vllm:{histogram}_{}", round / HISTOGRAMS.len());
            let _ = write!(page, "# HELP {name} Histogram of it.\n# TYPE {name} histogram\n");
            for bucket in 0..24 {
                let labels = format!("engine=\"0\",le=\"{}.0\",model_name=\"tiny\"", 1 << bucket);
                let _ = writeln!(page, "{name}_bucket{{{labels}}} {}.0", 100 * bucket);
            }
            if page.len() >= PAGE_BYTES {
                break;
            }
        }
        Self { whole: page.into(), named, last: Mutex::default() }
    }

    /// What a reader gets who asked with this query.
    fn part(&self, query: &str) -> Bytes {
        if !self.named || query.is_empty() {
            return self.whole.clone();
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != query {
            *last = (query.to_owned(), self.select(query).into());
        }
        last.1.clone()
    }

    fn select(&self, query: &str) -> String {
        let names: Vec<_> = query.split('&').filter_map(|pair| pair.split('=').nth(1)).collect();
        let page = String::from_utf8_lossy(&self.whole);
        let wanted = |line: &&str| names.iter().any(|name| line.starts_with(name));
        page.lines().filter(wanted).map(|line| format!("{line}\n")).collect()
    }
}

fn reply(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
