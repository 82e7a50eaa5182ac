//! Settings of the server that engines connect to, and its report.

use super::copier::DeviceCopier;
use super::wire::{EngineHint, ShimPulse};
use crate::cache::TieredCache;
use crate::{Block, BlockForm};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Opens the cache for KV of a form.
pub type CacheOpener = dyn Fn(BlockForm) -> Result<Arc<TieredCache>, String> + Send + Sync;

/// A change of the engines that can load what the tiers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChange {
    /// The scheduler of an engine has connected. It finds what is held under no namespace.
    Joined {
        /// Tokens of its blocks.
        block_tokens: u32,
    },
    /// A connected scheduler has measured the time in which it computes a block.
    Paced {
        /// Time to compute one block.
        block: Duration,
    },
    /// The keys of a connected scheduler have another meaning from here on: nothing that is held
    /// counts for it any more. Told once of each connection.
    Reset,
    /// A connected scheduler has gone.
    Left {
        /// Whether its keys had been reset.
        was_reset: bool,
    },
}

/// Hears which engines can load what the tiers hold. Returns at once.
pub type EngineWatch = dyn Fn(EngineChange) + Send + Sync;

/// Takes note of where else the leading blocks of a request may be: a hint that an engine was given
/// with it, and the blocks.
pub type HintTaker = dyn Fn(EngineHint, &[Block]) + Send + Sync;

/// Settings of the server that engines connect to.
pub struct ConnectorSettings {
    /// Path of the socket, in a folder that is the agent's alone.
    pub socket: PathBuf,
    /// Hears which engines can load what is held.
    pub watch: Arc<EngineWatch>,
    /// Hears of hints.
    pub hints: Arc<HintTaker>,
    /// Opens the cache at the first HELLO, which says the form.
    pub open: Box<CacheOpener>,
    /// Copies from and to engines' devices for workers that export their memory. `None`: they are
    /// told to copy by themselves.
    pub copier: Option<Arc<dyn DeviceCopier>>,
    /// Most connections at a time: a scheduler and its workers need one each.
    pub connections_max: usize,
    /// Most slots that an engine is granted in advance.
    pub credit_max: usize,
}

impl ConnectorSettings {
    /// Settings with the usual bounds, and listeners that do nothing.
    pub fn new(socket: PathBuf, open: Box<CacheOpener>) -> Self {
        let (watch, hints) = (Arc::new(|_| ()), Arc::new(|_, _: &[Block]| ()));
        let copier = None;
        Self { socket, watch, hints, open, copier, connections_max: 64, credit_max: 1024 }
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
