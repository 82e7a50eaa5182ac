//! What a request costs the agent's thread, with an engine that answers at once from another one.
//! Prints a table; takes a few seconds. CPU time is that of the asking thread alone.
//!
//! `cargo bench -p stator-dialect --bench request`

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use stator_dialect::{Ask, Dialect, Hand, Kind, Options, connect};
use stator_protos::worker::Sampling;

const STREAM: &[u8] =
    include_bytes!("../fixtures/vllm-0.32.0/main/31-generate-tokens-stream.response.sse");
const REQUESTS: u32 = 2000;

fn main() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("an address")).expect("main waits");
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service_fn(answer)),
                );
            }
        });
    });
    let address = receiver.recv().expect("the server starts");
    let url = format!("http://{address}");
    let dialect = connect(Kind::Vllm, Options { url, ..Options::default() }).expect("a URL");
    println!("{:<24} {:>14} {:>14}", "tokens of the prompt", "us/request", "CPU us/request");
    for prompt in [10, 1000, 10_000] {
        let prompt: Arc<[u32]> = (0..prompt).map(|id| id % 100_000).collect();
        let (wall, cpu) = runtime().block_on(measure(&dialect, &prompt));
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(REQUESTS);
        let cpu = cpu.map_or_else(|| "-".into(), |cpu| format!("{:.1}", each(cpu)));
        println!("{:<24} {:>14.1} {cpu:>14}", prompt.len(), each(wall));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn answer(
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    // Read, as an engine does.
    let _ = request.into_body().collect().await;
    Ok(http::Response::new(Full::new(Bytes::from_static(STREAM))))
}

async fn measure(dialect: &Arc<dyn Dialect>, prompt: &Arc<[u32]>) -> (Duration, Option<Duration>) {
    ask(dialect, prompt).await;
    let (start, cpu) = (Instant::now(), cpu_time());
    for _ in 0..REQUESTS {
        ask(dialect, prompt).await;
    }
    (start.elapsed(), cpu_time().zip(cpu).map(|(end, start)| end - start))
}

async fn ask(dialect: &Arc<dyn Dialect>, prompt: &Arc<[u32]>) {
    let ask = Ask {
        id: "bench".into(),
        tokens: prompt.clone(),
        sampling: Sampling::neutral().into(),
        cache_salt: None,
        lora: None,
        priority: 0,
        rank: None,
        trace: None,
        kv_hint: None,
        hand: Hand::Whole,
    };
    let mut answer = dialect.generate(ask).await.expect("an answer");
    while answer.next().await.expect("more of it").is_some() {}
}

/// Time that this thread was on a processor, where the system tells.
fn cpu_time() -> Option<Duration> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    told.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
