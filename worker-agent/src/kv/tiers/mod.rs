//! KV tiers of an agent's engines: host memory that all of them share, and what lies below.
//!
//! An engine's scheduler stores full blocks and looks for what its own memory lacks ([`link`], by the
//! trait of [`stator_engine::tiers`]). The engine's driver publishes what device and tiers hold
//! together ([`closed_events`]), from its own steps and from [`news`] of the cache. For engines in other
//! processes, whose events are followed, [`board`] says what the tiers hold.

mod board;
mod closed_events;
mod desk;
mod link;
mod news;
mod open;
mod own;
mod pace;
mod tier_use;

pub(crate) use board::{RankBoard, TierBoard};
pub(crate) use desk::{NoTiers, OpenTiers, TierDesk};
pub(crate) use link::EngineTiers;
pub(crate) use news::TierNews;
pub(crate) use open::{CacheRoom, open as open_cache, register};
pub(crate) use own::TierOrder;
pub(crate) use tier_use::TierUse;

use super::peers::{KvHolder, KvPeers};
use crate::worker::guarded::GuardedEngine;
use closed_events::ClosedEvents;
use link::Searches;
use pace::PrefillPace;
use stator_engine::named::NamedBlocks;
use stator_engine::{Request, RequestKey};
use stator_kv::cache::TieredCache;
use stator_kv::{Block, TenantKey};
use stator_pins::{PinOutcome, PinWish};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium};
use stator_protos::load::TierCosts;
use std::sync::Arc;
use std::time::Duration;
use tier_use::TierUses;

/// Time between two looks of an idle driver at the searches of its requests.
const LOOK: Duration = Duration::from_secs(1);

/// The driver's side of an engine's tiers.
pub(crate) struct WorkerTiers {
    cache: Arc<TieredCache>,
    news: Arc<TierNews>,
    pace: Arc<PrefillPace>,
    searches: Arc<Searches>,
    uses: Arc<TierUses>,
    events: ClosedEvents,
    peers: Option<Arc<KvPeers>>,
}

impl WorkerTiers {
    /// Both sides of a worker's tiers: the engine's and the driver's. `blocks_max` bounds the blocks
    /// that are published, of device and tiers together.
    pub(crate) fn connect(
        cache: &Arc<TieredCache>,
        news: Arc<TierNews>,
        block_size: u32,
        blocks_max: usize,
    ) -> (EngineTiers, Self) {
        let pace = Arc::new(PrefillPace::new(block_size));
        let engine = EngineTiers::connect(cache, news.clone(), pace.clone());
        let (searches, uses, cache) = (engine.searches(), engine.uses(), cache.clone());
        let events = ClosedEvents::new(block_size, blocks_max);
        (engine, Self { cache, news, pace, searches, uses, events, peers: None })
    }

    /// Takes out the blocks that a request got from the tiers.
    pub(crate) fn used(&self, request: RequestKey) -> Option<TierUse> {
        self.uses.take(request)
    }

    /// Tiers that read from other agents, too.
    pub(super) fn with_peers(self, peers: Option<Arc<KvPeers>>) -> Self {
        Self { peers, ..self }
    }

    /// Takes note of agents that are said to hold the leading blocks of a prompt: its search will
    /// find them there.
    pub(crate) fn hint(
        &self,
        engine: &mut GuardedEngine,
        request: &mut Request,
        holders: &[KvHolder],
    ) {
        if holders.is_empty() {
            return;
        }
        // The names stay with the request, so that they are computed once.
        engine.call(|engine| engine.kv().reusable(request));
        if let Some(named) = &request.named {
            self.hint_blocks(named, holders);
        }
    }

    /// Pins the blocks of a prompt in host memory for a time, as its client wishes.
    pub(crate) fn pin(
        &self,
        engine: &mut GuardedEngine,
        request: &mut Request,
        time: Duration,
    ) -> PinOutcome {
        engine.call(|engine| engine.kv().reusable(request));
        let Some(named) = &request.named else { return PinOutcome::default() };
        let hashes: Vec<_> = named.keys().iter().map(|key| key.hash).collect();
        self.cache.pin_prompt(&hashes, PinWish { tenant: named.space().number(), time })
    }

    fn hint_blocks(&self, named: &NamedBlocks, holders: &[KvHolder]) {
        let Some(peers) = &self.peers else { return };
        let (mut parent, tenant) = (None, TenantKey(named.space().number()));
        let blocks = (0..).zip(named.keys()).map(|(depth, key)| {
            let parent = parent.replace(key.hash);
            Block { name: key.name, hash: Some(key.hash), parent, depth, tenant }
        });
        peers.hint(holders, &blocks.collect::<Vec<_>>());
    }

    /// Waits until blocks have come or tiers hold others than before.
    pub(crate) async fn news(&self) {
        let told = self.news.told();
        match self.searches.is_empty() {
            true => told.await,
            // Only a fault of the cache makes this matter: it tells of every search's end.
            false => drop(tokio::time::timeout(LOOK, told).await),
        }
    }

    /// Whether tiers hold others than was published.
    pub(crate) fn has_events(&self) -> bool {
        self.news.has_changes()
    }

    /// Turns a step's events of the device into those of device and tiers.
    pub(crate) fn close(&mut self, events: &mut Vec<KvEvent>) {
        self.events.close(events, self.news.take());
    }

    /// Blocks that were published, each before those after it, and the nearest medium of each.
    pub(crate) fn blocks(&self) -> Vec<(SequenceHash, Medium)> {
        self.events.blocks()
    }

    /// Takes note of how long a step took that computed this many tokens of prompts.
    pub(crate) fn measured(&self, prefill_tokens: u32, time: Duration) {
        self.pace.measured(prefill_tokens, time);
    }

    /// Measured costs of blocks: to compute them, and to load them from the tiers.
    pub(crate) fn costs(&self) -> TierCosts {
        let compute_ns = self.pace.block().as_nanos() as u64;
        let peers = self.peers.as_ref().map(|peers| peers.costs()).unwrap_or_default();
        TierCosts { compute_ns, peers, ..self.cache.costs() }
    }

    /// Forgets all blocks of all tiers, for all workers.
    pub(crate) fn clear(&self) {
        self.cache.clear();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod fault_tests;
#[cfg(test)]
mod tests;
