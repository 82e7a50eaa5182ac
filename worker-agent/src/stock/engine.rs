//! A stock engine that serves, and what its agent holds of it.

use super::host::Host;
use super::metrics::StockMetrics;
use super::place::EnginePlace;
use super::probe::Probe;
use super::tiers::TierService;
use crate::config::StockSettings;
use crate::kv::peers::KvPeers;
use stator_dialect::Description;
use std::sync::Arc;

/// A stock engine that serves.
pub(crate) struct StockEngine {
    pub(super) settings: StockSettings,
    pub(super) probe: Arc<Probe>,
    pub(super) host: Host,
    pub(super) place: Arc<EnginePlace>,
    pub(super) description: Description,
    pub(super) block_size: u32,
    pub(super) total_blocks: u32,
    pub(super) metrics: StockMetrics,
    /// The tiers that the engine uses in its own process.
    pub(super) tiers: Option<TierService>,
    /// Agents that the tiers read from, too.
    pub(super) peers: Option<Arc<KvPeers>>,
}
