//! The block store at work: one arena, one [`BlockStore`], the tiers, and the engines that use them.
//!
//! This is the edge around the pure store. Clients call in from any thread and get answers at once.
//! One thread carries out what the store decides, in order: it orders reads and writes of the
//! tiers, tells clients of progress, and passes events on. Bytes are moved by the tiers and by the
//! engines themselves. Start reading at [`TieredCache::open`].

mod client;
mod dispatch;
mod lender;
mod operate;
mod questions;
mod settings;
mod shared;
mod state;

pub use client::{Client, LostClient};
pub use lender::CacheLender;
pub use operate::{BlockChoice, CacheStatus, NoSuchTier};
pub use settings::{
    CacheOpenError, CacheSettings, CacheTier, Progress, ProgressListener, TierEventListener,
    TierOpener, TierPlace, TierReporter,
};

use crate::arena::Arena;
use crate::cost::EnginePace;
use crate::metrics::HeldBlocks;
use crate::store::{AheadReads, BlockStore, StoreSettings, TierId};
use crate::tier::Tier;
use crate::{Block, BlockForm};
use dispatch::{DispatchThread, Dispatcher};
use shared::{Clock, SharedStore};
use state::ClientListener;
use stator_protos::hash::SequenceHash;
use stator_protos::load::TierCosts;
use std::sync::Arc;
use std::time::Instant;

/// The KV blocks of one form in host memory and in the tiers below it.
///
/// The cache ends when it and all its clients are dropped: what tiers still do then ends in memory
/// that nobody looks at, and is not reported to anybody.
pub struct TieredCache {
    form: BlockForm,
    shared: Arc<SharedStore>,
    dispatch: Arc<DispatchThread>,
}

impl TieredCache {
    /// Makes the arena, opens the tiers, and starts the thread that gives them work.
    ///
    /// # Errors
    ///
    /// The system has no memory or no thread for it, or a tier cannot be opened.
    pub fn open(form: BlockForm, settings: CacheSettings) -> Result<Arc<Self>, CacheOpenError> {
        let origin = Instant::now();
        let dispatcher = assemble(form, settings, Arc::new(move || origin.elapsed()))?;
        let shared = dispatcher.shared.clone();
        let dispatch = Arc::new(DispatchThread::start(dispatcher).map_err(CacheOpenError::Thread)?);
        Ok(Arc::new(Self { form, shared, dispatch }))
    }

    /// A new client.
    ///
    /// The cache's own thread calls `listener`, in the order of events, possibly before the question
    /// is answered in the client's thread. The listener must not wait for anything that waits for
    /// another request's progress.
    pub fn connect(self: &Arc<Self>, listener: ProgressListener) -> Client {
        let listener = ClientListener { tell: listener, is_lender: false };
        Client::new(self.shared.clone(), self.dispatch.clone(), listener)
    }

    /// A new client that lends blocks to other agents.
    fn connect_lender(self: &Arc<Self>, listener: ProgressListener) -> Client {
        let listener = ClientListener { tell: listener, is_lender: true };
        Client::new(self.shared.clone(), self.dispatch.clone(), listener)
    }

    /// Form of all blocks.
    pub fn form(&self) -> BlockForm {
        self.form
    }

    /// The memory in which engines find and leave blocks.
    pub fn arena(&self) -> &Arena {
        self.shared.arena()
    }

    /// The memory, for servers that outlive a borrow.
    pub fn shared_arena(&self) -> Arc<Arena> {
        self.shared.shared_arena()
    }

    /// Measured costs of loading blocks into host memory, and of going over blocks that are there. How
    /// fast the engine computes is not known here.
    pub fn costs(&self) -> TierCosts {
        self.shared.costs()
    }

    /// Starts to read the leading blocks of a prompt from the tiers, by the hashes of KV events, as far
    /// as that is faster than to compute them. It is for a request that has come and whose engine asks
    /// later; `pace` is that engine's. Reads that wait are dropped with the returned value, unless others
    /// want them.
    #[must_use = "reads that wait are dropped with it"]
    pub fn read_ahead(&self, hashes: &[SequenceHash], pace: impl Into<EnginePace>) -> ReadsAhead {
        let reads = self.shared.read_ahead(hashes, pace.into());
        ReadsAhead { store: self.shared.clone(), reads }
    }

    /// Whether [`TieredCache::read_ahead`] can do anything: there is a disk or an object store.
    pub fn can_read_ahead(&self) -> bool {
        self.shared.can_read_ahead()
    }

    /// Takes the hashes of blocks that were stored before their hashes were known. What a tier has
    /// written without them stays so there.
    pub fn learn(&self, blocks: &[Block]) {
        self.shared.learn(blocks);
    }

    /// Forgets all blocks, in host memory and in the tiers.
    pub fn clear(&self) {
        self.shared.clear();
    }
}

/// Reads for a request whose engine asks later, wanted until this is dropped.
pub struct ReadsAhead {
    store: Arc<SharedStore>,
    reads: AheadReads,
}

impl Drop for ReadsAhead {
    fn drop(&mut self) {
        self.store.end_ahead(std::mem::take(&mut self.reads));
    }
}

/// All parts of a cache, ready to be run by a thread or step by step.
fn assemble(
    form: BlockForm,
    settings: CacheSettings,
    clock: Clock,
) -> Result<Dispatcher, CacheOpenError> {
    let arena = Arena::new(settings.slots, form.block_bytes).map_err(CacheOpenError::Arena)?;
    let arena = Arc::new(arena);
    let tiers = settings.tiers.iter().map(|tier| tier.settings.clone()).collect();
    let share = |percent: u8| settings.slots as usize * usize::from(percent) / 100;
    let limits = StoreSettings {
        tenant_slots_max: settings.tenant_share_percent.map(share),
        pins: settings.pins,
        ..StoreSettings::new(settings.slots, form.block_bytes, tiers)
    };
    let shared =
        Arc::new(SharedStore::new(BlockStore::new(limits), arena.clone(), &settings, clock));
    let mut tiers = Vec::with_capacity(settings.tiers.len());
    for (at, tier) in settings.tiers.into_iter().enumerate() {
        let (of, id) = (shared.clone(), TierId(at as u8));
        // A tier may report before it is open: the store hears of it, and nothing is done yet.
        let report: TierReporter = Arc::new(move |report| of.report(id, report));
        let place = TierPlace { form, arena: arena.clone(), report };
        let name = tier.name;
        let opened = (tier.open)(place).map_err(|error| CacheOpenError::Tier { name, error })?;
        tiers.push(opened as Arc<dyn Tier>);
    }
    let held = HeldBlocks::new(&settings.metrics, settings.slots, &shared.tier_names());
    Ok(Dispatcher { shared, tiers, events: settings.events, held })
}
#[cfg(test)]
#[cfg(target_os = "linux")]
mod crossing_tests;
#[cfg(all(test, target_os = "linux"))]
mod fault_tests;
#[cfg(all(test, target_os = "linux"))]
mod testkit;
#[cfg(all(test, target_os = "linux"))]
mod tests;
#[cfg(all(test, target_os = "linux"))]
mod thread_tests;
#[cfg(all(test, target_os = "linux"))]
mod verify_tests;
