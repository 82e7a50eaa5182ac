//! Spans on their way from `stator epp` to a collector.

use super::testbed::{CHAT, chat, until};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use stator_tests::engine::Engine;
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::tooling::installed;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A collector of OTLP over gRPC, which keeps what it is sent as it comes. In protobuf text
/// stands as it is, and identities as bytes.
struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
    server: JoinHandle<()>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let kept = received.clone();
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let kept = kept.clone();
                let service = hyper::service::service_fn(move |request| {
                    let kept = kept.clone();
                    async move { Ok::<_, Infallible>(export(request, &kept).await) }
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                // How a connection ends shows on the other side.
                tokio::spawn(builder.serve_connection(TokioIo::new(socket), service));
            }
        });
        Self { address, received, server }
    }

    fn has(&self, bytes: &[u8]) -> bool {
        let received = self.received.lock().expect("nobody panicked");
        received.windows(bytes.len()).any(|window| window == bytes)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Takes spans; the answer is an empty message.
async fn export(
    request: Request<Incoming>,
    kept: &Mutex<Vec<u8>>,
) -> Response<impl hyper::body::Body<Data = Bytes, Error = Infallible> + use<>> {
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    assert_eq!(request.uri().path(), path);
    let body = request.into_body().collect().await.expect("the picker sends all of it");
    kept.lock().expect("nobody panicked").extend_from_slice(&body.to_bytes());
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), 0.into())]);
    let empty = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(empty).expect("a well-formed response")
}

#[tokio::test]
async fn a_collector_gets_the_spans_of_a_request() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let (collector, engine) = (Collector::start().await, Engine::start().await);
    let file = EndpointsFile::of(&[engine.address()]);
    let endpoints = format!("--endpoints-file={}", file.path().display());
    let at = format!("http://{}", collector.address);
    let flags = [&endpoints, "--secure-serving=false", "--shutdown-delay=0s"];
    let environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", at.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let mut picker = Picker::start_with(&flags, &environment).await;
    picker.ready().await;
    let Some(envoy) = Envoy::start(&EnvoySettings::new(picker.address())).await else { return };
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let client = envoy.client().with_header("traceparent", &parent);
    let reply = client.post(CHAT, &chat("model", "hello")).await;
    assert_eq!(reply.status, StatusCode::OK);

    let trace: Vec<_> = (0..TRACE.len() / 2)
        .map(|at| u8::from_str_radix(&TRACE[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    let wanted = [
        "stator-epp",
        "gateway.request",
        "gateway.request_orchestration",
        "produce_precise_prefix_cache",
        "score_tokens",
        "index_lookup",
        "compute_scores",
        "run_scheduler_profile",
        "filter_endpoints",
        "llm_d.epp.scoring",
        "pick_endpoints",
        "gen_ai.request.model",
    ];
    for wanted in wanted.map(str::as_bytes).into_iter().chain([&*trace]) {
        let arrived = async || {
            tokio::task::yield_now().await;
            collector.has(wanted).then_some(())
        };
        until(&format!("{:?} arrives", String::from_utf8_lossy(wanted)), arrived).await;
    }
    let seen = engine.last();
    let passed = seen.header("traceparent");
    assert!(passed.len() == 1 && passed[0].contains(TRACE), "{passed:?}");
    picker.process.terminate();
    assert!(picker.process.ended().await.success());
}
