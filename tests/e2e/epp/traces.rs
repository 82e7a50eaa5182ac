//! Spans on their way from `stator epp` to a collector.

use super::testbed::{CHAT, chat, until};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use stator_tests::engine::{Engine, HOLD};
use stator_tests::envoy::{Envoy, EnvoySettings};
use stator_tests::http::Client;
use stator_tests::picker::{EndpointsFile, Picker};
use stator_tests::process::Process;
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

    /// Waits for spans and attributes of these names, in the trace.
    async fn gets(&self, wanted: &[&str]) {
        let trace: Vec<_> = (0..TRACE.len() / 2)
            .map(|at| u8::from_str_radix(&TRACE[2 * at..2 * at + 2], 16).expect("hexadecimal"))
            .collect();
        for wanted in wanted.iter().map(|name| name.as_bytes()).chain([&*trace]) {
            let arrived = async || {
                tokio::task::yield_now().await;
                self.has(wanted).then_some(())
            };
            until(&format!("{:?} arrives", String::from_utf8_lossy(wanted)), arrived).await;
        }
    }

    /// What has a process send its spans here.
    fn environment(&self) -> [(&'static str, String); 2] {
        let at = format!("http://{}", self.address);
        [("OTEL_EXPORTER_OTLP_ENDPOINT", at), ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned())]
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
    let flags = [&endpoints, "--secure-serving=false", "--shutdown-delay=0s"];
    let environment = collector.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut picker = Picker::start_with(&flags, &environment).await;
    picker.ready().await;
    let Some(envoy) = Envoy::start(&EnvoySettings::new(picker.address())).await else { return };
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let client = envoy.client().with_header("traceparent", &parent);
    let reply = client.post(CHAT, &chat("model", "hello")).await;
    assert_eq!(reply.status, StatusCode::OK);

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
        "gen_ai.request.id",
        "llm_d.epp.scorer.kv-aware",
    ];
    collector.gets(&wanted).await;
    let seen = engine.last();
    let passed = seen.header("traceparent");
    assert!(passed.len() == 1 && passed[0].contains(TRACE), "{passed:?}");
    picker.process.terminate();
    assert!(picker.process.ended().await.success());
}

/// Prompts are computed apart, by endpoints that hold most of them.
const SPLIT: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: { deciders: { prefill: always-disagg-pd-decider } }
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins: [{ pluginRef: prefix-cache-scorer }, { pluginRef: max-score-picker }]
- name: decode
  plugins: [{ pluginRef: prefix-cache-scorer }, { pluginRef: max-score-picker }]
";

#[tokio::test]
async fn the_spans_of_a_split_request_say_why_it_was_split() {
    if installed("STATOR_TEST_ENVOY", "Envoy").is_none() {
        return;
    }
    let (collector, engine) = (Collector::start().await, Engine::start().await);
    let file = EndpointsFile::of(&[engine.address()]);
    let endpoints = format!("--endpoints-file={}", file.path().display());
    let config = format!("--config-text={SPLIT}");
    let flags = [&endpoints, &config, "--secure-serving=false", "--shutdown-delay=0s"];
    let environment = collector.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut picker = Picker::start_with(&flags, &environment).await;
    picker.ready().await;
    let Some(envoy) = Envoy::start(&EnvoySettings::new(picker.address())).await else { return };
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let client = envoy.client().with_header("traceparent", &parent);
    assert_eq!(client.post(CHAT, &chat("model", "hello")).await.status, StatusCode::OK);
    collector
        .gets(&[
            "pick_disagg_profile",
            "llm_d.epp.pd.disaggregation_used",
            "llm_d.epp.pd.reason",
            "decider_split",
            "prepare_disaggregation",
            "llm_d.epp.pd.prefill_pod_address",
            "llm_d.epp.scorer.prefix-cache-scorer",
            "score_prefix_cache",
        ])
        .await;
}

#[tokio::test]
async fn a_proxy_beside_an_engine_goes_on_with_the_trace() {
    let collector = Collector::start().await;
    let (engine, prefiller) = (Engine::start().await, Engine::start().await);
    let flags = [
        "sidecar".to_owned(),
        "--http-port=0".to_owned(),
        "--metrics-port=0".to_owned(),
        "--kv-connector=shared-storage".to_owned(),
        format!("--engine-host={}", engine.address().ip()),
        format!("--engine-port={}", engine.address().port()),
        format!("--prefill-allow={}", prefiller.address()),
        format!("--pass-headers={HOLD}"),
    ];
    let environment = collector.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut proxy = Process::start_with(&flags.each_ref().map(String::as_str), &environment);
    let listening = proxy.event("listening").await;
    let address = listening["address"].as_str().expect("the event has an address");
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let client = Client::new(address.parse().expect("an address and a port"))
        .with_header("traceparent", &parent)
        .with_header("x-prefiller-host-port", &prefiller.address().to_string());
    let client = client.with_header(HOLD, "1");
    let asking = client.begin(Method::POST, CHAT, chat("model", "hello").to_string());
    // Prefill ends, and decoding begins.
    let answering = async {
        drop(prefiller.held().await);
        engine.held().await.event(&json!(1)).await;
    };
    let (mut call, ()) = tokio::join!(asking, answering);
    call.end().await.unwrap_or_else(|error| panic!("{error}: {}", proxy.log()));
    collector
        .gets(&[
            "forward_request",
            "prefill",
            "decode",
            "llm_d.pd_proxy.request_id",
            "llm_d.pd_proxy.connector",
            "shared-storage",
            "llm_d.pd_proxy.prefill_target",
            "llm_d.pd_proxy.prefill.duration_ms",
            "llm_d.pd_proxy.true_ttft_ms",
            "llm_d.pd_proxy.total_duration_ms",
            "llm_d.pd_proxy.coordinator_overhead_ms",
        ])
        .await;
    for seen in [engine.last(), prefiller.last()] {
        let passed = seen.header("traceparent");
        assert!(passed.len() == 1 && passed[0].contains(TRACE), "{passed:?}");
        assert_ne!(passed[0], parent, "an engine's parent is the proxy's span");
    }
}
