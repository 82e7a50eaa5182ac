//! An engine's side of the cache: its scheduler's stores and lookups.

use super::news::TierNews;
use super::pace::PrefillPace;
use super::tier_use::{TierUse, TierUses};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_engine::RequestKey;
use stator_engine::tiers::{OuterBlock, OuterFound, OuterLookup, OuterTiers};
use stator_kv::cache::{Client, Progress, TieredCache};
use stator_kv::store::RequestId;
use stator_kv::{Block, SlotId, TenantKey};
use stator_protos::name::BlockName;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait of a request for blocks. The cache ends waits earlier: this bounds its faults.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// The cache as one engine uses it.
pub(crate) struct EngineTiers {
    link: Arc<EngineLink>,
    pace: Arc<PrefillPace>,
    requests: u64,
    /// Slots to fill that the engine has been granted: one at most, so that no memory lies idle.
    granted: Vec<SlotId>,
}

/// An engine's connection, shared with its lookups.
struct EngineLink {
    cache: Arc<TieredCache>,
    client: Client,
    searches: Arc<Searches>,
    uses: Arc<TierUses>,
}

/// Searches of an engine that are not over.
#[derive(Debug, Default)]
pub(super) struct Searches(Mutex<FxHashMap<RequestId, SearchProgress>>);

/// What has been found for a request.
#[derive(Clone, Debug, Default)]
struct SearchProgress {
    slots: Vec<SlotId>,
    /// Blocks on their way; absent until the cache has said so.
    pending: Option<usize>,
}

impl EngineTiers {
    /// Connects an engine; its driver wakes by `news`.
    pub(super) fn connect(
        cache: &Arc<TieredCache>,
        news: Arc<TierNews>,
        pace: Arc<PrefillPace>,
    ) -> Self {
        let searches = Arc::new(Searches::default());
        let told = searches.clone();
        let listener = Arc::new(move |progress| {
            told.proceed(progress);
            news.wake();
        });
        let client = cache.connect(listener);
        let uses = Arc::default();
        let link = Arc::new(EngineLink { cache: cache.clone(), client, searches, uses });
        Self { link, pace, requests: 0, granted: Vec::new() }
    }

    /// Uses of the tiers by the engine's requests.
    pub(super) fn uses(&self) -> Arc<TierUses> {
        self.link.uses.clone()
    }

    /// Its searches.
    pub(super) fn searches(&self) -> Arc<Searches> {
        self.link.searches.clone()
    }
}

impl OuterTiers for EngineTiers {
    fn look_up(
        &mut self,
        of: RequestKey,
        names: &[BlockName],
        held: usize,
    ) -> Option<Box<dyn OuterLookup>> {
        let EngineLink { client, searches, .. } = &*self.link;
        let (held, missing) = names.split_at(held.min(names.len()));
        // What is used on the device is worth its place in host memory, too.
        client.touch(held);
        if missing.is_empty() {
            return None;
        }
        self.requests += 1;
        let request = RequestId(self.requests);
        // Before the question: progress may come before its answer does.
        searches.0.lock().insert(request, SearchProgress::default());
        let begun = Instant::now();
        let found = client.ask(request, missing, self.pace.block());
        let is_empty = found.ready.is_empty() && found.pending == 0;
        let used = TierUse { asked: missing.len(), host: found.ready.len(), ..TierUse::default() };
        let lookup = CacheLookup { link: self.link.clone(), request, of, begun, used };
        searches.answer(request, found.ready, found.pending);
        (!is_empty).then(|| Box::new(lookup) as Box<dyn OuterLookup>)
    }

    fn store(&mut self, block: &OuterBlock, kv: &[u8]) {
        let client = &self.link.client;
        if self.granted.is_empty() {
            self.granted = client.grant(1);
        }
        // Without room the block is forgotten when the engine evicts it.
        let Some(slot) = self.granted.pop() else { return };
        let stored = Block {
            name: block.key.name,
            hash: Some(block.key.hash),
            parent: block.parent,
            depth: block.depth,
            tenant: TenantKey(block.space.number()),
        };
        self.granted.extend(client.store(slot, stored, kv));
    }
}

impl Searches {
    /// Whether a request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn proceed(&self, progress: Progress) {
        if let Some(search) = self.0.lock().get_mut(&progress.request) {
            search.slots.extend(progress.slots);
            search.pending = Some(progress.pending);
        }
    }

    /// The answer to a question: the slots before those of later progress.
    fn answer(&self, request: RequestId, ready: Vec<SlotId>, pending: usize) {
        if let Some(search) = self.0.lock().get_mut(&request) {
            search.slots.splice(0..0, ready);
            search.pending.get_or_insert(pending);
        }
    }
}

/// A request's search. Dropping it frees what was found.
struct CacheLookup {
    link: Arc<EngineLink>,
    request: RequestId,
    /// The request of the engine.
    of: RequestKey,
    begun: Instant,
    used: TierUse,
}

impl OuterLookup for CacheLookup {
    fn found(&mut self) -> OuterFound {
        let searches = self.link.searches.0.lock();
        let Some(search) = searches.get(&self.request) else { return OuterFound::default() };
        let waits = self.begun.elapsed() < WAIT_MAX;
        let pending = search.pending.filter(|_| waits).unwrap_or(0);
        OuterFound { ready: search.slots.len(), pending }
    }

    fn holds(&mut self, block: usize) -> bool {
        self.slot(block).is_some()
    }

    fn load(&mut self, block: usize, start: usize, kv: &mut [u8]) {
        // The cache has compared the block with its checksum, and its slot is pinned since.
        let slot = self.slot(block).expect("a block that can be loaded stays so");
        if self.used.loaded == 0 {
            self.used.waited = self.begun.elapsed();
        }
        self.link.cache.arena().read_part(slot, start, kv);
        self.used.loaded += usize::from(start == 0);
        self.used.bytes += kv.len();
    }
}

impl CacheLookup {
    fn slot(&self, block: usize) -> Option<SlotId> {
        let searches = self.link.searches.0.lock();
        searches.get(&self.request).and_then(|search| search.slots.get(block).copied())
    }
}

impl Drop for CacheLookup {
    fn drop(&mut self) {
        if self.used.loaded > 0 {
            self.link.uses.note(self.of, self.used);
        }
        self.link.client.end(self.request);
        self.link.searches.0.lock().remove(&self.request);
    }
}

impl fmt::Debug for CacheLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheLookup").field("request", &self.request).finish_non_exhaustive()
    }
}
