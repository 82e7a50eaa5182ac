//! The side server for operators: `/metrics`, `/live` and `/health`.

use crate::{Shutdown, metrics};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
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

/// Serves until `shutdown`; returns the address it listens on and the task that serves.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    metrics: metrics::Metrics,
    readiness: Readiness,
    shutdown: Shutdown,
) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "side server listening");
    let app = axum::Router::new()
        .route("/metrics", get(render))
        .route("/live", get(|| async { "live\n" }))
        .route("/health", get(health))
        .with_state((metrics, readiness));
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

async fn render(State((metrics, _)): State<(metrics::Metrics, Readiness)>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics.render()).into_response()
}

async fn health(State((_, readiness)): State<(metrics::Metrics, Readiness)>) -> Response {
    if readiness.get() {
        (StatusCode::OK, "ready\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}
