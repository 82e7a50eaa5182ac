//! The side server for operators: `/metrics`, `/live` and `/health`.

use crate::{Shutdown, metrics};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

/// Whether the process should get requests now. Cheap to clone; starts as not ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says whether requests are welcome.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether requests are welcome.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Says who may read metrics: it gets the bearer token of a reader, if there is one, and answers
/// with the status of a refusal, if it refuses.
pub type Gate =
    Arc<dyn Fn(Option<String>) -> BoxFuture<'static, Result<(), StatusCode>> + Send + Sync>;

/// What the side server shows.
#[derive(Clone)]
pub struct Shown {
    /// All metrics.
    pub metrics: metrics::Metrics,
    /// Whether requests are welcome.
    pub readiness: Readiness,
    /// Who may read metrics; `None` lets everybody.
    pub gate: Option<Gate>,
}

/// Serves until `shutdown`; returns the address it listens on and the task that serves.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    shown: Shown,
    shutdown: Shutdown,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "side server listening");
    let app = axum::Router::new()
        .route("/metrics", get(render))
        .route("/live", get(|| async { "live\n" }))
        .route("/health", get(health))
        .with_state(shown);
    let task = tokio::spawn(async move {
        let served = axum::serve(listener, app)
            .with_graceful_shutdown(async move { shutdown.wait().await })
            .await;
        if let Err(error) = served {
            tracing::error!(%error, "side server failed");
        }
    });
    Ok((address, task))
}

async fn render(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    if let Some(gate) = &shown.gate {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
        if let Err(status) = gate(token).await {
            return status.into_response();
        }
    }
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], shown.metrics.render()).into_response()
}

async fn health(State(shown): State<Shown>) -> Response {
    if shown.readiness.get() {
        (StatusCode::OK, "ready\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}
