//! Active-active replicas of a picker or of a proxy. The load and prompts that one replica has in
//! flight count for all of them at once, and a starting replica takes over another's knowledge.
//!
//! There is no leader, no quorum and no store. Replicas dial each other; each tells its listeners
//! what changed since they last heard ([`gauges`] and prompts, see `feeds`). A silent replica
//! counts no more after [`PeersSettings::silence`]. A replica alone pays nothing.
//!
//! This crate never chooses a worker and knows neither Kubernetes nor Envoy; it speaks gRPC and
//! tells the pools through [`Replica`]. Start reading at [`Seat`] and [`Peers`].
//!
//! [`gauges`]: Replica::own

mod args;
mod auth;
mod dial;
mod feeds;
pub mod fuzz;
mod gauges;
mod hub;
mod link;
mod metrics;
mod names;
mod outbox;
mod recent;
mod replica;
mod roster;
mod seat;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod warm;
mod wire;

pub use args::PeersArgs;
pub use link::PoolLink;
pub use outbox::{Outbox, SEQUENCE_MAX};
pub use replica::{Blocks, PoolId, Replica};
pub use seat::{Seat, SeatError};
pub use settings::{PEERS_MAX, PeerTls, PeersSettings};
pub use warm::WarmStart;

use auth::Token;
use hub::Hub;
use metrics::PeersMetrics;
use stator_runtime::Shutdown;
use stator_runtime::tls::Listener;
use std::sync::Arc;
use tokio::task::JoinSet;

/// This replica among its peers. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    hub: Arc<Hub>,
    settings: Arc<PeersSettings>,
}

impl Peers {
    /// A replica that neither listens nor is heard before [`Peers::run`].
    pub(crate) fn new(
        settings: PeersSettings,
        replica: Arc<dyn Replica>,
        metrics: PeersMetrics,
    ) -> Self {
        Self { hub: Arc::new(Hub::new(&settings, replica, metrics)), settings: Arc::new(settings) }
    }

    /// Shares a further pool with peers that have a pool of this name. One name always has one
    /// number. `None`: there are too many, or its name is too long.
    pub fn share(&self, name: &str) -> Option<PoolId> {
        self.hub.share(name)
    }

    /// Outbox in which the request path leaves the prompts that it sent.
    pub fn outbox(&self) -> Outbox {
        self.hub.outbox.clone()
    }

    /// Takes over what a peer knows of the workers' blocks, from the first that answers and has
    /// been through its own start. To be called once, when the pools' workers are known and
    /// before requests come; returns within [`PeersSettings::warm_start`], and at once where no
    /// peer is there.
    ///
    /// # Cancel safety
    ///
    /// What was taken over stays; this replica then never gives others a warm start.
    pub async fn warm_start(&self) -> WarmStart {
        warm::start(&self.hub, &self.settings).await
    }

    /// Listens to the peers and answers them on `listener` until `shutdown`. Set `shutdown` when
    /// the last request has ended: from then on the load in flight here counts nowhere else.
    ///
    /// # Errors
    ///
    /// When the server fails.
    pub(crate) async fn run(
        self,
        listener: Listener,
        shutdown: Shutdown,
    ) -> Result<(), tonic::transport::Error> {
        let Self { hub, settings } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(hub::speak(hub.clone(), settings.interval));
        tasks.spawn(roster::run(hub.clone(), settings.clone()));
        let token = settings.token.as_deref().map(Token::new);
        server::serve(hub, settings.heartbeat, token, listener, shutdown).await
    }
}
