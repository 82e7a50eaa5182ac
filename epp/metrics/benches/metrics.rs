//! Cost of metrics: `cargo bench -p stator-epp-metrics`.
//!
//! Plain loops and plain printing. A streamed request is two lookups by labels and some
//! twenty-five atomic changes, a chunk of it two; the deprecated twins cost nothing before somebody
//! reads the page. The labels are those of ten models and fifty flows.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use stator_body::Usage;
use stator_epp_metrics::{Build, EppMetrics, FinishedRequest, RequestLabels, RequestMetrics};
use stator_epp_scheduler::Endpoint;
use stator_protos::{WorkerId, WorkerRank};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which each line is measured.
const MEASURE: Duration = Duration::from_millis(300);
const MODELS: usize = 10;
const FLOWS: usize = 20;

/// Measures `work` and prints what one run takes.
fn measure(name: &str, mut work: impl FnMut(usize)) {
    let warm = Instant::now();
    while warm.elapsed() < MEASURE / 10 {
        work(0);
    }
    let (start, mut runs) = (Instant::now(), 0);
    while start.elapsed() < MEASURE {
        work(runs);
        runs += 1;
    }
    let nanos = start.elapsed().as_secs_f64() * 1e9 / runs as f64;
    println!("{name:<44} {nanos:>12.0} ns");
}

/// Records a streamed request, without its chunks.
fn request(metrics: &EppMetrics, request: &RequestMetrics, endpoint: &Endpoint) {
    let running = request.received();
    request.sized(20_000);
    metrics.decisions.decided(request, Duration::from_micros(30), Some(endpoint));
    metrics.process.request_processed(Duration::from_micros(300));
    request.first_token(Duration::from_millis(200), true);
    let usage = Usage { prompt_tokens: 5000, completion_tokens: 300, ..Usage::default() };
    request.finished(&FinishedRequest {
        duration: Duration::from_secs(6),
        first_token: Some(Duration::from_millis(200)),
        streaming: true,
        usage: Some(Usage { cached_tokens: Some(4000), ..usage }),
        response_bytes: 60_000,
    });
    drop(running);
}

fn endpoint() -> Endpoint {
    Endpoint {
        worker: WorkerRank { worker: WorkerId(1), rank: 0 },
        uid: "1".into(),
        name: "decode-7d9f-rank-0".into(),
        pod: "decode-7d9f".into(),
        namespace: "serving".into(),
        address: ([10, 0, 0, 1], 8000).into(),
        labels: Arc::default(),
        roles: Default::default(),
    }
}

fn main() {
    let mut registry = Registry::default();
    let metrics = EppMetrics::register(Build::default(), &mut registry);
    let models: Vec<_> = (0..MODELS).map(|n| format!("meta-llama/Llama-{n}-70B")).collect();
    let flows: Vec<_> = (0..FLOWS).map(|n| format!("tenant-{n}")).collect();
    let labels = |run: usize| RequestLabels {
        model: &models[run % MODELS],
        target_model: &models[run % MODELS],
        fairness_id: &flows[run / MODELS % FLOWS],
        priority: 0,
    };
    let endpoint = endpoint();
    for run in 0..MODELS * FLOWS {
        request(&metrics, &metrics.requests.of(&labels(run)), &endpoint);
    }
    measure("find a request's metrics", |run| {
        black_box(metrics.requests.of(black_box(&labels(run))));
    });
    let known = metrics.requests.of(&labels(0));
    measure("all events of a request", |_| request(&metrics, black_box(&known), &endpoint));
    measure("a chunk", |_| known.chunk(black_box(Duration::from_millis(20))));
    let mut text = String::new();
    measure("write the page of 200 sets of labels", |_| {
        text.clear();
        encode_registry(&mut text, &registry).expect("writing to a string cannot fail");
    });
    println!("the page has {} bytes", text.len());
}
