//! The proxy beside an engine: stands in its pod and obeys the endpoint picker's headers, as
//! llm-d's routing sidecar does.
//!
//! Without a header a request goes to the engine and its answer back as they came. With
//! `x-prefiller-host-port` another engine computes the prompt and the KV is handed over in the way
//! of a [`stator_handover::Connector`]; third ones may encode media, and have KV of the prompt's beginning. What
//! steers engines never comes from a client: headers are dropped, and a body that has such a member is
//! refused. Only paths that serve requests are passed on. It knows no model. Start reading at
//! [`service::Sidecar::answer`].

pub(crate) mod allow;
pub(crate) mod args;
mod bootstrap;
mod chunk;
mod chunked;
#[cfg(test)]
mod chunked_tests;
pub(crate) mod chunks;
pub(crate) mod config;
mod deadline;
mod decoding;
mod encode;
pub(crate) mod handover;
#[cfg(test)]
mod holder_tests;
mod known_ranks;
mod llmd;
pub(crate) mod media;
mod metrics;
mod moriio_args;
#[cfg(test)]
mod moriio_pair_tests;
mod names;
#[cfg(test)]
mod pair_tests;
mod request;
mod routing;
mod screening;
mod service;
#[cfg(test)]
mod supply_tests;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod trace;
mod unusable;

use crate::server::{self, Serving};
use anyhow::Context;
use config::DirectSettings;
use metrics::Metrics;
use service::OperatorState as Own;
pub(crate) use service::Sidecar;
use stator_runtime::Shutdown;
use stator_runtime::admin::{self, AdminContent, Readiness};
use stator_runtime::tls::{self, Listener};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Serves until `shutdown`, then drains.
///
/// # Errors
///
/// When an address cannot be bound, or a certificate is no good.
pub(crate) async fn run(settings: DirectSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for rank in 0..settings.engines.len() {
        listeners.push(listen(settings.listen, rank).await?);
    }
    let ports: Vec<u16> = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect::<std::io::Result<_>>()?;
    let registry = stator_runtime::metrics::Metrics::default();
    let connector = settings.prefill.connector.name();
    let metrics = registry.register(|registry| Metrics::register(registry, connector.to_owned()));
    let readiness = Readiness::default();
    let shown =
        AdminContent { metrics: registry.clone(), readiness: readiness.clone(), gate: None };
    let metrics_listen = settings.metrics_listen;
    // Operators see the drain too: the side server ends with this function.
    let (_end, ended) = Shutdown::new();
    admin::serve(metrics_listen, shown, ended)
        .await
        .with_context(|| format!("cannot listen on {metrics_listen}"))?;

    let mut tasks = JoinSet::new();
    let tls = match &settings.tls {
        Some(tls) => {
            let (config, reload) = tls::server_config(tls)?;
            if let Some(reload) = reload {
                tasks.spawn(reload.run(shutdown.clone()));
            }
            Some(config)
        }
        None => None,
    };
    for note in &settings.notes {
        tracing::warn!(note, "differs from llm-d's sidecar");
    }
    if settings.listen.ip().is_unspecified() {
        tracing::info!("served on every address of this machine; http-host names one");
    }
    let mut listeners: Vec<Listener> = listeners
        .into_iter()
        .map(|listener| match &tls {
            Some(config) => Listener::tls(listener, config.clone()),
            None => Listener::plain(listener),
        })
        .collect();
    let door = crate::listeners::open_door(settings.door.clone(), &mut listeners, &readiness);
    registry.register(|registry| door.metrics().register(registry, "stator_direct"));
    let own = Own { metrics, readiness: readiness.clone() };
    let sidecar = Arc::new(Sidecar::new(settings, &ports, door, own));
    sidecar.handover.meet().await;
    // Connections wait in the kernel until they are accepted, so that it is ready now.
    readiness.set(true);
    for (rank, listener) in listeners.into_iter().enumerate() {
        let address = listener.address()?;
        tracing::info!(%address, mode = "direct", rank, connector, tls = listener.is_tls(), "listening");
        let serving = Arc::new(Serving::Sidecar { sidecar: sidecar.clone(), rank });
        tasks.spawn(server::serve(listener, serving, shutdown.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("serving failed")?;
    }
    Ok(())
}

/// Listens for one rank: on the port after the one before, or on any where any will do.
async fn listen(first: SocketAddr, rank: usize) -> anyhow::Result<TcpListener> {
    let mut address = first;
    if first.port() != 0 {
        let port = u16::try_from(usize::from(first.port()) + rank);
        address.set_port(port.context("no port is left for a rank")?);
    }
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}
