//! The KV block pool: who holds which block, and which prefixes can be reused.
//!
//! A block is *free* (nobody's), *private* (one sequence fills it), *shared* (full, indexed under
//! its name, held by one or more sequences), *idle* (indexed, held by none, evictable) or *parked*
//! (indexed, held by none, pinned by a client).
//!
//! Events call blocks by their sequence hashes, which can be forged. Two blocks under one hash cost
//! whoever reads the events a block: when one of them goes, the reader takes both to be gone.
//!
//! What is indexed stays prefix-closed without any bookkeeping of children: a sequence holds every
//! block from its start on and releases them last to first, so a block is always released after
//! everything behind it, and the oldest idle block has nothing behind it.

mod lru;
#[cfg(test)]
mod tests;

use super::named::BlockKey;
use lru::Lru;
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Removed, Stored};
use stator_protos::name::BlockName;

/// Names a block of the pool, below the pool's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// The leading blocks of a sequence that the pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of idle ones among them; acquiring these reduces the allocatable blocks.
    pub idle: usize,
}

/// Holders, cached prefixes and eviction order of a fixed number of KV blocks. The KV itself is
/// elsewhere. Memory grows with the blocks ever used, up to `total`.
#[derive(Debug)]
pub struct Pool {
    block_size: u32,
    total: u32,
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    idle: Lru,
    /// Pinned blocks that no sequence holds.
    parked: usize,
    index: FxHashMap<BlockName, BlockId>,
    commits: u64,
    events: Vec<KvEvent>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    holders: u32,
    /// Whether it stays when no sequence holds it.
    is_pinned: bool,
    /// Set while indexed.
    key: Option<BlockKey>,
    /// Counts up over all commits: a block's number is above that of the block before it.
    commit: u64,
}

impl Pool {
    /// A pool of `total` free blocks of `block_size` tokens.
    pub fn new(total: u32, block_size: u32) -> Self {
        Self {
            block_size,
            total,
            blocks: Vec::new(),
            free: Vec::new(),
            idle: Lru::default(),
            parked: 0,
            index: FxHashMap::default(),
            commits: 0,
            events: Vec::new(),
        }
    }

    /// Blocks of the pool.
    pub fn total(&self) -> usize {
        self.total as usize
    }

    /// Blocks that [`Pool::allocate`] can hand out: free and idle ones.
    pub fn available(&self) -> usize {
        self.total as usize - self.used() - self.parked
    }

    /// Blocks that sequences hold.
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free.len() - self.idle()
    }

    /// Blocks that only the cache holds.
    pub fn idle(&self) -> usize {
        self.idle.len() + self.parked
    }

    /// The leading part of a sequence that is cached, up to the first gap.
    pub fn lookup(&self, sequence: &[BlockKey]) -> Prefix {
        let mut prefix = Prefix::default();
        for block in sequence.iter().map_while(|key| self.index.get(&key.name)) {
            prefix.blocks += 1;
            let block = &self.blocks[block.0 as usize];
            prefix.idle += usize::from(block.holders == 0 && !block.is_pinned);
        }
        prefix
    }

    /// The block of this prefix, if it is here.
    pub fn find(&self, name: BlockName) -> Option<BlockId> {
        self.index.get(&name).copied()
    }

    /// Holds the block of this prefix, if it is here.
    pub fn acquire(&mut self, name: BlockName) -> Option<BlockId> {
        let id = self.find(name)?;
        self.hold(id);
        Some(id)
    }

    /// Has the block of this prefix stay, if it is here, until it is unpinned.
    pub fn pin(&mut self, name: BlockName) -> Option<BlockId> {
        let id = self.find(name)?;
        let block = &mut self.blocks[id.0 as usize];
        if !std::mem::replace(&mut block.is_pinned, true) && block.holders == 0 {
            self.idle.remove(id.0);
            self.parked += 1;
        }
        Some(id)
    }

    /// Lets a pinned block go. Of a sequence's blocks, the last must go first.
    pub fn unpin(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if std::mem::take(&mut block.is_pinned) && block.holders == 0 {
            self.parked -= 1;
            self.idle.push(id.0);
        }
    }

    /// Hands out a private block, evicting the least recently used idle one where none is free.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let id = self.free.pop().or_else(|| self.fresh()).or_else(|| self.evict())?;
        self.blocks[id.0 as usize].holders = 1;
        Some(id)
    }

    /// Indexes a full private block under its name, for others to reuse; returns the block to go on
    /// with.
    ///
    /// Where another sequence has already indexed the same content, its block is that one, and
    /// `id` is free again: equal prefixes have equal KV to the bit. `parent` is the block before
    /// it, which the caller holds, and `tokens` are the block's own.
    pub fn commit(
        &mut self,
        id: BlockId,
        key: BlockKey,
        parent: Option<SequenceHash>,
        tokens: &[u32],
    ) -> BlockId {
        if let Some(first) = self.acquire(key.name) {
            self.release(id);
            return first;
        }
        self.index.insert(key.name, id);
        self.commits += 1;
        let block = &mut self.blocks[id.0 as usize];
        block.key = Some(key);
        block.commit = self.commits;
        self.report_stored(key.hash, parent, tokens);
        id
    }

    /// Gives a held block back. Of a sequence's blocks, the last must be given back first.
    pub fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.holders > 0, "block {} is released more often than held", id.0);
        block.holders -= 1;
        match (block.holders, block.key) {
            (0, Some(_)) if block.is_pinned => self.parked += 1,
            (0, Some(_)) => self.idle.push(id.0),
            (0, None) => self.free.push(id),
            _ => {}
        }
    }

    /// Forgets every cached prefix. No sequence may hold a block, and none may be pinned.
    pub fn clear(&mut self) {
        let held = self.used() + self.parked;
        assert_eq!(held, 0, "the pool is cleared while blocks are held");
        while let Some(id) = self.idle.pop() {
            self.blocks[id as usize] = Block::default();
            self.free.push(BlockId(id));
        }
        self.index.clear();
        self.events.push(KvEvent::Cleared);
    }

    /// Moves what happened since the last call to the end of `events`, in order.
    pub fn drain_events(&mut self, events: &mut Vec<KvEvent>) {
        events.append(&mut self.events);
    }

    /// Hashes of all indexed blocks, each after the one before it in its sequence.
    pub fn hashes(&self) -> Vec<SequenceHash> {
        let indexed = self.blocks.iter().filter_map(|block| Some((block.commit, block.key?.hash)));
        let mut hashes: Vec<_> = indexed.collect();
        hashes.sort_unstable();
        hashes.into_iter().map(|(_, hash)| hash).collect()
    }

    fn hold(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        match (block.holders, block.is_pinned) {
            (0, true) => self.parked -= 1,
            (0, false) => self.idle.remove(id.0),
            _ => {}
        }
        block.holders += 1;
    }

    /// A block that was never used.
    fn fresh(&mut self) -> Option<BlockId> {
        let id = self.blocks.len() as u32;
        (id < self.total).then(|| {
            self.blocks.push(Block::default());
            BlockId(id)
        })
    }

    fn evict(&mut self) -> Option<BlockId> {
        let id = BlockId(self.idle.pop()?);
        let block = std::mem::take(&mut self.blocks[id.0 as usize]);
        let key = block.key.expect("an idle block is indexed");
        self.index.remove(&key.name);
        self.report_removed(key.hash);
        Some(id)
    }

    /// Consecutive blocks of one sequence become one event.
    fn report_stored(&mut self, hash: SequenceHash, parent: Option<SequenceHash>, tokens: &[u32]) {
        let parent = parent.map(|hash| hash.0);
        if let Some(KvEvent::Stored(stored)) = self.events.last_mut()
            && stored.hashes.last().copied() == parent
        {
            stored.hashes.push(hash.0);
            stored.tokens.extend_from_slice(tokens);
            return;
        }
        self.events.push(KvEvent::Stored(Stored {
            hashes: vec![hash.0],
            parent,
            tokens: tokens.to_vec(),
            block_size: self.block_size,
            medium: Medium::Device,
            lora_name: None,
        }));
    }

    fn report_removed(&mut self, hash: SequenceHash) {
        match self.events.last_mut() {
            Some(KvEvent::Removed(removed)) => removed.hashes.push(hash.0),
            _ => self
                .events
                .push(KvEvent::Removed(Removed { hashes: vec![hash.0], medium: Medium::Device })),
        }
    }
}
