//! Settings of the server that engines connect to, and its report.

use super::wire::ShimPulse;
use crate::BlockForm;
use crate::cache::TieredCache;
use stator_protos::hash::SequenceHash;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens the cache for KV of a form.
pub type CacheOpener = dyn Fn(BlockForm) -> Result<Arc<TieredCache>, String> + Send + Sync;

/// Hashes of a block in KV events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHashes {
    /// The hash by which routers know the block.
    pub hash: SequenceHash,
    /// The hash of the block before it; `None` for the first of a sequence.
    pub parent: Option<SequenceHash>,
}

/// Finds what an engine's KV events said of the block that they call by this number.
pub type EventResolver = dyn Fn(u64) -> Option<EventHashes> + Send + Sync;

/// Settings of the server that engines connect to.
pub struct ConnectorSettings {
    /// Path of the socket, in a folder that is the agent's alone.
    pub socket: PathBuf,
    /// Finds hashes for KV events of tiers.
    pub resolver: Arc<EventResolver>,
    /// Opens the cache at the first HELLO, which says the form.
    pub open: Box<CacheOpener>,
    /// Most connections at a time: a scheduler and its workers need one each.
    pub connections_max: usize,
    /// Most slots that an engine is granted in advance.
    pub credit_max: usize,
}

impl ConnectorSettings {
    /// Settings with the usual bounds and without hashes for KV events.
    pub fn new(socket: PathBuf, open: Box<CacheOpener>) -> Self {
        let resolver: Arc<EventResolver> = Arc::new(|_| None);
        Self { socket, resolver, open, connections_max: 64, credit_max: 1024 }
    }
}

impl fmt::Debug for ConnectorSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectorSettings").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Connections and engines of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectorReport {
    /// Open connections.
    pub connections: usize,
    /// Lost connections whose slots wait for the end of their engine.
    pub quarantined: usize,
    /// Connected schedulers: ids of their engines, and their last PULSE.
    pub schedulers: Vec<SchedulerReport>,
}

/// The last report of an engine's scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerReport {
    /// Id of the engine.
    pub engine: String,
    /// Its last PULSE.
    pub pulse: ShimPulse,
}
