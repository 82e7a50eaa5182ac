//! KV that leaves and comes: prompts that stay held for another engine, and blocks that another
//! engine computed.

use std::num::NonZeroU32;

use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Scheduler;
use crate::engine::compute::Compute;
use crate::engine::pool::{BlockId, Pool};
use crate::engine::transfer::{BlockKv, KvForm};
use crate::engine::{Request, RequestKey, Rest, Reusable, SharedKv};

/// Of all blocks, one in so many may be kept: the others are for what runs.
const KEPT_SHARE: usize = 2;

/// Blocks of a prompt that are kept; none until it is computed.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) blocks: Vec<BlockId>,
    pub(super) hashes: Vec<SequenceHash>,
}

impl Kept {
    pub(super) fn release(self, pool: &mut Pool) {
        for block in self.blocks.into_iter().rev() {
            pool.release(block);
        }
    }
}

impl<C: Compute> Scheduler<C> {
    /// Blocks that may be kept beside those that are.
    pub(super) fn room_to_keep(&self) -> usize {
        let kept: usize = self.kept.values().map(|kept| kept.blocks.len()).sum();
        (self.options.total_blocks as usize / KEPT_SHARE).saturating_sub(kept)
    }

    /// Of the blocks that a request can reuse.
    fn reusable_hashes(&self, request: &Request) -> Vec<SequenceHash> {
        let block_size = NonZeroU32::new(self.options.block_size).expect("it is 1 at least");
        let mut hashes = Vec::new();
        if request.sampling.prompt_logprobs.is_none() {
            // At least one token must be computed to get logits.
            let tokens = &request.tokens[..request.tokens.len().saturating_sub(1)];
            let seed = HashSeed::new(None, request.cache_salt.as_deref());
            sequence_hashes(tokens, block_size, seed, &mut hashes);
        }
        hashes
    }

    /// Has the KV of a block, from here or as it came; `None` where it is not what it should be or
    /// there is no room.
    fn take_in(
        &mut self,
        hash: SequenceHash,
        parent: Option<SequenceHash>,
        (tokens, block): (&[u32], &BlockKv),
    ) -> Option<BlockId> {
        if let Some(here) = self.pool.acquire(hash) {
            return Some(here);
        }
        let form = self.form();
        let size = block.kv.len() == form.block_bytes;
        if !size || block.checksum != form.checksum(hash, &block.kv) {
            return None;
        }
        let id = self.pool.allocate()?;
        self.compute.import(id, &block.kv);
        Some(self.pool.commit(id, hash, parent, tokens))
    }
}

impl<C: Compute> SharedKv for Scheduler<C> {
    fn form(&self) -> KvForm {
        let KvForm { fingerprint, block_bytes } = self.compute.form();
        let block_size = self.options.block_size.to_le_bytes();
        KvForm { fingerprint: xxh3_64_with_seed(&block_size, fingerprint), block_bytes }
    }

    fn keep(&mut self, key: RequestKey) {
        self.kept.insert(key, Kept::default());
    }

    fn kept(&self, key: RequestKey) -> usize {
        self.kept.get(&key).map_or(0, |kept| kept.blocks.len())
    }

    fn export(&self, key: RequestKey, block: usize) -> Option<BlockKv> {
        let kept = self.kept.get(&key)?;
        let kv = self.compute.export(*kept.blocks.get(block)?);
        Some(BlockKv { checksum: self.form().checksum(kept.hashes[block], &kv), kv })
    }

    fn reusable(&self, request: &Request) -> Reusable {
        let hashes = self.reusable_hashes(request);
        Reusable { held: self.pool.lookup(&hashes).blocks, blocks: hashes.len() }
    }

    fn import(&mut self, request: &Request, first: usize, blocks: &[BlockKv]) -> usize {
        if self.rest == Rest::Asleep {
            return 0;
        }
        let hashes = self.reusable_hashes(request);
        let block_size = self.block_size();
        let before = hashes.iter().take(first);
        let mut held: Vec<_> = before.map_while(|hash| self.pool.acquire(*hash)).collect();
        // Without those before them they are of no use.
        let here = if held.len() == first { blocks } else { &[] };
        for (i, block) in (first..hashes.len()).zip(here) {
            let tokens = &request.tokens[i * block_size..][..block_size];
            let parent = i.checked_sub(1).map(|before| hashes[before]);
            let Some(id) = self.take_in(hashes[i], parent, (tokens, block)) else { break };
            held.push(id);
        }
        let taken = held.len().saturating_sub(first);
        Kept { blocks: held, hashes: Vec::new() }.release(&mut self.pool);
        taken
    }
}
