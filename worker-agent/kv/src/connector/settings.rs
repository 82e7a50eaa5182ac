//! Settings of the server that engines connect to, and its report.

use super::copier::DeviceCopier;
use super::uses::{NotedPlace, UseTaker};
use super::wire::{EngineHint, EngineKey, ShimPulse};
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

/// Something by which the agent may know where else the leading blocks of a request are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskHint {
    /// The hint that the engine was given with the request.
    Given(EngineHint),
    /// The first of the blocks, where the engine was given none.
    FirstKey(EngineKey),
}

/// Takes note of where else the blocks of a request may be, from the first that it asks for. Returns
/// where they are in a prompt that the agent has noted, if it has.
pub type HintTaker = dyn Fn(AskHint, &[Block]) -> Option<NotedPlace> + Send + Sync;

/// Hashes and tenants of the blocks of an engine whose shim does not know their tokens.
pub trait KeyBook: Send + Sync {
    /// The block with its hashes and tenant, if they are known; otherwise the block as it is.
    fn name(&self, key: &EngineKey, block: Block) -> Block;

    /// A block was registered without hashes. The cache learns them when they are known.
    fn unnamed(&self, key: &EngineKey, block: Block);
}

/// A book without names.
struct NoKeys;

impl KeyBook for NoKeys {
    fn name(&self, _: &EngineKey, block: Block) -> Block {
        block
    }

    fn unnamed(&self, _: &EngineKey, _: Block) {}
}

/// Settings of the server that engines connect to.
pub struct ConnectorSettings {
    /// Path of the socket, in a folder that is the agent's alone.
    pub socket: PathBuf,
    /// Hears which engines can load what is held.
    pub watch: Arc<EngineWatch>,
    /// Hears of hints.
    pub hints: Arc<HintTaker>,
    /// Hears what requests for noted prompts got.
    pub uses: Arc<UseTaker>,
    /// Knows hashes of blocks.
    pub keys: Arc<dyn KeyBook>,
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
        let (watch, hints) = (Arc::new(|_| ()), Arc::new(|_, _: &[Block]| None));
        let (uses, keys, copier) = (Arc::new(|_, _| ()), Arc::new(NoKeys), None);
        let (connections_max, credit_max) = (64, 1024);
        Self { socket, watch, hints, uses, keys, open, copier, connections_max, credit_max }
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
