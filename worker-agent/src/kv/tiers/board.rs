//! Blocks that an agent's tiers hold for engines in other processes, as routers are to hear of them.
//!
//! The board outlives the engine: the next life of the engine begins with all that is held. It says
//! nothing while no engine is connected that could load the blocks.

use super::news::{TierChanges, stored_event, told_hash};
use crate::kv::peers::KvPeers;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_kv::Block;
use stator_kv::cache::{ReadsAhead, TieredCache};
use stator_kv::connector::EngineChange;
use stator_kv::tier::TierEvent;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed};
use stator_protos::load::TierCosts;
use stator_signals::events::OuterBlocks;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Board of the blocks that the tiers hold, for all ranks.
#[derive(Default)]
pub(crate) struct TierBoard(Mutex<BoardState>);

#[derive(Default)]
struct BoardState {
    /// The tiers, once they are open.
    cache: Weak<TieredCache>,
    /// Other agents that are read from.
    peers: Option<Arc<KvPeers>>,
    /// Time in which an engine computes a block; zero as long as it is not known.
    block_prefill: Duration,
    held: FxHashMap<SequenceHash, HeldBlock>,
    /// Connected schedulers that find what is held.
    readers: usize,
    /// Connected schedulers whose keys mean something else by now.
    strangers: usize,
    /// Tokens of a block.
    block_tokens: u32,
    ranks: Vec<Weak<RankBoard>>,
}

/// A block that is held, and on which media how often.
#[derive(Debug)]
struct HeldBlock {
    block: Block,
    copies: [u32; Medium::ALL.len()],
}

/// The board for one life of one rank.
pub(crate) struct RankBoard {
    board: Arc<TierBoard>,
    /// Tokens of a block as the fleet counts them.
    block_size: u32,
    /// Changes since the rank was told last.
    changes: Mutex<TierChanges>,
    told: Notify,
}

impl TierBoard {
    /// A board for engines that read from these agents, too.
    pub(crate) fn with_peers(peers: Option<Arc<KvPeers>>) -> Self {
        Self(Mutex::new(BoardState { peers, ..BoardState::default() }))
    }

    /// Takes note of the tiers, which are open now.
    pub(crate) fn opened(&self, cache: &Arc<TieredCache>) {
        self.0.lock().cache = Arc::downgrade(cache);
    }

    /// Measured costs of blocks of so many tokens; zeros where tiers and engine have others, or
    /// nothing was measured.
    pub(crate) fn costs(&self, block_size: u32) -> TierCosts {
        let Some((cache, compute)) = self.readable(block_size) else {
            return TierCosts::default();
        };
        let peers = self.0.lock().peers.clone();
        let peers = peers.map(|peers| peers.costs()).unwrap_or_default();
        TierCosts { compute_ns: compute.as_nanos() as u64, peers, ..cache.costs() }
    }

    /// The tiers, where an engine with blocks of so many tokens loads what they hold.
    pub(crate) fn cache(&self, block_size: u32) -> Option<Arc<TieredCache>> {
        self.readable(block_size).map(|(cache, _)| cache)
    }

    /// Whether [`TierBoard::read_ahead`] can do anything for blocks of so many tokens.
    pub(crate) fn can_read_ahead(&self, block_size: u32) -> bool {
        self.readable(block_size).is_some_and(|(cache, _)| cache.can_read_ahead())
    }

    /// Has the tiers read the leading ones of these blocks of so many tokens, for a request whose
    /// engine asks for them later. What still waits is dropped with the returned value.
    pub(crate) fn read_ahead(
        &self,
        block_size: u32,
        hashes: &[SequenceHash],
    ) -> Option<ReadsAhead> {
        let (cache, compute) = self.readable(block_size)?;
        Some(cache.read_ahead(hashes, compute))
    }

    /// The tiers and the time in which an engine computes a block, if an engine loads blocks of so many
    /// tokens from them.
    fn readable(&self, block_size: u32) -> Option<(Arc<TieredCache>, Duration)> {
        let state = self.0.lock();
        let is_open = state.is_open() && state.block_tokens == block_size;
        let cache = is_open.then(|| state.cache.upgrade()).flatten()?;
        Some((cache, state.block_prefill))
    }

    /// Takes note of what the tiers hold.
    pub(crate) fn take_event(&self, event: &TierEvent) {
        let mut state = self.0.lock();
        match event {
            TierEvent::Stored { block, medium } => state.add(block, *medium),
            TierEvent::Removed { block, medium } => state.remove(block, *medium),
            TierEvent::Cleared => {
                state.tell_all(-1);
                state.held.clear();
            }
        }
    }

    /// Takes note of who can load it. Keys that mean something else at one engine are taken to do so
    /// at all: the board then knows less than is true, never more.
    pub(crate) fn engine_changed(&self, change: EngineChange) {
        let mut state = self.0.lock();
        let was_open = state.is_open();
        match change {
            EngineChange::Joined { block_tokens } => {
                state.readers += 1;
                state.block_tokens = block_tokens;
            }
            EngineChange::Paced { block } => state.block_prefill = block,
            EngineChange::Reset => {
                state.readers -= 1;
                state.strangers += 1;
            }
            EngineChange::Left { was_reset: true } => state.strangers -= 1,
            EngineChange::Left { was_reset: false } => state.readers -= 1,
        }
        match (was_open, state.is_open()) {
            (false, true) => state.ring(1),
            (true, false) => state.ring(-1),
            _ => {}
        }
    }

    /// The board for a new life of a rank with blocks of so many tokens.
    pub(crate) fn rank(self: &Arc<Self>, block_size: u32) -> Arc<RankBoard> {
        let (changes, told) = (Mutex::default(), Notify::new());
        let rank = Arc::new(RankBoard { board: self.clone(), block_size, changes, told });
        let mut state = self.0.lock();
        state.ranks.retain(|rank| rank.strong_count() > 0);
        state.ranks.push(Arc::downgrade(&rank));
        rank
    }
}

impl fmt::Debug for TierBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierBoard").finish_non_exhaustive()
    }
}

impl BoardState {
    /// Whether an engine can load what is held.
    fn is_open(&self) -> bool {
        self.readers > 0 && self.strangers == 0
    }

    fn add(&mut self, block: &Block, medium: Medium) {
        let Some(hash) = told_hash(block) else { return };
        let held = self.held.entry(hash);
        let held = held.or_insert(HeldBlock { block: *block, copies: [0; 4] });
        held.copies[medium as usize] += 1;
        if held.copies[medium as usize] == 1 {
            self.tell(hash, (block, medium), 1);
        }
    }

    fn remove(&mut self, block: &Block, medium: Medium) {
        let Some((hash, held)) =
            block.hash.and_then(|hash| Some((hash, self.held.get_mut(&hash)?)))
        else {
            return;
        };
        // One that was stored before its hash was known was not counted.
        if held.copies[medium as usize] == 0 {
            return;
        }
        held.copies[medium as usize] -= 1;
        let is_last = held.copies[medium as usize] == 0;
        if held.copies == [0; 4] {
            self.held.remove(&hash);
        }
        if is_last {
            self.tell(hash, (block, medium), -1);
        }
    }

    /// Tells the ranks of a change, if it is one for their engines.
    fn tell(&self, hash: SequenceHash, of: (&Block, Medium), copies: i32) {
        if self.is_open() {
            for rank in self.ranks.iter().filter_map(Weak::upgrade) {
                rank.changes.lock().add(hash, of, copies);
                rank.told.notify_one();
            }
        }
    }

    /// Tells the ranks that all that is held came or went, if it is there for their engines.
    fn tell_all(&self, copies: i32) {
        if self.is_open() {
            self.ring(copies);
        }
    }

    fn ring(&self, copies: i32) {
        for rank in self.ranks.iter().filter_map(Weak::upgrade) {
            let mut changes = rank.changes.lock();
            for (hash, held, medium) in self.copies() {
                changes.add(hash, (&held.block, medium), copies);
            }
            drop(changes);
            rank.told.notify_one();
        }
    }

    fn copies(&self) -> impl Iterator<Item = (SequenceHash, &HeldBlock, Medium)> {
        self.held.iter().flat_map(|(hash, held)| {
            let on = |medium: &Medium| held.copies[*medium as usize] > 0;
            Medium::ALL.into_iter().filter(on).map(move |medium| (*hash, held, medium))
        })
    }
}

impl RankBoard {
    /// Waits for changes.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }

    fn stored<'a>(
        &self,
        blocks: impl IntoIterator<Item = (&'a Block, Medium)>,
        block_tokens: u32,
    ) -> Vec<KvEvent> {
        // Hashes of larger or smaller blocks name nothing that routers know.
        let blocks = blocks.into_iter().filter(|_| block_tokens == self.block_size);
        blocks.filter_map(|(block, medium)| stored_event(block, medium, self.block_size)).collect()
    }
}

impl OuterBlocks for RankBoard {
    fn all(&self) -> Vec<KvEvent> {
        // The lock holds up further changes until those of before are forgotten.
        let state = self.board.0.lock();
        *self.changes.lock() = TierChanges::default();
        if !state.is_open() {
            return Vec::new();
        }
        let mut held: Vec<_> =
            state.copies().map(|(_, held, medium)| (&held.block, medium)).collect();
        held.sort_unstable_by_key(|(block, medium)| (block.depth, block.hash, *medium));
        self.stored(held, state.block_tokens)
    }

    fn take_changes(&self) -> Vec<KvEvent> {
        let block_tokens = self.board.0.lock().block_tokens;
        let changes = std::mem::take(&mut *self.changes.lock()).sorted();
        let came = changes.came.iter().map(|(block, medium)| (block, *medium));
        let mut events = self.stored(came, block_tokens);
        for medium in Medium::ALL {
            let on = changes.went.iter().filter(|(_, on)| *on == medium);
            let hashes: Vec<_> = on.map(|(hash, _)| hash.0).collect();
            if !hashes.is_empty() {
                events.push(KvEvent::Removed(Removed { hashes, medium }));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use stator_protos::name::BlockName;
    use std::collections::BTreeSet;

    const JOINED: EngineChange = EngineChange::Joined { block_tokens: 16 };

    fn block(hash: u64) -> Block {
        let parent = (hash > 0).then(|| SequenceHash(hash - 1));
        Block {
            name: BlockName(hash.into()),
            hash: Some(SequenceHash(hash)),
            parent,
            depth: hash as u32,
            tenant: stator_kv::TenantKey::default(),
        }
    }

    fn stored(hash: u64, medium: Medium) -> TierEvent {
        TierEvent::Stored { block: block(hash), medium }
    }

    fn removed(hash: u64, medium: Medium) -> TierEvent {
        TierEvent::Removed { block: block(hash), medium }
    }

    /// Adds these events to a router's knowledge.
    fn hear(known: &mut BTreeSet<(u64, Medium)>, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    assert!(known.insert((stored.hashes[0], stored.medium)), "told twice");
                }
                KvEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        assert!(known.remove(&(*hash, removed.medium)), "never told of");
                    }
                }
                KvEvent::Cleared => panic!("the device's blocks stay"),
            }
        }
    }

    #[test]
    fn the_next_life_begins_with_what_is_held() {
        let board = Arc::new(TierBoard::default());
        board.engine_changed(JOINED);
        board.take_event(&stored(1, Medium::Disk));
        board.take_event(&stored(0, Medium::Host));
        let first = board.rank(16);
        let order = |events: &[KvEvent]| -> Vec<u64> {
            let hash = |event: &KvEvent| match event {
                KvEvent::Stored(stored) => stored.hashes[0],
                other => panic!("{other:?}"),
            };
            events.iter().map(hash).collect()
        };
        assert_eq!(order(&first.all()), [0, 1]);
        // The engine ends, and starts again.
        board.engine_changed(EngineChange::Left { was_reset: false });
        drop(first);
        let next = board.rank(16);
        assert_eq!(next.all(), []);
        board.engine_changed(JOINED);
        assert_eq!(order(&next.take_changes()), [0, 1]);
    }

    #[test]
    fn nothing_is_told_to_an_engine_that_would_not_find_it() {
        let board = Arc::new(TierBoard::default());
        let (rank, other) = (board.rank(16), board.rank(32));
        board.take_event(&stored(0, Medium::Host));
        assert_eq!((rank.all(), rank.take_changes()), (vec![], vec![]));
        board.engine_changed(JOINED);
        assert_eq!(rank.take_changes().len(), 1);
        assert_eq!(other.take_changes(), [], "its blocks have other hashes");
        board.engine_changed(EngineChange::Reset);
        assert!(matches!(&rank.take_changes()[..], [KvEvent::Removed(_)]));
        board.take_event(&stored(1, Medium::Host));
        assert_eq!(rank.take_changes(), []);
        board.engine_changed(EngineChange::Left { was_reset: true });
        board.engine_changed(JOINED);
        assert_eq!(rank.take_changes().len(), 2);
    }

    fn any_step() -> impl Strategy<Value = u8> {
        0..12_u8
    }

    proptest! {
        /// A router that follows the changes knows what one does that comes now.
        #[test]
        fn changes_lead_to_what_is_held(steps in vec((any_step(), 0..4_u64), 0..80)) {
            let board = Arc::new(TierBoard::default());
            let rank = board.rank(16);
            let (mut known, mut readers) = (BTreeSet::new(), 0);
            hear(&mut known, &rank.all());
            for (step, hash) in steps {
                match step {
                    0..=3 => board.take_event(&stored(hash, Medium::Host)),
                    4..=5 => board.take_event(&removed(hash, Medium::Host)),
                    6 => board.take_event(&stored(hash, Medium::Disk)),
                    7 => board.take_event(&removed(hash, Medium::Disk)),
                    8 => board.take_event(&TierEvent::Cleared),
                    9 => { readers += 1; board.engine_changed(JOINED) }
                    10 if readers > 0 => {
                        readers -= 1;
                        board.engine_changed(EngineChange::Left { was_reset: false });
                    }
                    _ => hear(&mut known, &rank.take_changes()),
                }
            }
            hear(&mut known, &rank.take_changes());
            let mut now = BTreeSet::new();
            hear(&mut now, &board.rank(16).all());
            prop_assert_eq!(known, now);
        }
    }
}
