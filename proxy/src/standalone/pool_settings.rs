//! Settings of pools.

use std::time::Duration;

/// Settings of every pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolSettings {
    /// Placement of every model's requests; the block size is each model's own.
    pub(crate) placement: stator_placement::PlacementSettings,
    /// Queue settings, for requests that no worker of their model can take yet.
    pub(crate) queue: stator_queue::CheckedSettings,
    /// Longest wait of requests that come while no worker of their model is there; 30 s by default,
    /// and never longer than the queue's.
    pub(crate) worker_wait: Duration,
    /// Time for which adapters stay known after the last worker that had them has left; 10 minutes
    /// by default.
    pub(crate) adapter_linger: Duration,
    /// Seed of the random choices.
    pub(crate) seed: u64,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            placement: stator_placement::PlacementSettings::default(),
            queue: stator_queue::CheckedSettings::default(),
            worker_wait: Duration::from_secs(30),
            adapter_linger: Duration::from_secs(600),
            seed: 0,
        }
    }
}
