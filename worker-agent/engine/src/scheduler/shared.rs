//! KV that leaves and comes: prompts that stay held for another engine, and blocks that another
//! engine computed.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Scheduler;
use super::kept::KeptPrompt;
use crate::compute::Compute;
use crate::named::NamedBlocks;
use crate::pool::BlockId;
use crate::tiers::OuterBlock;
use crate::transfer::{ArrivedBlocks, KvForm};
use crate::{Pooling, Request, RequestKey, Rest, Reusable, SharedKv};
use stator_pins::{Now, PinOutcome, PinWish};
use std::time::Duration;

impl<C: Compute> Scheduler<C> {
    /// Blocks of a request that need not be computed where they are held.
    fn reusable_blocks(&self, request: &Request) -> usize {
        let sampling = &request.sampling;
        let pools_all = sampling.pooled && self.options.pooling == Pooling::Mean;
        match sampling.prompt_logprobs.is_some() || pools_all {
            // At least one token must be computed to get logits.
            false => request.tokens.len().saturating_sub(1) / self.block_size(),
            true => 0,
        }
    }

    /// Whole blocks of a request that is kept, in order: while it runs, those that are computed.
    fn kept_blocks(&self, key: RequestKey) -> &[BlockId] {
        let Some(kept) = self.kept.get(&key) else { return &[] };
        let running = self.running.iter().find(|sequence| sequence.key() == key);
        running.map_or(&kept.blocks, |sequence| sequence.whole_blocks(self.block_size()))
    }

    /// Has the KV of a block, from here or as it came under the number `at`; `None` where it is not
    /// what it should be or there is no room.
    fn take_in(
        &mut self,
        place: OuterBlock,
        tokens: &[u32],
        blocks: &mut dyn ArrivedBlocks,
        at: usize,
    ) -> Option<BlockId> {
        let OuterBlock { key, parent, .. } = place;
        if let Some(here) = self.pool.acquire(key.name) {
            return Some(here);
        }
        if blocks.name(at) != Some(key.name) {
            return None;
        }
        let id = self.pool.allocate()?;
        if !blocks.load(at, self.compute.kv_mut(id)) {
            self.pool.release(id);
            return None;
        }
        let id = self.pool.commit(id, key, parent, tokens);
        self.pinned.came(key.name, id, &mut self.pool);
        if let Some(outer) = &mut self.outer {
            outer.offer(id, place);
        }
        Some(id)
    }
}

impl<C: Compute> SharedKv for Scheduler<C> {
    fn form(&self) -> KvForm {
        let KvForm { fingerprint, block_bytes } = self.compute.form();
        let block_size = self.options.block_size.to_le_bytes();
        KvForm { fingerprint: xxh3_64_with_seed(&block_size, fingerprint), block_bytes }
    }

    fn keep(&mut self, key: RequestKey) {
        self.kept.insert(key, KeptPrompt::default());
    }

    fn kept(&self, key: RequestKey) -> usize {
        self.kept_blocks(key).len()
    }

    fn export(&self, key: RequestKey, block: usize) -> Option<&[u8]> {
        Some(self.compute.kv(*self.kept_blocks(key).get(block)?))
    }

    fn reusable(&self, request: &mut Request) -> Reusable {
        let blocks = self.reusable_blocks(request);
        let mut named = request.named.take().unwrap_or_else(|| self.unnamed(request));
        let keys = named.first(blocks, &request.tokens);
        let held = self.pool.lookup(keys).blocks;
        let names = keys.iter().map(|key| key.name).collect();
        request.named = Some(named);
        Reusable { held, names }
    }

    fn pin(&mut self, request: &mut Request, time: Duration, now: Now) -> PinOutcome {
        let names = self.reusable(request).names;
        let tenant = request.named.as_ref().map_or(0, |named| named.space().number());
        self.pinned.pin(&names, PinWish { tenant, time }, &mut self.pool, now)
    }

    fn unpin(&mut self, now: Now) {
        self.pinned.expire(&mut self.pool, now);
    }

    fn import(&mut self, request: &Request, first: usize, blocks: &mut dyn ArrivedBlocks) -> usize {
        if self.rest == Rest::Asleep {
            return 0;
        }
        let keys = request.named.as_ref().map_or(&[][..], NamedBlocks::keys);
        let block_size = self.block_size();
        let before = keys.iter().take(first);
        let mut held: Vec<_> = before.map_while(|key| self.pool.acquire(key.name)).collect();
        // Without those before them they are of no use.
        let end = if held.len() == first { keys.len() } else { first };
        for i in first..end {
            if blocks.name(i - first).is_none() {
                break;
            }
            let tokens = &request.tokens[i * block_size..][..block_size];
            let parent = i.checked_sub(1).map(|before| keys[before].hash);
            let space = request.named.as_ref().map(NamedBlocks::space).unwrap_or_default();
            let place = OuterBlock { key: keys[i], parent, depth: i as u32, space };
            let Some(id) = self.take_in(place, tokens, blocks, i - first) else { break };
            held.push(id);
        }
        let taken = held.len().saturating_sub(first);
        KeptPrompt { blocks: held }.release(&mut self.pool);
        taken
    }
}
