//! The port for other replicas, before and after this one joins them.

use crate::{Peers, PeersMetrics, PeersSettings, Replica};
use stator_runtime::Shutdown;
use stator_runtime::metrics::Metrics;
use stator_runtime::tls::{self, Listener, Reload, TlsError};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A place among the replicas that is not yet taken.
pub struct Seat {
    settings: PeersSettings,
    metrics: PeersMetrics,
    listener: Listener,
    reload: Option<Reload>,
}

/// Why a replica cannot be one.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// The port for others cannot be had.
    #[error("cannot listen on {address} for other replicas: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A certificate cannot be used.
    #[error("a certificate for other replicas: {0}")]
    Certificate(#[from] TlsError),
}

impl Seat {
    /// Opens the port for other replicas. Metrics are called by `prefix` and `_peers`.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound, or a certificate cannot be used.
    pub async fn take(
        settings: PeersSettings,
        prefix: &str,
        registry: &Metrics,
    ) -> Result<Self, SeatError> {
        let metrics = PeersMetrics::default();
        registry.register(|registry| metrics.register(registry, prefix));
        let address = settings.listen;
        if address.ip().is_loopback() && !settings.peers.iter().all(|peer| is_local(peer)) {
            tracing::warn!(%address, "other replicas cannot reach this address: it is this machine's");
        }
        let listen = |source| SeatError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let (listener, reload) = match &settings.tls {
            None => (Listener::plain(listener), None),
            Some(files) => {
                tls::install_provider();
                let (config, reload) = tls::server_config(&tls::ServerSettings {
                    certificate: tls::CertificateSource::Folder(files.certificate.clone()),
                    client_ca: Some(files.ca_file.clone()),
                    reload: true,
                    // Both ends are replicas of one version or nearly so: nothing older is needed.
                    min_version: tls::Version::Tls13,
                    alpn: vec!["h2".into()],
                })?;
                (Listener::tls(listener, config), reload)
            }
        };
        let seat = Self { settings, metrics, listener, reload };
        tracing::info!(address = %seat.address().map_err(listen)?, "listening for other replicas");
        Ok(seat)
    }

    /// Address that others connect to.
    ///
    /// # Errors
    ///
    /// When the socket does not tell it.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.address()
    }

    /// Listens to the peers and answers them from now on until `ended`, which should be set after
    /// the last request, because what is in flight here counts elsewhere no more then. The tasks
    /// that do so end by themselves.
    pub fn join(self, replica: Arc<dyn Replica>, ended: Shutdown) -> (Peers, JoinSet<()>) {
        let Self { settings, metrics, listener, reload } = self;
        let peers = Peers::new(settings, replica, metrics);
        let mut tasks = JoinSet::new();
        if let Some(reload) = reload {
            tasks.spawn(reload.run(ended.clone()));
        }
        let serving = peers.clone();
        tasks.spawn(async move {
            if let Err(error) = serving.run(listener, ended).await {
                tracing::error!(%error, "the server for other replicas failed");
            }
        });
        (peers, tasks)
    }
}

/// Whether a peer is on this machine, as far as its name says.
fn is_local(peer: &str) -> bool {
    let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_on_this_machine_are_known_by_their_names() {
        for local in ["localhost:9004", "127.0.0.1:1", "[::1]:9004"] {
            assert!(is_local(local), "{local}");
        }
        for other in ["stator-proxy-peers:9004", "10.0.0.7:9004", "[fd00::1]:9004"] {
            assert!(!is_local(other), "{other}");
        }
    }
}
