//! One trace for one request, from the proxy to the engine, as a collector gets it.

use crate::agents::completion;
use crate::lifecycle::{agent_with, gauge_becomes};
use crate::suite::tokens;
use crate::support::{chat, ready, up_with};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server as service;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;
use stator_tests::http::{Client, Events};
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

/// The environment of processes whose spans are collected.
pub(crate) struct Environment {
    collector: String,
}

impl Environment {
    pub(crate) fn variables(&self) -> [(&str, &str); 2] {
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &self.collector), ("OTEL_BSP_SCHEDULE_DELAY", "50")]
    }
}

/// Spans that arrived, of all processes.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl service::TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let mut spans = self.0.lock().expect("nobody panicked");
        spans.extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves on a free port, and returns the environment that has a process send spans here.
    pub(crate) async fn serve(&self) -> Environment {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let service = service::TraceServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Environment { collector: at }
    }

    /// The trace's edges, `parent/child` by the names of spans; `client` is the span of the test.
    fn tree(&self) -> BTreeSet<String> {
        let spans = self.0.lock().expect("nobody panicked");
        let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let own = spans.iter().filter(|span| hex(&span.trace_id) == TRACE);
        let parent = |span: &Span| {
            let found = spans.iter().find(|other| other.span_id == span.parent_span_id);
            match found {
                Some(parent) => parent.name.clone(),
                None if hex(&span.parent_span_id) == CLIENT => "client".to_owned(),
                None => "nobody".to_owned(),
            }
        };
        own.map(|span| format!("{}/{}", parent(span), span.name)).collect()
    }

    /// Waits until the trace has these edges.
    async fn has(&self, wanted: &[&str]) {
        soon("the whole tree", async {
            while !wanted.iter().all(|edge| self.tree().contains(*edge)) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Whether a span of this name says that it failed.
    fn has_failed(&self, name: &str) -> bool {
        let spans = self.0.lock().expect("nobody panicked");
        let is_failed = |span: &&Span| span.status.as_ref().map(|status| status.code());
        let mut named = spans.iter().filter(|span| span.name == name);
        named.any(|span| is_failed(&span) == Some(StatusCode::Error))
    }

    /// Numbers of an event, by name, once so many spans have one like it: those of the last.
    pub(crate) async fn numbers(&self, event: &str, count: usize) -> BTreeMap<String, f64> {
        let find = || {
            let spans = self.0.lock().expect("nobody panicked");
            let events = spans.iter().flat_map(|span| &span.events);
            events.filter(|of| of.name == event).nth(count - 1).cloned()
        };
        let found = soon("the event", async {
            loop {
                match find() {
                    Some(found) => break found,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        let number = |pair: KeyValue| match pair.value.and_then(|value| value.value) {
            Some(Value::IntValue(number)) => Some((pair.key, number as f64)),
            Some(Value::DoubleValue(number)) => Some((pair.key, number)),
            _ => None,
        };
        found.await.attributes.into_iter().filter_map(number).collect()
    }

    /// Events of the span of this name.
    fn events(&self, name: &str) -> Vec<String> {
        let spans = self.0.lock().expect("nobody panicked");
        let named = spans.iter().filter(|span| span.name == name);
        named.flat_map(|span| span.events.iter().map(|event| event.name.clone())).collect()
    }
}

/// A client whose requests are of the test's trace.
fn traced(client: Client) -> Client {
    client.with_header("traceparent", &format!("00-{TRACE}-{CLIENT}-01"))
}

/// A streamed chat that has begun.
async fn streamed(client: &Client, prompt: &str, max_tokens: u32) -> Events {
    let mut body = chat(prompt, max_tokens);
    body["stream"] = json!(true);
    client.stream("/v1/chat/completions", &body).await
}

/// A proxy and agents that all send their spans to one collector.
struct Fleet {
    client: Client,
    agents: Vec<Process>,
    _proxy: Process,
    _home: tempfile::TempDir,
}

impl Fleet {
    /// Starts an agent of one worker for each list of flags, and waits until the proxy knows all.
    async fn start(environment: &Environment, agents: &[&[&str]], flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let dir = format!("--discovery-dir={}", home.path().display());
        let variables = environment.variables();
        let start =
            |flags: &&[&str]| agent_with(&dir, &[&["--workers=1"], *flags].concat(), &variables);
        let agents: Vec<_> = agents.iter().map(start).collect();
        let args = [&["proxy", "--http-port=0", "--metrics-port=0", &dir], flags].concat();
        let mut proxy = Process::start_with(&args, &variables);
        let client = traced(Client::new(ready(&mut proxy).await));
        gauge_becomes(&client, "stator_proxy_workers", agents.len() as f64).await;
        Self { client, agents, _proxy: proxy, _home: home }
    }
}

/// Slow enough for an agent to be killed in the middle of an answer.
const SLOW: &[&str] = &["--engine=sim", "--sim-step-ms=20", "--lease-ms=60000"];

#[tokio::test]
async fn a_collector_sees_proxy_and_agent_in_one_tree() {
    let collector = Collector::default();
    let environment = collector.serve().await;
    let args = ["up", "--http-port=0", "--engine=sim", "--sim-preset=none"];
    let up = up_with(Process::start_with(&args, &environment.variables())).await;
    let client = traced(up.client.clone());
    streamed(&client, "Hello", 8).await.rest().await;
    let wanted = [
        "client/gateway.request",
        "gateway.request/receive",
        "gateway.request/parse",
        "gateway.request/tokenize",
        "gateway.request/generate",
        "generate/queue",
        "generate/prefill",
        "generate/decode",
        "generate/worker.generate",
        "worker.generate/prefill",
        "worker.generate/decode",
    ];
    collector.has(&wanted).await;
    assert!(!collector.has_failed("gateway.request"));
    assert!(collector.events("queue").contains(&"picked".to_owned()));
    assert!(collector.events("decode").contains(&"first token".to_owned()));
}

#[tokio::test]
async fn a_stream_that_goes_on_elsewhere_has_a_span_on_each_worker() {
    let collector = Collector::default();
    let environment = collector.serve().await;
    let mut fleet = Fleet::start(&environment, &[SLOW, SLOW], &[]).await;
    let mut stream = streamed(&fleet.client, "Once upon a time", 100).await;
    stream.until("data: ").await;
    let worker = stream.response.headers()["x-stator-worker-id"].to_str().unwrap().to_owned();
    for agent in &mut fleet.agents {
        let workers = agent.event("serving").await["workers"].as_str().unwrap().to_owned();
        if workers.contains(&worker) {
            signal(agent.id(), "KILL");
        }
    }
    stream.rest().await;
    let wanted = [
        "gateway.request/generate",
        "generate/decode",
        "gateway.request/migrate",
        "migrate/queue",
        "migrate/prefill",
        "migrate/decode",
        "migrate/worker.generate",
    ];
    collector.has(&wanted).await;
    assert!(collector.has_failed("generate"), "its worker was killed");
    assert!(!collector.has_failed("migrate"));
    assert!(!collector.has_failed("gateway.request"), "the client noticed nothing");
}

#[tokio::test]
async fn a_prompt_that_another_worker_computes_has_spans_of_both() {
    let collector = Collector::default();
    let environment = collector.serve().await;
    let agents: [&[&str]; 2] = [&["--role=prefill"], &["--role=decode"]];
    let fleet = Fleet::start(&environment, &agents, &["--router-split=always"]).await;
    let prompt = "Tell me about the sea. ".repeat(20);
    streamed(&fleet.client, &prompt, 4).await.rest().await;
    let wanted = [
        "gateway.request/generate",
        "generate/prefill",
        "generate/decode",
        "generate/worker.generate",
        "worker.generate/transfer",
        "worker.generate/decode",
        "worker.generate/worker.prefill",
    ];
    collector.has(&wanted).await;
    assert!(!collector.has_failed("gateway.request"));
}

#[tokio::test]
async fn a_request_that_fails_says_so_in_its_span() {
    let collector = Collector::default();
    let environment = collector.serve().await;
    let fleet = Fleet::start(&environment, &[SLOW], &["--worker-wait-ms=10"]).await;
    let mut stream = streamed(&fleet.client, "Once upon a time", 100).await;
    stream.until("data: ").await;
    signal(fleet.agents[0].id(), "KILL");
    let rest = stream.rest().await;
    assert!(rest.last().is_some_and(|event| event["error"].is_object()), "{rest:?}");
    collector.has(&["client/gateway.request", "gateway.request/generate"]).await;
    assert!(collector.has_failed("generate"), "its worker was killed");
    assert!(collector.has_failed("gateway.request"), "nobody else could answer");
}

#[tokio::test]
async fn a_request_that_takes_kv_from_tiers_says_how_much_and_how_long_it_waited() {
    let collector = Collector::default();
    let environment = collector.serve().await;
    let room = ["--block-size=16", "--total-blocks=32", "--kv-host-gb=0.05", "--model-name=tiny"];
    let fleet = Fleet::start(&environment, &[&room], &[]).await;
    // The second prompt takes the engine's memory from the first.
    for prompt in [1, 2, 1] {
        let reply =
            fleet.client.post("/v1/completions", &completion(&tokens(prompt, 300), 4)).await;
        assert!(reply.status.is_success(), "{}", reply.json());
    }
    let numbers = collector.numbers("kv tiers", 1).await;
    assert!(numbers["kv.host_blocks"] > 0.0 && numbers["kv.bytes"] > 0.0, "{numbers:?}");
    assert!(numbers["kv.asked_blocks"] >= numbers["kv.host_blocks"], "{numbers:?}");
    assert!(numbers["kv.wait_ms"] >= 0.0, "{numbers:?}");
}
