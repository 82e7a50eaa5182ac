//! The proxy over a fleet of workers: the OpenAI API, and a [`Pool`] for each model, in which requests
//! get their [`Place`].
//!
//! A chat's stages are `service`, which routes and prepares it as a `job`; `generate`, which asks the
//! `pool` for a place, waits at its gate if it has to, and submits through the place's
//! [`AgentClient`](stator_fleet::AgentClient); and `run`, which makes the tokens that come an
//! `answer` and writes it. Start reading at [`service::Service::handle`].

pub(crate) mod absence;
mod answer;
pub(crate) mod catalog;
mod choice;
pub(crate) mod client;
mod clock;
pub(crate) mod config;
mod early;
mod encode;
mod entrance;
mod fitting;
mod generate;
pub(crate) mod given;
mod glance;
mod job;
pub(crate) mod kserve;
mod late_timer;
pub(crate) mod listing;
mod markup_args;
pub(crate) mod metrics;
mod next_turn;
mod no_split;
mod pages;
mod pass_through;
mod pinning;
mod place;
mod placing;
mod plan;
mod pool;
mod pool_settings;
mod pooled;
mod pools;
pub(crate) mod query;
mod reading;
mod replicas;
pub(crate) mod responses;
pub(crate) mod route;
pub(crate) mod routing;
mod run;
mod segment;
pub(crate) mod service;
mod splitting;
mod state;
mod texts;
mod thoughts;
mod trace;
mod workers;

pub(crate) use entrance::Prompt;
pub(crate) use place::Place;
pub(crate) use pool::Pool;
pub(crate) use pool_settings::PoolSettings;
pub(crate) use pools::ModelPools;
pub(crate) use responses::PostgresPlace;
pub(crate) use responses::StoreLimits;

use crate::api_args::ResponsesPlace;
use crate::listeners::{open_door, secured};
use crate::server::{self, Serving};
use anyhow::Context;
use catalog::Catalog;
use config::{FirstModel, ProxySettings};
use metrics::{FleetGauges, Metrics};
use responses::{ResponseStore, SharedStore};
use service::Service;
use stator_fleet::{ClientSettings, Fleet, FleetMetrics, FleetSettings};
use stator_peers::Seat;
use stator_runtime::Shutdown;
use stator_runtime::admin::{self, AdminContent, Readiness};
use stator_runtime::tls::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves the models of a fleet on `listener` until `shutdown`, then drains.
///
/// # Errors
///
/// When an address cannot be bound, or a certificate is no good.
pub(crate) async fn serve(
    listener: TcpListener,
    settings: ProxySettings,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let registry = stator_runtime::metrics::Metrics::default();
    let (metrics, catalog) =
        (registry.register(Metrics::register), Arc::new(Catalog::new(settings.markup.clone())));
    let store = response_store(&settings).await?;
    let (counted, kept) = (catalog.clone(), store.clone());
    let gauges = move || FleetGauges { kept: kept.usage(), ..counted.gauges() };
    registry.register(|registry| FleetGauges::register(registry, gauges));
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
    let shown = service::OperatorState { registry, metrics, readiness, store: store.clone() };
    let inference = settings.inference_listen;
    let service = Arc::new(Service::new(settings, catalog, door, shown));
    let served = serve_clients(listener, service, inference, shutdown).await;
    following.abort();
    keys.abort();
    // A request that still holds the store must not keep the database from the next process.
    store.end().await?;
    served
}

/// The responses that are kept, at the place that the settings name.
async fn response_store(settings: &ProxySettings) -> anyhow::Result<SharedStore> {
    let store = Arc::new(match &settings.responses_place {
        ResponsesPlace::Memory => ResponseStore::new(settings.responses),
        ResponsesPlace::Sqlite(path) => ResponseStore::open(settings.responses, path)?,
        ResponsesPlace::Postgres(place) => ResponseStore::share(settings.responses, place).await?,
    });
    // It ends with the store.
    tokio::spawn(ResponseStore::sweep(Arc::downgrade(&store)));
    Ok(store)
}

/// Serves the clients of the API until `shutdown`, and those of KServe's gRPC at `inference`.
async fn serve_clients(
    listener: Listener,
    service: Arc<Service>,
    inference: Option<SocketAddr>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let inference = match inference {
        Some(listen) => Some(kserve::grpc::serve(listen, service.clone(), shutdown.clone()).await?),
        None => None,
    };
    server::serve(listener, Arc::new(Serving::Standalone(service)), shutdown).await;
    if let Some(inference) = inference {
        // Its calls that run count among the requests that the end waits for.
        inference.abort();
    }
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

#[cfg(test)]
mod tests;
