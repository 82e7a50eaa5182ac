//! The pools of this process: one per model of the fleet, shared with other replicas.

use super::pool::Pool;
use super::replicas::Replicas;
use stator_fleet::Pools;
use stator_peers::Seat;
use stator_protos::discovery::ModelRecord;
use std::sync::Arc;
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

/// Opens a [`Pool`] for each model.
pub(crate) struct ModelPools {
    settings: PoolSettings,
    replicas: Option<Replicas>,
}

impl ModelPools {
    /// Pools with these settings. With a seat they share what they send with other replicas, and
    /// models are announced once the pools have taken over what those know.
    pub(crate) fn new(settings: PoolSettings, seat: Option<Seat>) -> Self {
        Self { settings, replicas: seat.map(Replicas::join) }
    }
}

impl Pools for ModelPools {
    type Pool = Pool;

    fn open(&self, model: &ModelRecord) -> Option<Arc<Pool>> {
        let pool = Pool::new(model.clone(), &self.settings)?;
        if let Some(replicas) = &self.replicas {
            replicas.share(&pool);
        }
        Some(pool)
    }

    fn maintain(&self, pool: Arc<Pool>) -> impl Future<Output = ()> + Send + 'static {
        pool.maintain()
    }

    async fn ready(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.warm().await;
        }
    }

    fn close(&self, pool: &Pool) {
        pool.close();
    }
}
