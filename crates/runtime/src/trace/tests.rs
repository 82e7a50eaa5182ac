//! Spans on their way to a real OTLP receiver.

use super::{
    Stages, TARGET, TraceSettings, Traces, parent_from, start, traceparent_of, tracestate_of,
};
use crate::log::{Format, LogArgs, subscriber};
use crate::tls::Listener;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server as server;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A collector that keeps what it is sent.
struct Collector {
    endpoint: String,
    received: mpsc::Receiver<ExportTraceServiceRequest>,
    _runtime: Runtime,
}

struct Service(mpsc::SyncSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl server::TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.try_send(request.into_inner()).unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (sender, received) = mpsc::sync_channel(16);
        let tcp = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let listener = Listener::plain(tcp);
        let endpoint = format!("http://{}", listener.address().unwrap());
        let service = server::TraceServiceServer::new(Service(sender));
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(listener.incoming()));
        Self { endpoint, received, _runtime: runtime }
    }

    fn settings(&self) -> TraceSettings {
        TraceSettings { endpoint: self.endpoint.clone(), service: Some("stator-test".into()) }
    }

    /// Everything that has arrived.
    fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        self.received.try_iter().collect()
    }
}

/// Runs `work` with traces as `settings` say, log level and all; returns what sends them.
fn run(settings: Option<TraceSettings>, work: impl FnOnce()) -> Traces {
    let args =
        LogArgs { log_level: "trace,h2=off,hyper=off,tower=off".into(), log_format: Format::Text };
    let (spans, traces) = start(settings).unwrap();
    tracing::subscriber::with_default(subscriber(&args, spans).unwrap(), work);
    traces
}

fn spans(requests: Vec<ExportTraceServiceRequest>) -> Vec<Span> {
    let resources = requests.into_iter().flat_map(|request| request.resource_spans);
    let scopes = resources.flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name:?}"))
}

/// Keys and values of attributes, sorted, as text.
fn text(attributes: &[KeyValue]) -> Vec<String> {
    let value =
        |pair: &KeyValue| format!("{:?}", pair.value.as_ref().and_then(|v| v.value.as_ref()));
    let mut text: Vec<_> =
        attributes.iter().map(|pair| format!("{}: {}", pair.key, value(pair))).collect();
    text.sort();
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn spans_arrive_with_parent_name_and_attributes() {
    let collector = Collector::start();
    let traces = run(Some(collector.settings()), || {
        let request = tracing::info_span!(target: TARGET, "request", otel.kind = "server");
        let parent = parent_from(&format!("00-{TRACE}-{SPAN}-01"), Some("vendor=x")).unwrap();
        parent.adopt(&request);
        let _inside = request.enter();
        // A span of the log between two of traces does not come between them.
        let _log = tracing::info_span!("log").entered();
        let pick = tracing::info_span!(target: TARGET, "pick", endpoints = 3, model = "m");
        drop(pick);
    });
    drop(traces);

    let requests = collector.requests();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    let service = "service.name: Some(StringValue(\"stator-test\"))";
    assert!(text(&resource.attributes).iter().any(|pair| pair == service), "{resource:?}");

    let spans = spans(requests);
    assert_eq!(spans.len(), 2);
    let (request, pick) = (named(&spans, "request"), named(&spans, "pick"));
    assert_eq!(
        (hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()),
        (TRACE, SPAN)
    );
    assert_eq!(request.trace_state, "vendor=x");
    assert_eq!((&pick.trace_id, &pick.parent_span_id), (&request.trace_id, &request.span_id));
    assert_eq!(request.kind, 2, "2 is a server");
    let expected = ["endpoints: Some(IntValue(3))", "model: Some(StringValue(\"m\"))"];
    assert_eq!(text(&pick.attributes), expected);
}

#[test]
fn the_context_that_is_passed_on_is_the_span_that_arrives() {
    let collector = Collector::start();
    let (mut passed, mut state) = (None, None);
    let traces = run(Some(collector.settings()), || {
        let request = tracing::info_span!(target: TARGET, "request");
        parent_from(&format!("00-{TRACE}-{SPAN}-01"), Some("a=b")).unwrap().adopt(&request);
        (passed, state) = (traceparent_of(&request), tracestate_of(&request));
        assert_eq!(traceparent_of(&tracing::info_span!("log")), None);
    });
    drop(traces);
    let spans = spans(collector.requests());
    let id = hex(&named(&spans, "request").span_id);
    assert_eq!(passed, Some(format!("00-{TRACE}-{id}-01")));
    assert_eq!(state.as_deref(), Some("a=b"));
}

#[test]
fn a_trace_that_is_not_sampled_is_passed_on_and_not_sent() {
    let collector = Collector::start();
    let mut passed = None;
    let traces = run(Some(collector.settings()), || {
        let request = tracing::info_span!(target: TARGET, "request");
        parent_from(&format!("00-{TRACE}-{SPAN}-00"), None).unwrap().adopt(&request);
        passed = traceparent_of(&request);
    });
    drop(traces);
    let passed = passed.unwrap();
    assert!(passed.starts_with(&format!("00-{TRACE}-")) && passed.ends_with("-00"), "{passed}");
    assert_eq!(collector.requests(), []);
}

#[test]
fn what_is_for_the_log_is_not_sent() {
    let collector = Collector::start();
    let traces = run(Some(collector.settings()), || {
        let _log = tracing::info_span!("log").entered();
        tracing::info!("event");
        let _detail = tracing::debug_span!(target: TARGET, "detail").entered();
    });
    drop(traces);
    assert_eq!(collector.requests(), []);
}

#[test]
fn spans_are_free_where_traces_are_off() {
    let traces = run(None, || {
        let span = tracing::info_span!(target: TARGET, "request");
        assert!(span.is_disabled(), "even at the most talkative log level");
        parent_from(&format!("00-{TRACE}-{SPAN}-01"), None).unwrap().adopt(&span);
        assert_eq!(traceparent_of(&span), None);
        assert_eq!(tracestate_of(&span), None);
        assert!(!tracing::info_span!("log").is_disabled());
    });
    drop(traces);
}

#[test]
fn a_dead_collector_holds_up_the_end_no_longer_than_its_limit() {
    // Takes connections into the kernel's queue and never says a word.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", dead.local_addr().unwrap());
    let mut traces = run(Some(TraceSettings { endpoint, service: None }), || {
        drop(tracing::info_span!(target: TARGET, "request"));
    });
    // Were there no limit, this would wait for the exporter's, and then succeed.
    let ended = traces.shutdown(Duration::from_millis(20));
    assert!(ended.unwrap_err().to_string().contains("Timeout"));
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    let settings = TraceSettings { endpoint: "http://not an endpoint".into(), service: None };
    let started = start(Some(settings));
    let error = started.err().unwrap().to_string();
    assert!(error.starts_with("cannot send traces to \"http://not an endpoint\": "), "{error}");
}

/// The spans that a request with this `traceparent` leaves, and what it hands on.
fn staged(flags: &str) -> (Vec<Span>, Option<String>) {
    let collector = Collector::start();
    let mut handed_on = None;
    let traces = run(Some(collector.settings()), || {
        let request = tracing::info_span!(target: TARGET, "request");
        let parent = format!("00-{TRACE}-{SPAN}-{flags}");
        let stages = Stages::begin(request, || parent_from(&parent, None));
        stages.enter("parse");
        stages.enter("queue");
        let work = stages.part("generate");
        work.enter("decode");
        work.event("first token", Vec::new());
        handed_on = stages.headers().map(|(parent, _)| parent);
    });
    drop(traces);
    (spans(collector.requests()), handed_on)
}

#[test]
fn stages_follow_each_other_under_their_request() {
    let (spans, _) = staged("01");
    let request = named(&spans, "request");
    assert_eq!(hex(&request.parent_span_id), SPAN);
    let (parse, queue) = (named(&spans, "parse"), named(&spans, "queue"));
    let generate = named(&spans, "generate");
    for child in [parse, queue, generate] {
        assert_eq!(child.parent_span_id, request.span_id, "{}", child.name);
    }
    assert!(parse.end_time_unix_nano <= queue.start_time_unix_nano);
    let decode = named(&spans, "decode");
    assert_eq!(decode.parent_span_id, generate.span_id);
    assert_eq!(decode.events[0].name, "first token");
}

#[test]
fn a_request_that_is_not_sampled_leaves_no_span_and_says_so_to_others() {
    let (spans, handed_on) = staged("00");
    assert!(spans.is_empty(), "{spans:?}");
    let handed_on = handed_on.expect("other processes learn it");
    assert!(handed_on.starts_with(&format!("00-{TRACE}-")) && handed_on.ends_with("-00"));
}

#[test]
fn without_a_collector_nothing_is_followed() {
    let traces = run(None, || {
        let stages = Stages::begin(tracing::info_span!(target: TARGET, "request"), || None);
        stages.enter("parse");
        assert!(!stages.is_sampled() && stages.headers().is_none());
    });
    drop(traces);
}
