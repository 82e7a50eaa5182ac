//! The pools of this process: one per model of the fleet, shared with other replicas.

use super::pool::Pool;
use super::pool_settings::PoolSettings;
use super::replicas::Replicas;
use stator_fleet::Pools;
use stator_peers::Seat;
use stator_protos::discovery::ModelRecord;
use std::sync::Arc;

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
