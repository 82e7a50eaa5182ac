//! Cost of the spans of one request: `cargo bench -p stator-runtime --bench trace`.
//!
//! A request has the spans and attributes that the standalone proxy gives a completion: two spans
//! with six stages, a pick with eight candidates, and its usage. The figures are CPU time of the
//! whole process, so that encoding and sending count, over a collector that throws spans away.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use stator_runtime::log::{Format, LogArgs, init};
use stator_runtime::tls::Listener;
use stator_runtime::trace::{KeyValue, Stages, TARGET};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Requests of a mode that sends spans, and of one that sends none.
const SENDING: u32 = 40_000;
const SILENT: u32 = 1_000_000;
/// Requests between two rests of a mode that sends spans.
const BURST: u32 = 100;
/// A rest, so that the exporter keeps up: a full queue would lose spans, which costs less.
const REST: Duration = Duration::from_millis(25);
/// Runs of each mode, of which the cheapest counts.
const RUNS: u32 = 3;
/// Names the number of requests to the process that is measured.
const REQUESTS: &str = "STATOR_TRACE_BENCH_REQUESTS";
/// Unit of times in `/proc/self/stat`.
const TICKS_PER_S: f64 = 100.0;

/// Spans that arrived at the collector.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

struct Collector;

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans;
        let scopes = resources.into_iter().flat_map(|resource| resource.scope_spans);
        let spans = scopes.map(|scope| scope.spans.len() as u64).sum();
        ARRIVED.fetch_add(spans, Ordering::Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn main() -> anyhow::Result<()> {
    match std::env::var(REQUESTS) {
        Ok(requests) => measure(requests.parse()?),
        Err(_) => compare(),
    }
}

/// Starts a process for each mode, because a process has one subscriber for good.
fn compare() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let tcp = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let listener = Listener::plain(tcp);
    let collector = format!("http://{}", listener.address()?);
    let server =
        tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector));
    runtime.spawn(server.serve_with_incoming(listener.incoming()));

    println!("CPU of the process for the spans of one request");
    let modes = [
        ("off", "none", "always_off", SILENT),
        ("unsampled", "otlp", "always_off", SILENT),
        ("sampled", "otlp", "always_on", SENDING),
    ];
    for (mode, exporter, sampler, requests) in modes {
        let mut cheapest = f64::INFINITY;
        ARRIVED.store(0, Ordering::Relaxed);
        for _ in 0..RUNS {
            let output = Command::new(std::env::current_exe()?)
                .env(REQUESTS, requests.to_string())
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector)
                .env("OTEL_TRACES_EXPORTER", exporter)
                .env("OTEL_TRACES_SAMPLER", sampler)
                .output()?;
            let printed = String::from_utf8(output.stdout)?;
            cheapest = cheapest.min(printed.trim().parse()?);
        }
        let arrived = ARRIVED.load(Ordering::Relaxed) as f64 / f64::from(RUNS * requests);
        println!("{mode:>12}: {cheapest:>6.2} µs; {arrived:.1} spans a request arrived");
    }
    Ok(())
}

/// Prints the microseconds of CPU that one request's spans took.
fn measure(requests: u32) -> anyhow::Result<()> {
    let args = LogArgs { log_level: "info".into(), log_format: Format::Text };
    let traces = init(&args, "stator-bench")?;
    let before = cpu_s()?;
    for at in 1..=requests {
        request();
        if requests == SENDING && at % BURST == 0 {
            std::thread::sleep(REST);
        }
    }
    drop(traces);
    println!("{}", (cpu_s()? - before) * 1e6 / f64::from(requests));
    Ok(())
}

/// The spans of one completion.
fn request() {
    let span = tracing::info_span!(
        target: TARGET, "gateway.request", otel.kind = "server",
        gen_ai.operation.name = "chat",
        gen_ai.request.id = "0af7651916cd43dd8448eb211c80319c",
    );
    let request = Stages::begin(span, || None);
    for stage in ["receive", "parse", "tokenize"] {
        request.enter(stage);
    }
    request.leave();
    let work = request.part("generate");
    work.enter("queue");
    if work.is_sampled() {
        work.set("stator.worker", "5eed/0");
        let costs = "5eed/0=0.1234 ".repeat(8);
        let attributes = vec![
            KeyValue::new("stator.reason", "Cost"),
            KeyValue::new("stator.cached_tokens", 1024),
            KeyValue::new("stator.costs", costs),
        ];
        work.event("picked", attributes);
    }
    work.enter("prefill");
    std::hint::black_box(work.headers());
    work.enter("decode");
    drop(work);
    request.set("gen_ai.usage.input_tokens", 1200);
    request.set("gen_ai.usage.output_tokens", 100);
}

/// CPU time of this process so far, user and system.
fn cpu_s() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 14 and 15 of the line are the 12th and 13th after the name.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS_PER_S)
}
