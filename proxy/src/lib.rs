//! The HTTP edge: an OpenAI-compatible endpoint over a fleet of workers, and the sidecar, a proxy
//! beside a single engine.
//!
//! It parses requests, makes tokens of them, has `placement` choose a worker, and makes text of
//! what the worker sends. It never computes a model and keeps no state that a restart would miss.
//! Start reading at [`run()`] and `service::Service::handle`.

mod corked;
mod deadlines;
mod door;
mod ending;
mod exchange;
mod failure;
pub mod fuzz;
mod head;
mod http_args;
mod keys;
mod linger;
mod server;
mod sidecar;
mod space;
mod standalone;
mod upstream;
mod wire;

pub use door::DoorArgs;
pub use http_args::{HttpArgs, MetricsArgs};
pub use keys::KeyArgs;
pub use sidecar::args::{DirectArgs, SidecarArgs, Stage};
pub use sidecar::config::DirectSettings;
pub use standalone::absence::AbsenceArgs;
pub use standalone::config::{FirstModel, ProxyArgs, ProxySettings};
pub use standalone::routing::RouterArgs;
pub use upstream::passage::PassageArgs;

use anyhow::Context;
use door::{Door, DoorMetrics, DoorSettings};
use server::Serving;
use standalone::catalog::Catalog;
use standalone::metrics::{FleetGauges, Metrics};
use standalone::service::{self, Service};
use standalone::{ModelPools, PoolSettings};
use stator_fleet::{ClientSettings, Fleet, FleetMetrics, FleetSettings};
use stator_peers::Seat;
use stator_runtime::Shutdown;
use stator_runtime::admin::{self, AdminContent, Readiness};
use stator_runtime::tls::{self, Listener};
use std::sync::Arc;
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
    serve_fleet(listener, settings, shutdown).await
}

/// Serves beside one engine until `shutdown`, then drains.
///
/// # Errors
///
/// When an address cannot be bound, or a certificate is no good.
pub async fn run_sidecar(settings: DirectSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    sidecar::run(settings, shutdown).await
}

/// A listener for clients that speaks TLS where `tls` says so, and what reads the certificate again.
fn secured(
    listener: TcpListener,
    tls: Option<&tls::ServerSettings>,
) -> anyhow::Result<(Listener, Option<tls::Reload>)> {
    let Some(tls) = tls else { return Ok((Listener::plain(listener), None)) };
    let (config, reload) = tls::server_config(tls)?;
    Ok((Listener::tls(listener, config), reload))
}

/// Serves the models of a fleet on `listener`.
async fn serve_fleet(
    listener: TcpListener,
    settings: ProxySettings,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let registry = stator_runtime::metrics::Metrics::default();
    let (metrics, catalog) = (registry.register(Metrics::register), Arc::new(Catalog::default()));
    let counted = catalog.clone();
    registry.register(|registry| FleetGauges::register(registry, move || counted.gauges()));
    let fleet_metrics = FleetMetrics::default();
    registry.register(|registry| fleet_metrics.register(registry));
    let readiness = Readiness::default();
    let address = listener.local_addr()?;
    // Operators see the drain too: the side server ends with this function.
    let (_end, ended) = Shutdown::new();
    let (mut listener, reload) = secured(listener, settings.tls.as_ref())?;
    if let Some(reload) = reload {
        tokio::spawn(reload.run(ended.clone()));
    }
    if let Some(listen) = settings.metrics_listen {
        let (metrics, readiness) = (registry.clone(), readiness.clone());
        admin::serve(listen, AdminContent { metrics, readiness, gate: None }, ended)
            .await
            .with_context(|| format!("cannot listen on {listen}"))?;
    }
    let seat = match settings.peers.clone() {
        Some(peers) => Some(Seat::take(peers, "stator_proxy", &registry).await?),
        None => None,
    };
    let fleet = FleetSettings {
        model_linger: settings.absence.model_linger,
        client: ClientSettings {
            dial: settings.dial.clone(),
            silence: settings.absence.agent_silence,
            ..ClientSettings::default()
        },
        ..FleetSettings::new(settings.discovery.clone())
    };
    let (_fleet, events) =
        Fleet::start(fleet, fleet_metrics, ModelPools::new(pool_settings(&settings), seat));
    let following = tokio::spawn({
        let (catalog, readiness) = (catalog.clone(), readiness.clone());
        let first = settings.first_model.clone();
        let announce = move |name: &str| {
            let url = format_args!("http://{address}/v1");
            tracing::info!(model = name, %url, "serving a model");
            let model = FirstModel { name: name.to_owned(), address };
            // Full or closed after the first.
            first.iter().for_each(|first| drop(first.try_send(model.clone())));
        };
        async move { catalog.follow(events, readiness, announce).await }
    });
    let keys = tokio::spawn(settings.keys.clone().follow(shutdown.clone()));
    let tls = settings.tls.is_some();
    tracing::info!(%address, router_mode = %settings.placement.mode, tls, "listening");
    let door = open_door(settings.door.clone(), std::slice::from_mut(&mut listener), &readiness);
    registry.register(|registry| door.metrics().register(registry, "stator_proxy"));
    let shown = service::Shown { registry, metrics, readiness };
    let service = Service::new(settings, catalog, door, shown);
    let serving = Arc::new(Serving::Standalone(Box::new(service)));
    server::serve(listener, serving, shutdown).await;
    following.abort();
    keys.abort();
    Ok(())
}

/// The pool of each model, as the proxy's settings want it.
fn pool_settings(settings: &ProxySettings) -> PoolSettings {
    PoolSettings {
        placement: settings.placement.clone(),
        queue: settings.queue.clone(),
        worker_wait: settings.absence.worker_wait,
        adapter_linger: settings.absence.model_linger,
        seed: rand::random(),
    }
}

/// The door that clients of all `listeners` go through; a process whose door is full is not ready.
fn open_door(
    settings: DoorSettings,
    listeners: &mut [Listener],
    readiness: &Readiness,
) -> Arc<Door> {
    let door = Arc::new(Door::new(settings, DoorMetrics::default()));
    door.check_descriptors();
    for listener in listeners {
        listener.count_accept_errors(door.metrics().accept_errors.clone());
    }
    let asked = Arc::downgrade(&door);
    readiness.require(move || asked.upgrade().is_none_or(|door| door.full().is_none()));
    door
}

#[cfg(test)]
mod tests;
