//! Facts about the fleet that the flags of KV tiers are read with.

use stator_fleet_model::Transfer;

/// Facts that a worker's tiers depend on, beside their own flags.
pub(super) struct TierSurroundings {
    pub(super) block_size: u32,
    pub(super) block_bytes: f64,
    pub(super) transfer: Transfer,
    /// Workers of the fleet.
    pub(super) workers: u32,
}
