//! The tasks of a running agent, and the order in which they end.

use crate::door::Door;
use crate::remote;
use crate::service;
use crate::workers;
use stator_runtime::shutdown::Trigger;
use stator_runtime::{Lane, Shutdown};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest wait for clients to close their connections once their streams have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything that runs, and what ends it.
pub(super) struct Tasks {
    pub(super) agent: Arc<service::Agent>,
    pub(super) server: JoinHandle<()>,
    pub(super) publishing: JoinHandle<()>,
    /// Over ZMQ, where its socket is open.
    pub(super) replaying: Option<JoinHandle<()>>,
    /// Has no end of its own.
    pub(super) heartbeat: JoinHandle<()>,
    /// Follows the other agents, where these are asked. Has no end of its own.
    pub(super) following: Option<JoinHandle<()>>,
    /// Follows the files of the request plane's certificate.
    pub(super) reload: Option<JoinHandle<()>>,
    pub(super) registration: JoinHandle<()>,
    pub(super) drivers: Vec<oneshot::Receiver<()>>,
    /// Outlives the drivers and the server.
    pub(super) _lane: Option<Lane>,
    /// Of a stock engine.
    pub(super) keeper: Option<remote::Keeper>,
    pub(super) door: Door,
    pub(super) ended: Trigger,
}

impl Tasks {
    /// Waits for `shutdown`, then drains: the fleet is told first, running requests finish, and
    /// only then do streams and sockets close.
    pub(super) async fn until(
        mut self,
        shutdown: Shutdown,
        drain_timeout: Duration,
    ) -> anyhow::Result<()> {
        let failed = tokio::select! {
            () = shutdown.wait() => None,
            error = remote::gave_up(&mut self.keeper) => Some(error),
        };
        self.door.drain();
        self.agent.drain();
        let running = self.agent.in_flight().count();
        tracing::info!(running, "agent drains");
        if tokio::time::timeout(drain_timeout, self.agent.in_flight().none()).await.is_err() {
            let running = self.agent.in_flight().count();
            tracing::warn!(running, ?drain_timeout, "draining took too long; requests are cut off");
        }
        drop(self.agent);
        self.ended.set();
        let mut server = self.server;
        if tokio::time::timeout(CLOSE_TIMEOUT, &mut server).await.is_err() {
            server.abort();
            // An aborted task ends at its next await; what it held is dropped then.
            let _ = server.await;
        }
        let _ = self.registration.await;
        if let Some(reload) = self.reload {
            let _ = reload.await;
        }
        self.heartbeat.abort();
        if let Some(following) = self.following {
            following.abort();
        }
        for mut plane in [Some(self.publishing), self.replaying].into_iter().flatten() {
            // One that answers a peer who does not read is not waited for.
            if tokio::time::timeout(CLOSE_TIMEOUT, &mut plane).await.is_err() {
                plane.abort();
            }
        }
        workers::ended(self.drivers, CLOSE_TIMEOUT).await;
        if let Some(keeper) = self.keeper {
            keeper.stop().await;
        }
        tracing::info!("agent has ended");
        failed.map_or(Ok(()), Err)
    }
}
