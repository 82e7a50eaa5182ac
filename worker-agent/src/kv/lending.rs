//! The socket where an agent lends KV to other agents: blocks of its tiers, and prompts that its engines
//! have computed for others.

use super::handovers::Handovers;
use crate::config::AgentSettings;
use crate::request_plane::listen;
use anyhow::Context;
use parking_lot::Mutex;
use stator_kv::transfer::{LendingStore, LendingStores, ReaderPurpose, TransferServer};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The socket, and what is lent there. Dropping it ends all loans.
pub(crate) struct KvLending {
    runtime: Handle,
    /// Address that the socket is bound to.
    bound: SocketAddr,
    /// Address at which others reach it.
    address: String,
    /// The socket, until there is something to lend.
    listener: Mutex<Option<TcpListener>>,
    stores: Arc<AgentStores>,
    server: OnceLock<AbortHandle>,
}

/// Stores of one agent.
#[derive(Default)]
struct AgentStores {
    tiers: OnceLock<LendingStore>,
    handovers: OnceLock<Arc<Handovers>>,
}

impl LendingStores for AgentStores {
    fn find(&self, purpose: ReaderPurpose, instance: [u8; 16]) -> Option<LendingStore> {
        match purpose {
            ReaderPurpose::Tiers => self.tiers.get().cloned(),
            ReaderPurpose::Handover => self.handovers.get()?.store(instance),
        }
    }
}

impl KvLending {
    /// Binds the socket; `None` for an agent that lends nothing.
    ///
    /// # Errors
    ///
    /// The address is taken or not ours.
    pub(crate) fn bind(settings: &AgentSettings) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(at) = settings.kv_transfer else { return Ok(None) };
        let listener = listen::bind(at);
        let listener = listener.with_context(|| format!("kv-transfer-listen: cannot bind {at}"))?;
        Ok(Some(Self::new(listener, settings.advertise_host.as_deref())?))
    }

    /// Lends on this socket, on the runtime of the caller.
    ///
    /// # Errors
    ///
    /// The socket has no address.
    pub(crate) fn new(
        listener: TcpListener,
        advertise_host: Option<&str>,
    ) -> anyhow::Result<Arc<Self>> {
        let bound = listener.local_addr().context("kv-transfer-listen: no local address")?;
        Ok(Arc::new(Self {
            runtime: Handle::current(),
            bound,
            address: listen::transfer_address(bound, advertise_host),
            listener: Mutex::new(Some(listener)),
            stores: Arc::default(),
            server: OnceLock::new(),
        }))
    }

    /// Address that the socket is bound to.
    pub(crate) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Address at which others reach the socket.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Lends blocks of tiers from now on.
    pub(crate) fn lend_tiers(&self, store: LendingStore) {
        // An agent has one cache.
        let _ = self.stores.tiers.set(store);
        self.serve();
    }

    /// Lends prompts that were computed for other agents from now on.
    pub(crate) fn hand_over(&self, handovers: Arc<Handovers>) {
        // An agent's engines share one.
        let _ = self.stores.handovers.set(handovers);
        self.serve();
    }

    fn serve(&self) {
        let Some(listener) = self.listener.lock().take() else { return };
        let server = TransferServer::new(self.stores.clone());
        let task = self.runtime.spawn(server.run(listener));
        let _ = self.server.set(task.abort_handle());
    }
}

impl fmt::Debug for KvLending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvLending").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for KvLending {
    fn drop(&mut self) {
        if let Some(server) = self.server.get() {
            server.abort();
        }
    }
}
