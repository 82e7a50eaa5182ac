//! A data plane: messages as it sends them, and a stream to send them on.

use super::director::{Log, Script};
use super::show::show;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use prometheus_client::registry::Registry;
use stator_epp::exchange::Director;
use stator_epp::ext_proc::{Drain, ExtProc, ExtProcSettings, serve};
use stator_epp::health::Health;
use stator_epp_metrics::{Build, EppMetrics};
use stator_runtime::shutdown::{Shutdown, Trigger};
use stator_runtime::tls::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// How long a test waits for what must come.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A running server. Dropping it ends the server.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) log: Log,
    pub(crate) registry: Registry,
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) trigger: Trigger,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

/// Metrics, and where they are read.
pub(crate) fn counted() -> (Registry, Arc<EppMetrics>) {
    let mut registry = Registry::default();
    let build = Build { commit: "test".to_owned(), build_ref: String::new() };
    let metrics = EppMetrics::register(build, &mut registry);
    (registry, metrics)
}

impl Served {
    pub(crate) async fn start((script, log): (Script, Log), settings: ExtProcSettings) -> Self {
        Self::with(script, (settings, log), counted()).await
    }

    /// Serves for a director.
    pub(crate) async fn with<D: Director>(
        director: D,
        (settings, log): (ExtProcSettings, Log),
        (registry, metrics): (Registry, Arc<EppMetrics>),
    ) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = tcp.local_addr().expect("it is bound");
        let (trigger, shutdown) = Shutdown::new();
        let (ready, readiness) = watch::channel(true);
        let streams = Some(metrics.streams.clone());
        let service = ExtProc::new(Arc::new(director), settings, streams);
        let drain = Drain { shutdown, limit: DEADLINE };
        let incoming = Listener::plain(tcp).incoming();
        let task = tokio::spawn(serve(service, Health::new(readiness), incoming, drain));
        Self { address, log, registry, ready, trigger, task }
    }

    pub(crate) async fn channel(&self) -> Channel {
        let uri = format!("http://{}", self.address);
        let endpoint = Channel::from_shared(uri).expect("it is an address");
        endpoint.connect().await.expect("the server listens")
    }

    /// The lines of the metrics that begin with `name`.
    pub(crate) fn metrics(&self, name: &str) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("it is text");
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }

    /// Opens a stream on a connection of its own.
    pub(crate) async fn open(&self) -> Stream {
        Stream::on(self.channel().await).await
    }

    /// The next line of the director's log.
    pub(crate) async fn logged(&mut self) -> String {
        within(self.log.recv()).await.expect("the director lives")
    }
}

/// One stream of a data plane.
pub(crate) struct Stream {
    sender: Option<mpsc::UnboundedSender<ProcessingRequest>>,
    answers: Streaming<ProcessingResponse>,
}

impl Stream {
    /// Opens a stream on a connection that others share.
    pub(crate) async fn on(channel: Channel) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut client = ExternalProcessorClient::new(channel);
        let messages = UnboundedReceiverStream::new(receiver);
        let answers = client.process(messages).await.expect("the service is there").into_inner();
        Self { sender: Some(sender), answers }
    }

    pub(crate) fn send(&mut self, messages: impl IntoIterator<Item = ProcessingRequest>) {
        let sender = self.sender.as_ref().expect("the stream is not closed yet");
        for message in messages {
            // A server that has ended the stream already takes nothing more.
            let _ = sender.send(message);
        }
    }

    pub(crate) fn close(&mut self) {
        self.sender = None;
    }

    /// The next answer, or the stream's end.
    pub(crate) async fn next(&mut self) -> Result<Option<ProcessingResponse>, tonic::Status> {
        self.answers.message().await
    }

    pub(crate) async fn answer(&mut self) -> ProcessingResponse {
        let answer = within(self.answers.message()).await;
        answer.expect("the stream goes on").expect("an answer comes")
    }

    pub(crate) async fn expect(&mut self, expected: &[impl AsRef<str>]) {
        for line in expected {
            assert_eq!(show(&self.answer().await), line.as_ref());
        }
    }

    /// The stream ends now, with `OK` or another status.
    pub(crate) async fn ends(&mut self, expected: &str) {
        let end = match within(self.answers.message()).await {
            Ok(None) => "OK".to_owned(),
            Ok(Some(answer)) => show(&answer),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        };
        assert_eq!(end, expected);
    }
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it happens before the deadline")
}

/// A server with default settings, and a stream to it.
pub(crate) async fn plane(script: (Script, Log)) -> (Served, Stream) {
    plane_with(script, ExtProcSettings::default()).await
}

pub(crate) async fn plane_with(
    script: (Script, Log),
    settings: ExtProcSettings,
) -> (Served, Stream) {
    let served = Served::start(script, settings).await;
    let stream = served.open().await;
    (served, stream)
}

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}

/// Headers as Envoy sends them: in `raw_value`.
pub(crate) fn header_map(headers: &[(&str, &str)]) -> Option<HeaderMap> {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    Some(HeaderMap { headers: headers.iter().map(header).collect() })
}

pub(crate) fn request_headers(headers: &[(&str, &str)], end_of_stream: bool) -> ProcessingRequest {
    let headers = header_map(headers);
    message(Request::RequestHeaders(HttpHeaders { headers, end_of_stream, ..Default::default() }))
}

/// The head of a usual request, whose body follows.
pub(crate) fn post() -> ProcessingRequest {
    request_headers(&[(":method", "POST"), (":path", "/v1/completions")], false)
}

pub(crate) fn request_body(body: impl AsRef<[u8]>, end: bool) -> ProcessingRequest {
    message(Request::RequestBody(http_body(body, end)))
}

pub(crate) fn request_trailers() -> ProcessingRequest {
    message(Request::RequestTrailers(HttpTrailers { trailers: header_map(&[("x-sum", "1")]) }))
}

pub(crate) fn response_headers(headers: &[(&str, &str)], end_of_stream: bool) -> ProcessingRequest {
    let headers = header_map(headers);
    message(Request::ResponseHeaders(HttpHeaders { headers, end_of_stream, ..Default::default() }))
}

/// The head of a usual answer, whose body follows.
pub(crate) fn ok() -> ProcessingRequest {
    response_headers(&[(":status", "200"), ("content-type", "application/json")], false)
}

pub(crate) fn response_body(body: impl AsRef<[u8]>, end: bool) -> ProcessingRequest {
    message(Request::ResponseBody(http_body(body, end)))
}

pub(crate) fn response_trailers() -> ProcessingRequest {
    message(Request::ResponseTrailers(HttpTrailers {
        trailers: header_map(&[("grpc-status", "0")]),
    }))
}

fn http_body(body: impl AsRef<[u8]>, end_of_stream: bool) -> HttpBody {
    HttpBody { body: body.as_ref().to_vec(), end_of_stream, ..HttpBody::default() }
}

/// The same message with the protocol configuration of a data plane: the two body modes, and
/// whether bodies come before their heads are answered.
pub(crate) fn with_modes(
    mut message: ProcessingRequest,
    modes: (i32, i32, bool),
) -> ProcessingRequest {
    message.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: modes.0,
        response_body_mode: modes.1,
        send_body_without_waiting_for_header_response: modes.2,
    });
    message
}

/// The same message with an entry in its metadata.
pub(crate) fn with_metadata(
    mut message: ProcessingRequest,
    (namespace, key): (&str, &str),
    kind: Kind,
) -> ProcessingRequest {
    let entry = Struct { fields: [(key.to_owned(), Value { kind: Some(kind) })].into() };
    let metadata = message.metadata_context.get_or_insert_with(Metadata::default);
    metadata.filter_metadata.insert(namespace.to_owned(), entry);
    message
}

pub(crate) fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

pub(crate) fn list(items: &[Kind]) -> Kind {
    let value = |kind: &Kind| Value { kind: Some(kind.clone()) };
    Kind::ListValue(ListValue { values: items.iter().map(value).collect() })
}

/// The same message with all headers in `value`, as some data planes send them.
pub(crate) fn in_value(mut message: ProcessingRequest) -> ProcessingRequest {
    let (Some(Request::RequestHeaders(head)) | Some(Request::ResponseHeaders(head))) =
        &mut message.request
    else {
        panic!("only heads have headers");
    };
    for header in head.headers.iter_mut().flat_map(|map| &mut map.headers) {
        let raw = std::mem::take(&mut header.raw_value);
        header.value = String::from_utf8(raw).expect("tests send text");
    }
    message
}
