//! A real Envoy in front of an endpoint picker, configured as gateways configure theirs.

use crate::http::{Client, Reply};
use crate::tooling::{Tool, installed};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Header of an answer with the scores that the picker told Envoy, as JSON, where it did.
pub const SCORES: &str = "x-test-endpoint-scores";

/// How a body goes to the picker; the field's names in Envoy's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Not at all.
    None,
    /// In pieces, and nothing goes on that the picker does not send back: the protocol's mode.
    FullDuplex,
    /// In pieces, one after the other, the first of them once the head is answered.
    Streamed,
    /// In pieces, without waiting for the answer to the head.
    StreamedAtOnce,
    /// Whole.
    Buffered,
    /// Whole, or as much as fits Envoy's buffer.
    BufferedPartial,
}

/// How Envoy finds the endpoint that the picker chose.
#[derive(Clone, Debug)]
pub enum Routing {
    /// It connects to whatever address the header names.
    OriginalDestination,
    /// It takes the named one of these, and one after the other where none is named.
    OverrideHost(Vec<SocketAddr>),
}

/// What a gateway's operator decides.
#[derive(Clone, Debug)]
pub struct EnvoySettings {
    /// Where the picker's replicas serve. None is what a gateway sees of a Service without pods.
    pub pickers: Vec<SocketAddr>,
    /// Whether they serve over TLS.
    pub tls: bool,
    /// PEM file of the authority that must have signed their certificate; `None` takes any.
    pub trusted_ca: Option<PathBuf>,
    /// Folder with `tls.crt` and `tls.key` that are shown to them.
    pub identity: Option<PathBuf>,
    /// Whether Envoy asks each of them every second, by gRPC, whether it can serve.
    pub health_checks: bool,
    /// Whether requests go on without the picker's answer when it fails. In full duplex Envoy
    /// cannot take back a body that it has sent: those that have one go on only where no picker
    /// is there, or none is healthy.
    pub fail_open: bool,
    /// How request bodies go to the picker.
    pub request_body: BodyMode,
    /// How response bodies go to the picker.
    pub response_body: BodyMode,
    /// How the choice is followed.
    pub routing: Routing,
    /// Whether engines speak HTTP/2 without TLS, as gRPC engines do, instead of HTTP/1.1.
    pub upstream_http2: bool,
    /// The endpoints that the picker is restricted to, as the value of
    /// `x-gateway-destination-endpoint-subset`; `None` sends no such key.
    pub subset: Option<Value>,
}

impl EnvoySettings {
    /// What the specification asks of a gateway, for a picker without TLS.
    pub fn new(picker: SocketAddr) -> Self {
        Self {
            pickers: vec![picker],
            tls: false,
            trusted_ca: None,
            identity: None,
            health_checks: false,
            fail_open: false,
            request_body: BodyMode::FullDuplex,
            response_body: BodyMode::FullDuplex,
            routing: Routing::OriginalDestination,
            upstream_http2: false,
            subset: None,
        }
    }
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    tool: Tool,
    admin: Client,
    address: SocketAddr,
    /// Its configuration; removed when this is dropped.
    _directory: TempDir,
}

impl Envoy {
    /// Starts one on free ports and waits until it serves. `None`, and said so, where `tests/run`
    /// has not installed it.
    ///
    /// # Panics
    ///
    /// When it does not start, or is missing in continuous integration.
    pub async fn start(settings: &EnvoySettings) -> Option<Self> {
        Self::start_from(&fill_in(settings)).await
    }

    /// As [`Envoy::start`], from the text of a bootstrap configuration. It has one listener, and an
    /// admin listener, both on port 0.
    ///
    /// # Panics
    ///
    /// As [`Envoy::start`].
    pub async fn start_from(configuration: &str) -> Option<Self> {
        let binary = installed("STATOR_TEST_ENVOY", "Envoy")?;
        let directory = TempDir::new().expect("a temporary directory");
        let bootstrap = directory.path().join("bootstrap.yaml");
        let admin = directory.path().join("admin");
        std::fs::write(&bootstrap, configuration).expect("a writable directory");
        let mut command = Command::new(binary);
        command.arg("--config-path").arg(&bootstrap).arg("--admin-address-path").arg(&admin);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--skip-deprecated-logs"]);
        let tool = Tool::start(&mut command);
        tool.line("Envoy's start of its workers", |line| line.contains("starting workers")).await;
        let admin = std::fs::read_to_string(admin).expect("Envoy wrote its address");
        let admin = Client::new(admin.trim().parse().expect("an address and a port"));
        let address = listener(&admin).await;
        Some(Self { tool, admin, address, _directory: directory })
    }

    /// A client of its listener, which takes HTTP/1.1 and HTTP/2 without TLS.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of its listener, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The value of a counter or gauge, for example `http.gateway.ext_proc.streams_started`; 0
    /// where nothing was counted yet.
    pub async fn stat(&self, name: &str) -> u64 {
        let Reply { body, .. } = self.admin.get(&format!("/stats?filter=^{name}$")).await;
        let text = String::from_utf8_lossy(&body);
        let value = text.trim().rsplit_once(": ").and_then(|(_, value)| value.parse().ok());
        value.unwrap_or(0)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.tool.log()
    }
}

/// The address that the kernel chose for the only listener.
async fn listener(admin: &Client) -> SocketAddr {
    let listeners = admin.get("/listeners?format=json").await.json();
    let socket = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
    let address = format!("127.0.0.1:{}", socket["port_value"]);
    address.parse().expect("an address and a port")
}

/// The bootstrap configuration. JSON values are YAML values too.
fn fill_in(settings: &EnvoySettings) -> String {
    let (routing, endpoints) = match &settings.routing {
        Routing::OriginalDestination => ("original-destination", &[][..]),
        Routing::OverrideHost(endpoints) => ("override-host", &endpoints[..]),
    };
    let subset = match &settings.subset {
        Some(subset) => json!({ "x-gateway-destination-endpoint-subset": subset }),
        None => json!({}),
    };
    let health_checks = if settings.health_checks { health_checks() } else { json!([]) };
    let upstream = if settings.upstream_http2 { "http2" } else { "http" };
    let values = [
        ("$ROUTING", routing.to_owned()),
        ("$SUBSET", subset.to_string()),
        ("$PICKER_CLUSTER", String::from(if settings.tls { "picker-tls" } else { "picker" })),
        ("$PICKER_TLS", picker_tls(settings).to_string()),
        ("$PICKERS", endpoints_at(&settings.pickers).to_string()),
        ("$HEALTH_CHECKS", health_checks.to_string()),
        ("$FAIL_OPEN", settings.fail_open.to_string()),
        ("$REQUEST_BODY", body_mode(settings.request_body).to_owned()),
        ("$REQUEST_TRAILERS", trailer_mode(settings.request_body).to_owned()),
        ("$AT_ONCE", (settings.request_body == BodyMode::StreamedAtOnce).to_string()),
        ("$RESPONSE_BODY", body_mode(settings.response_body).to_owned()),
        ("$RESPONSE_TRAILERS", trailer_mode(settings.response_body).to_owned()),
        ("$UPSTREAM", format!("{upstream}_protocol_options")),
        ("$ENDPOINTS", endpoints_at(endpoints).to_string()),
    ];
    let template = include_str!("../envoy/bootstrap.yaml").to_owned();
    values.iter().fold(template, |text, (name, value)| text.replace(name, value))
}

/// Envoy's `CommonTlsContext` towards pickers.
fn picker_tls(settings: &EnvoySettings) -> Value {
    let mut tls = json!({ "alpn_protocols": ["h2"] });
    if let Some(ca) = &settings.trusted_ca {
        tls["validation_context"] = json!({ "trusted_ca": { "filename": ca } });
    }
    if let Some(folder) = &settings.identity {
        let file = |name: &str| json!({ "filename": folder.join(name) });
        let (chain, key) = (file("tls.crt"), file("tls.key"));
        tls["tls_certificates"] = json!([{ "certificate_chain": chain, "private_key": key }]);
    }
    tls
}

fn endpoints_at(addresses: &[SocketAddr]) -> Value {
    let endpoint = |address: &SocketAddr| {
        let socket = json!({ "address": address.ip(), "port_value": address.port() });
        json!({ "endpoint": { "address": { "socket_address": socket } } })
    };
    addresses.iter().map(endpoint).collect()
}

/// Source: the health check that the charts of the endpoint pickers configure.
fn health_checks() -> Value {
    let service = "envoy.service.ext_proc.v3.ExternalProcessor";
    json!([{
        "timeout": "2s",
        "interval": "1s",
        // Before the first request too, which would else have to wait for a minute.
        "no_traffic_interval": "1s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": { "service_name": service },
    }])
}

fn body_mode(mode: BodyMode) -> &'static str {
    match mode {
        BodyMode::None => "NONE",
        BodyMode::FullDuplex => "FULL_DUPLEX_STREAMED",
        BodyMode::Streamed | BodyMode::StreamedAtOnce => "STREAMED",
        BodyMode::Buffered => "BUFFERED",
        BodyMode::BufferedPartial => "BUFFERED_PARTIAL",
    }
}

/// Envoy requires trailers to be sent where bodies go in full duplex.
fn trailer_mode(body: BodyMode) -> &'static str {
    if body == BodyMode::FullDuplex { "SEND" } else { "SKIP" }
}
