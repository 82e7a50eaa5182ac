//! One trace for one request, from the proxy to the engine, as a collector gets it.

use crate::support::{chat, up_with};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server as service;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use stator_tests::process::Process;
use stator_tests::soon;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

/// Spans that arrived, of all processes.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

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
    async fn serve(&self) -> Vec<(&'static str, String)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let service = service::TraceServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        vec![("OTEL_EXPORTER_OTLP_ENDPOINT", at), ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned())]
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

    /// Events of the span of this name.
    fn events(&self, name: &str) -> Vec<String> {
        let spans = self.0.lock().expect("nobody panicked");
        let named = spans.iter().filter(|span| span.name == name);
        named.flat_map(|span| span.events.iter().map(|event| event.name.clone())).collect()
    }
}

#[tokio::test]
async fn a_collector_sees_proxy_and_agent_in_one_tree() {
    let collector = Collector::default();
    let environment = collector.serve().await;
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let args = ["up", "--http-port=0", "--engine=sim", "--sim-preset=none"];
    let up = up_with(Process::start_with(&args, &environment)).await;
    let parent = format!("00-{TRACE}-{CLIENT}-01");
    let client = up.client.clone().with_header("traceparent", &parent);
    let mut body = chat("Hello", 8);
    body["stream"] = json!(true);
    client.stream("/v1/chat/completions", &body).await.rest().await;
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
    soon("the whole tree", async {
        while !wanted.iter().all(|edge| collector.tree().contains(*edge)) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(collector.events("queue").contains(&"picked".to_owned()));
    assert!(collector.events("decode").contains(&"first token".to_owned()));
}
