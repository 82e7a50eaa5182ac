//! A book of the pages whose tokens are known.

use super::PageKey;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_kv::cache::TieredCache;
use stator_kv::connector::KeyBook;
use stator_kv::connector::wire::EngineKey;
use stator_kv::{Block, TenantKey};
use stator_protos::hash::{HashSeed, SequenceHash, block_hash, next_sequence_hash};
use stator_protos::kv_event::{EngineEvent, KvEvent, Stored};
use stator_signals::events::EngineListener;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

/// Pages that are known at most, about 30 MB of them; the oldest goes first.
const PAGES_MAX: usize = 1 << 18;
/// Blocks at most that wait for the tokens of their pages; the oldest goes first.
const WAITING_MAX: usize = 1 << 14;

/// The pages that an SGLang has told of, for all its ranks. It outlives the engine.
///
/// A page is told when SGLang has computed it, and stored a little later: usually its name is known
/// by then, and otherwise the cache learns it as soon as it is. Pages of LoRA adapters have no names
/// here, because SGLang draws a part of their keys by lot.
pub(crate) struct PageBook(Mutex<BookState>);

struct BookState {
    pages_max: usize,
    /// Pages by the hash that events have for them.
    told: FxHashMap<u64, KnownPage>,
    by_key: FxHashMap<PageKey, PageName>,
    /// Pages in the order in which they were told.
    order: VecDeque<(u64, PageKey)>,
    /// Blocks without names, by the keys of their pages. Ranks have a block each.
    waiting: FxHashMap<PageKey, Vec<Block>>,
    waiting_order: VecDeque<PageKey>,
    /// The tiers, once they are open.
    cache: Weak<TieredCache>,
}

#[derive(Clone, Copy)]
struct KnownPage {
    key: PageKey,
    hash: SequenceHash,
}

/// Hashes of a page and the one before it, as routers know them, and whose it is.
#[derive(Clone, Copy)]
struct PageName {
    hash: SequenceHash,
    parent: Option<SequenceHash>,
    tenant: TenantKey,
}

impl PageName {
    fn give(self, block: Block) -> Block {
        Block { hash: Some(self.hash), parent: self.parent, tenant: self.tenant, ..block }
    }
}

impl Default for PageBook {
    fn default() -> Self {
        Self::with_room(PAGES_MAX)
    }
}

impl PageBook {
    fn with_room(pages_max: usize) -> Self {
        Self(Mutex::new(BookState {
            pages_max,
            told: FxHashMap::default(),
            by_key: FxHashMap::default(),
            order: VecDeque::new(),
            waiting: FxHashMap::default(),
            waiting_order: VecDeque::new(),
            cache: Weak::new(),
        }))
    }

    /// Takes note of the tiers, which are open now.
    pub(crate) fn opened(&self, cache: &Arc<TieredCache>) {
        self.0.lock().cache = Arc::downgrade(cache);
    }
}

impl EngineListener for PageBook {
    fn heard(&self, events: &[EngineEvent]) {
        let mut state = self.0.lock();
        let mut named = Vec::new();
        for EngineEvent { event, detail } in events {
            if let KvEvent::Stored(stored) = event
                && stored.lora_name.is_none()
            {
                state.add(stored, detail.cache_salt.as_deref(), &mut named);
            }
        }
        let cache = state.cache.upgrade();
        // The cache tells of what it learns.
        drop(state);
        if let Some(cache) = cache.filter(|_| !named.is_empty()) {
            cache.learn(&named);
        }
    }
}

impl KeyBook for PageBook {
    fn name(&self, key: &EngineKey, block: Block) -> Block {
        let name = self.0.lock().by_key.get(&page_key(key)).copied();
        name.map_or(block, |name| name.give(block))
    }

    fn unnamed(&self, key: &EngineKey, block: Block) {
        let key = page_key(key);
        let mut state = self.0.lock();
        let Some(name) = state.by_key.get(&key).copied() else {
            return state.wait(key, block);
        };
        let cache = state.cache.upgrade();
        drop(state);
        if let Some(cache) = cache {
            cache.learn(&[name.give(block)]);
        }
    }
}

impl BookState {
    /// Adds the pages of an event; blocks that have waited for one of them are named.
    fn add(&mut self, stored: &Stored, salt: Option<&str>, named: &mut Vec<Block>) {
        let page_tokens = stored.block_size as usize;
        if page_tokens == 0 || stored.tokens.len() != stored.hashes.len() * page_tokens {
            return;
        }
        let salt = salt.filter(|salt| !salt.is_empty());
        let (mut key, mut parent) = (salt.map(PageKey::of_salt), None);
        if let Some(before) = stored.parent {
            // What follows on a page from before this agent has no key that is known.
            let Some(page) = self.told.get(&before) else { return };
            (key, parent) = (Some(page.key), Some(page.hash));
        }
        let (seed, tenant) = (HashSeed::new(None, salt), TenantKey::of_salt(salt));
        for (theirs, tokens) in stored.hashes.iter().zip(stored.tokens.chunks_exact(page_tokens)) {
            let page = PageKey::next(key, tokens);
            let hash = next_sequence_hash(parent, block_hash(tokens, seed));
            let name = PageName { hash, parent, tenant };
            if self.told.insert(*theirs, KnownPage { key: page, hash }).is_none() {
                self.order.push_back((*theirs, page));
            }
            self.by_key.insert(page, name);
            let waited = self.waiting.remove(&page).unwrap_or_default();
            named.extend(waited.into_iter().map(|block| name.give(block)));
            (key, parent) = (Some(page), Some(hash));
        }
        while self.order.len() > self.pages_max {
            let Some((theirs, page)) = self.order.pop_front() else { break };
            self.told.remove(&theirs);
            self.by_key.remove(&page);
        }
    }

    fn wait(&mut self, key: PageKey, block: Block) {
        let blocks = self.waiting.entry(key).or_default();
        if !blocks.contains(&block) {
            blocks.push(block);
            self.waiting_order.push_back(key);
        }
        while self.waiting_order.len() > WAITING_MAX {
            let Some(oldest) = self.waiting_order.pop_front() else { break };
            self.waiting.remove(&oldest);
        }
    }
}

/// An engine's key is that of a page and the ranks that have it.
fn page_key(EngineKey(key): &EngineKey) -> PageKey {
    PageKey(*key.first_chunk().expect("a key has 36 bytes"))
}

impl fmt::Debug for PageBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBook").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::prompt_keys;
    use super::*;
    use stator_protos::hash::sequence_hashes;
    use stator_protos::kv_event::{Detail, Medium};
    use stator_protos::name::BlockName;
    use std::num::NonZeroU32;

    const PAGE: NonZeroU32 = NonZeroU32::new(4).expect("not 0");

    fn tokens(pages: u32) -> Vec<u32> {
        (0..4 * pages).collect()
    }

    /// Tells of the pages `from..to` of a sequence, under hashes that say their places.
    fn tell(book: &PageBook, (from, to): (u64, u64), salt: Option<&str>) {
        let stored = Stored {
            hashes: (from..to).collect(),
            parent: from.checked_sub(1),
            tokens: tokens(to as u32)[4 * from as usize..].to_vec(),
            block_size: PAGE.get(),
            medium: Medium::Device,
            lora_name: None,
        };
        let detail = Detail { cache_salt: salt.map(str::to_owned), ..Detail::default() };
        book.heard(&[EngineEvent { event: KvEvent::Stored(stored), detail }]);
    }

    fn key(page: usize, salt: Option<&str>) -> EngineKey {
        let PageKey(hash) = prompt_keys(&tokens(8), salt, PAGE)[page];
        let mut key = [9; 36];
        key[..32].copy_from_slice(&hash);
        EngineKey(key)
    }

    fn block(name: u128) -> Block {
        let tenant = TenantKey::default();
        Block { name: BlockName(name), hash: None, parent: None, depth: 0, tenant }
    }

    fn named(book: &PageBook, page: usize, salt: Option<&str>) -> Option<SequenceHash> {
        book.name(&key(page, salt), block(1)).hash
    }

    #[test]
    fn pages_are_named_as_routers_name_their_tokens() {
        let book = PageBook::default();
        for salt in [None, Some("tenant")] {
            tell(&book, (0, 2), salt);
            tell(&book, (2, 3), salt);
            let mut hashes = Vec::new();
            sequence_hashes(&tokens(3), PAGE, HashSeed::new(None, salt), &mut hashes);
            let names: Vec<_> = (0..3).map(|page| named(&book, page, salt)).collect();
            assert_eq!(names, hashes.iter().copied().map(Some).collect::<Vec<_>>());
            let last = book.name(&key(2, salt), block(1));
            assert_eq!((last.parent, last.tenant), (Some(hashes[1]), TenantKey::of_salt(salt)));
            assert_eq!(named(&book, 3, salt), None);
        }
    }

    #[test]
    fn a_page_after_an_unknown_one_has_no_name() {
        let book = PageBook::default();
        tell(&book, (1, 3), None);
        assert_eq!(named(&book, 1, None), None);
        tell(&book, (0, 1), None);
        tell(&book, (1, 3), None);
        assert!(named(&book, 2, None).is_some());
    }

    #[test]
    fn the_oldest_pages_are_forgotten() {
        let book = PageBook::with_room(2);
        tell(&book, (0, 3), None);
        let known: Vec<_> = (0..3).map(|page| named(&book, page, None).is_some()).collect();
        assert_eq!(known, [false, true, true]);
    }

    #[test]
    fn the_cache_learns_names_of_blocks_that_were_there_before() {
        use stator_kv::BlockForm;
        use stator_kv::cache::CacheSettings;
        let form = BlockForm { fingerprint: [1; 32], block_bytes: 64 };
        let cache = TieredCache::open(form, CacheSettings::new(8)).unwrap();
        let engine = cache.connect(Arc::new(|_| ()));
        let book = PageBook::default();
        book.opened(&cache);
        for (page, slot) in (0..2_usize).zip(engine.grant(2)) {
            let block = block(page as u128);
            assert_eq!(engine.store(slot, block, &[0; 64]), None);
            book.unnamed(&key(page, None), block);
        }
        assert_eq!(engine.event_hash(BlockName(1)), None);
        tell(&book, (0, 2), None);
        assert_eq!(engine.event_hash(BlockName(1)), named(&book, 1, None));
        assert!(book.0.lock().waiting.is_empty());
        // Told between the look at the book and the registration.
        let late = engine.grant(1)[0];
        tell(&book, (2, 3), None);
        assert_eq!(engine.store(late, block(2), &[0; 64]), None);
        book.unnamed(&key(2, None), block(2));
        assert_eq!(engine.event_hash(BlockName(2)), named(&book, 2, None));
    }
}
