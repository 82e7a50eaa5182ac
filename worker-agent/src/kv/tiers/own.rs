//! Tiers of built-in engines.

use super::open::{CacheRoom, blocks_max, open};
use super::{TierDesk, TierNews, WorkerTiers};
use crate::config::KvTierSettings;
use crate::kv::peers::KvPeers;
use stator_engine::EngineOptions;
use stator_engine::SharedKv;
use stator_engine::compute::Compute;
use stator_engine::scheduler::Scheduler;
use stator_engine::transfer::KvForm;
use stator_kv::BlockForm;
use stator_kv::metrics::KvMetrics;
use std::sync::Arc;

/// Purpose for which forms of blocks are hashed.
const FORM_CONTEXT: &str = "stator 2026 form of the KV blocks of built-in engines";

/// An order to keep the blocks of engines in tiers, too.
pub(crate) struct TierOrder {
    /// The tiers.
    pub(crate) settings: KvTierSettings,
    /// Counts what happens.
    pub(crate) metrics: KvMetrics,
    /// Key by which an object store's blocks are known to be the fleet's.
    pub(crate) object_key: Option<[u8; 32]>,
    /// Other agents, to read from and to lend to.
    pub(crate) peers: Option<Arc<KvPeers>>,
    /// Operators' access to the tiers.
    pub(crate) desk: TierDesk,
}

impl TierOrder {
    /// Opens the tiers, and connects engines that are alike: all share one host memory. Returns them
    /// with their drivers' sides of the tiers.
    ///
    /// # Errors
    ///
    /// A tier cannot be opened, or there is no room for one block.
    pub(crate) fn connect<C: Compute>(
        self,
        engines: Vec<Scheduler<C>>,
        options: &EngineOptions,
    ) -> anyhow::Result<(Vec<Scheduler<C>>, Vec<WorkerTiers>)> {
        let Some(first) = engines.first() else { return Ok((engines, Vec::new())) };
        let form = block_form(SharedKv::form(first));
        let news: Vec<_> = engines.iter().map(|_| Arc::new(TierNews::default())).collect();
        let told = news.clone();
        let Self { settings, metrics, object_key, peers, desk } = self;
        // All engines can use what the tiers hold, so all workers publish it.
        let events = Arc::new(move |event| told.iter().for_each(|news| news.take_event(&event)));
        let room = CacheRoom {
            events,
            metrics,
            object_key,
            pins: options.pins,
            peers: peers.clone(),
            desk,
        };
        let cache = open(form, &settings, room)?;
        let most = blocks_max(form, &settings) + options.total_blocks as usize;
        let connected = engines.into_iter().zip(news).map(|(engine, news)| {
            let (tiers, worker) = WorkerTiers::connect(&cache, news, options.block_size, most);
            (engine.with_tiers(Box::new(tiers)), worker.with_peers(peers.clone()))
        });
        Ok(connected.unzip())
    }
}

/// The form of blocks for the cache. The engine's fingerprint covers the revision of its arithmetic:
/// a release that changes neither arithmetic nor layout goes on with the blocks of the one before.
pub(super) fn block_form(form: KvForm) -> BlockForm {
    let mut hasher = blake3::Hasher::new_derive_key(FORM_CONTEXT);
    hasher.update(&form.fingerprint.to_le_bytes());
    BlockForm { fingerprint: *hasher.finalize().as_bytes(), block_bytes: form.block_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_another_model_have_another_form() {
        let form = |fingerprint| block_form(KvForm { fingerprint, block_bytes: 8 });
        assert_eq!(form(1), form(1));
        assert_ne!(form(1).fingerprint, form(2).fingerprint);
    }
}
