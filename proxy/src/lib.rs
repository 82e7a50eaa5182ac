//! The HTTP edge: an OpenAI-compatible endpoint over a fleet of workers, and the sidecar, a proxy
//! beside a single engine.
//!
//! It parses requests, makes tokens of them, has `placement` choose a worker, and makes text of
//! what the worker sends. It never computes a model and keeps no state that a restart would miss.
//! Start reading at [`run()`] and `standalone::service::Service::handle`.

mod api_args;
mod corked;
mod cors;
mod deadlines;
mod door;
mod ending;
mod error_headers;
mod exchange;
mod failure;
pub mod fuzz;
mod head;
mod http2;
mod http_args;
mod keys;
mod linger;
mod listeners;
mod rates;
mod server;
mod sidecar;
mod standalone;
mod upstream;
mod wire;

pub use api_args::ApiArgs;
pub use door::DoorArgs;
pub use http_args::{HttpArgs, MetricsArgs};
pub use keys::KeyArgs;
pub use sidecar::args::{DirectArgs, SidecarArgs, Stage};
pub use sidecar::config::DirectSettings;
pub use standalone::absence::AbsenceArgs;
pub use standalone::config::{FirstModel, ProxyArgs, ProxySettings};
pub use standalone::given::COST_FLAGS;
pub use standalone::routing::RouterArgs;
pub use upstream::passage::PassageArgs;

use anyhow::Context;
use stator_runtime::Shutdown;
use tokio::net::TcpListener;

/// Serves a fleet's models until `shutdown`, then drains.
///
/// # Errors
///
/// When an address cannot be bound, or a certificate is no good.
pub async fn run(settings: ProxySettings, shutdown: Shutdown) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.listen))?;
    standalone::serve(listener, settings, shutdown).await
}

/// Serves beside one engine until `shutdown`, then drains.
///
/// # Errors
///
/// When an address cannot be bound, or a certificate is no good.
pub async fn run_sidecar(settings: DirectSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    sidecar::run(settings, shutdown).await
}

#[cfg(test)]
mod tests;
