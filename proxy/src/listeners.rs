//! Listeners for clients, and the door behind them.

use crate::door::{Door, DoorMetrics, DoorSettings};
use stator_runtime::admin::Readiness;
use stator_runtime::tls::{self, Listener};
use std::sync::Arc;
use tokio::net::TcpListener;

/// A listener for clients that speaks TLS where `tls` says so, and what reads the certificate again.
pub(crate) fn secured(
    listener: TcpListener,
    tls: Option<&tls::ServerSettings>,
) -> anyhow::Result<(Listener, Option<tls::Reload>)> {
    let Some(tls) = tls else { return Ok((Listener::plain(listener), None)) };
    let (config, reload) = tls::server_config(tls)?;
    Ok((Listener::tls(listener, config), reload))
}

/// The door that clients of all `listeners` go through; a process whose door is full is not ready.
pub(crate) fn open_door(
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
