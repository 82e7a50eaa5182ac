//! The side server for operators: `/metrics`, `/live` and `/health`, on connections of its own.

use crate::guests::Guests;
use crate::tls::Listener;
use crate::{Shutdown, metrics};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpListener;

/// Whether the process should get requests now. Cheap to clone; starts as not ready.
#[derive(Clone, Default)]
pub struct Readiness(Arc<ReadinessState>);

#[derive(Default)]
struct ReadinessState {
    ready: AtomicBool,
    closed: AtomicBool,
    room: OnceLock<Box<Room>>,
}

/// Says whether another request could be served now.
type Room = dyn Fn() -> bool + Send + Sync;

impl Readiness {
    /// Says whether requests are welcome.
    pub fn set(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Release);
    }

    /// Says that requests are not welcome any more, whatever is set later: the process ends.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    /// Requires `room` as well: while it is false, requests are not welcome. Only the first call
    /// counts.
    pub fn require(&self, room: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.0.room.set(Box::new(room));
    }

    /// Whether requests are welcome.
    pub fn get(&self) -> bool {
        let state = &*self.0;
        let is_open = state.ready.load(Ordering::Acquire) && !state.closed.load(Ordering::Acquire);
        is_open && state.room.get().is_none_or(|room| room())
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Readiness").field(&self.get()).finish()
    }
}

/// Says who may read metrics: it gets the bearer token of a reader, if there is one, and answers
/// with the status of a refusal, if it refuses.
pub type MetricsGate =
    Arc<dyn Fn(Option<String>) -> BoxFuture<'static, Result<(), StatusCode>> + Send + Sync>;

/// Content that the side server shows.
#[derive(Clone)]
pub struct AdminContent {
    /// All metrics.
    pub metrics: metrics::Metrics,
    /// Whether requests are welcome.
    pub readiness: Readiness,
    /// Check of readers of metrics; `None` lets everybody read.
    pub gate: Option<MetricsGate>,
}

/// Serves plain text on `listen` until `shutdown`; returns the address it listens on and the task
/// that serves.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    shown: AdminContent,
    shutdown: Shutdown,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    serve_with(listen, shown, axum::Router::new(), shutdown).await
}

/// Serves what [`serve`] does, with further routes.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn serve_with(
    listen: SocketAddr,
    shown: AdminContent,
    more: axum::Router,
    shutdown: Shutdown,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = Listener::plain(TcpListener::bind(listen).await?);
    let address = said_address(&listener)?;
    Ok((address, serve_app(listener, routes(shown).merge(more), shutdown)))
}

/// Serves the connections of `listener`, plain or over TLS, until `shutdown`; returns the address
/// it listens on and the task that serves.
///
/// # Errors
///
/// When the system does not tell the address.
pub fn serve_on(
    listener: Listener,
    shown: AdminContent,
    shutdown: Shutdown,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let address = said_address(&listener)?;
    Ok((address, serve_app(listener, routes(shown), shutdown)))
}

/// The address of a listener, which the log says.
fn said_address(listener: &Listener) -> std::io::Result<SocketAddr> {
    let address = listener.address()?;
    tracing::info!(%address, tls = listener.is_tls(), "side server listening");
    Ok(address)
}

fn routes(shown: AdminContent) -> axum::Router {
    axum::Router::new()
        .route("/metrics", get(render))
        .route("/live", get(|| async { "live\n" }))
        .route("/health", get(health))
        .with_state(shown)
}

/// Serves an application of a few clients until `shutdown`, with bounds on its connections, and
/// an end for silence; returns the task that serves.
pub fn serve_app(
    listener: Listener,
    app: axum::Router,
    shutdown: Shutdown,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let served = axum::serve(Guests::new(listener), app)
            .with_graceful_shutdown(async move { shutdown.wait().await })
            .await;
        if let Err(error) = served {
            tracing::error!(%error, "side server failed");
        }
    })
}

async fn render(State(shown): State<AdminContent>, headers: HeaderMap) -> Response {
    if let Some(gate) = &shown.gate {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
        if let Err(status) = gate(token).await {
            return status.into_response();
        }
    }
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], shown.metrics.render()).into_response()
}

async fn health(State(shown): State<AdminContent>) -> Response {
    if shown.readiness.get() {
        (StatusCode::OK, "ready\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::testkit::{Authority, Leaf, client, settings};
    use crate::tls::{CertificateSource, server_config};
    use std::io;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    /// The server's answer to a request for `path` over `stream`.
    async fn answer(
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        path: &str,
    ) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    fn shown() -> AdminContent {
        let shown = AdminContent {
            metrics: metrics::Metrics::default(),
            readiness: Readiness::default(),
            gate: None,
        };
        shown.readiness.set(true);
        shown
    }

    #[test]
    fn readiness_that_is_closed_stays_closed() {
        let readiness = shown().readiness;
        assert!(readiness.get());
        readiness.close();
        readiness.set(true);
        assert!(!readiness.get());
    }

    #[test]
    fn a_process_without_room_is_not_ready() {
        let (readiness, room) = (Readiness::default(), Arc::new(AtomicBool::new(true)));
        let asked = room.clone();
        readiness.require(move || asked.load(Ordering::Acquire));
        assert!(!readiness.get(), "it has not begun");
        readiness.set(true);
        assert!(readiness.get());
        room.store(false, Ordering::Release);
        assert!(!readiness.clone().get());
    }

    #[tokio::test]
    async fn plain_text_is_served_on_an_address() {
        let (stop, stopped) = Shutdown::new();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (address, task) = serve(any, shown(), stopped).await.expect("a port is free");
        let stream = TcpStream::connect(address).await.expect("it listens");
        let text = answer(stream, "/health").await.expect("it answers");
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("ready\n"), "{text}");
        stop.set();
        task.await.expect("it ends");
    }

    #[tokio::test]
    async fn metrics_over_tls_are_for_clients_of_the_authority() {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().expect("a folder"));
        authority.sign("localhost").write(dir.path());
        let readers = Authority::new();
        let ca = dir.path().join("ca.crt");
        std::fs::write(&ca, &readers.pem).expect("the folder is ours");
        let mut settings = settings(CertificateSource::Folder(dir.path().to_owned()));
        settings.client_ca = Some(ca);
        settings.alpn = vec!["http/1.1".into()];
        let (config, _) = server_config(&settings).expect("the files are good");
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let (stop, stopped) = Shutdown::new();
        let listener = Listener::tls(tcp, config);
        let (address, task) = serve_on(listener, shown(), stopped).expect("it has an address");

        let read = async |own: Option<&Leaf>| -> io::Result<String> {
            let mut config = client(&authority.der, own);
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let name = "localhost".try_into().expect("it is a name");
            let stream = TcpStream::connect(address).await?;
            let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
            answer(stream, "/metrics").await
        };
        let text = read(Some(&readers.sign("prometheus"))).await.expect("it answers");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(metrics::CONTENT_TYPE), "{text}");
        assert!(read(None).await.is_err(), "nobody reads without a certificate");
        let stranger = Authority::new().sign("prometheus");
        assert!(read(Some(&stranger)).await.is_err(), "nor with one of another authority");
        let plain = TcpStream::connect(address).await.expect("it listens");
        let text = answer(plain, "/metrics").await.unwrap_or_default();
        assert!(!text.contains("HTTP"), "{text}");
        stop.set();
        task.await.expect("it ends");
    }
}
