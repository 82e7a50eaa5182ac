//! The tasks of a running agent, and the order in which they end.

use super::engines::RunningEngines;
use crate::availability::Availability;
use crate::events::plane::EventTasks;
use crate::request_plane::service;
use stator_runtime::Shutdown;
use stator_runtime::shutdown::Trigger;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Longest wait for clients to close their connections once their streams have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two looks at a process that the engine outlives.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Terms of an agent's drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// Longest wait for running requests, and for the process at `outlive`.
    pub(super) timeout: Duration,
    /// Address where a process listens that needs the engine until its own end.
    pub(super) outlive: Option<SocketAddr>,
}

/// All tasks of an agent, and the trigger that ends them.
pub(super) struct Tasks {
    pub(super) agent: Arc<service::Agent>,
    pub(super) server: JoinHandle<()>,
    pub(super) events: EventTasks,
    pub(super) engines: RunningEngines,
    /// Follows the files of the request plane's certificate.
    pub(super) reload: Option<JoinHandle<()>>,
    pub(super) registration: JoinHandle<()>,
    pub(super) availability: Availability,
    pub(super) ended: Trigger,
}

impl Tasks {
    /// Waits for `shutdown`, then drains: tells the fleet first, lets running requests finish, and
    /// only then closes streams and sockets.
    pub(super) async fn until(mut self, shutdown: Shutdown, drain: Drain) -> anyhow::Result<()> {
        let failed = tokio::select! {
            () = shutdown.wait() => None,
            error = self.engines.gave_up() => Some(error),
        };
        self.availability.drain();
        self.agent.drain();
        let running = self.agent.in_flight().count();
        tracing::info!(running, "agent drains");
        // An engine that failed has nothing left for others.
        let outlive = drain.outlive.filter(|_| failed.is_none());
        let drained = async { tokio::join!(self.agent.in_flight().none(), closed(outlive)) };
        if tokio::time::timeout(drain.timeout, drained).await.is_err() {
            let (running, drain_timeout) = (self.agent.in_flight().count(), drain.timeout);
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
        self.engines.unfollow();
        self.events.end(CLOSE_TIMEOUT).await;
        self.engines.end(CLOSE_TIMEOUT).await;
        tracing::info!("agent has ended");
        failed.map_or(Ok(()), Err)
    }
}

/// Waits until nobody listens at the address.
async fn closed(address: Option<SocketAddr>) {
    let Some(address) = address else { return };
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}
