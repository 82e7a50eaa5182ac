//! The way of blocks between the engine's memory and the tiers outside it. What leaves is copied
//! while the next step computes, what comes back while the step computes that it takes part in.

use std::collections::VecDeque;

use super::queue::Queue;
use super::search::Search;
use super::sequence::Sequence;
use crate::compute::Compute;
use crate::pool::{BlockId, Pool};
use crate::tiers::{ComingBlocks, KvCopies, OuterBlock, OuterTiers};

/// Bytes that are copied to the tiers in one step at most, one block at least: some milliseconds.
const OFFLOAD_BYTES: usize = 32 << 20;
/// Bytes that are copied from the tiers in one step, after which nobody else is admitted.
pub(super) const ONBOARD_BYTES: usize = 64 << 20;
/// The tiers of an engine, and the blocks that they are still to be given.
pub(super) struct OuterKv {
    tiers: Box<dyn OuterTiers>,
    offers: VecDeque<(BlockId, OuterBlock)>,
    offers_max: usize,
    /// Blocks that come in the step that is being planned.
    coming: Vec<ComingBlocks>,
    /// Sequences that may search at once.
    searches: usize,
}

impl OuterKv {
    /// `total_blocks` and `max_running` are the engine's.
    pub(super) fn new(tiers: Box<dyn OuterTiers>, total_blocks: u32, max_running: u32) -> Self {
        Self {
            tiers,
            offers: VecDeque::new(),
            offers_max: total_blocks as usize,
            coming: Vec::new(),
            searches: max_running as usize,
        }
    }

    /// Begins the searches of those that wait first, so that slow tiers work while they queue.
    pub(super) fn look_ahead(&mut self, waiting: &mut Queue, pool: &Pool, block_size: usize) {
        for sequence in waiting.first(self.searches) {
            sequence.search(self.tiers.as_mut(), pool, block_size);
        }
    }

    /// Whether a sequence has found all that it will find.
    pub(super) fn is_settled(
        &mut self,
        sequence: &mut Sequence,
        pool: &Pool,
        block_size: usize,
    ) -> bool {
        // Ends because each turn but the last renews the search, which has a limit.
        loop {
            sequence.search(self.tiers.as_mut(), pool, block_size);
            if sequence.search.is_pending() {
                return false;
            }
            let held = sequence.held(pool, block_size);
            if !sequence.search.is_stale(held) {
                return true;
            }
            sequence.search.renew();
        }
    }

    /// Takes note of a block that was just indexed. Where too many are to be copied already, the
    /// oldest is not: it is the likeliest to be gone.
    pub(super) fn offer(&mut self, id: BlockId, block: OuterBlock) {
        if self.offers.len() == self.offers_max {
            self.offers.pop_front();
        }
        self.offers.push_back((id, block));
    }

    /// Whether blocks are still to be copied to the tiers.
    pub(super) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Has these blocks copied in the step that is being planned.
    pub(super) fn expect(&mut self, coming: ComingBlocks) {
        self.coming.push(coming);
    }

    /// The copies of a step that was planned.
    pub(super) fn copies(&mut self, pool: &Pool, block_bytes: usize) -> KvCopies<'_> {
        let most = OFFLOAD_BYTES.checked_div(block_bytes).unwrap_or(usize::MAX).max(1);
        let mut leaving = VecDeque::new();
        while leaving.len() < most
            && let Some((id, block)) = self.offers.pop_front()
        {
            // The memory of a block that was evicted is another's by now.
            if pool.find(block.key.name) == Some(id) {
                leaving.push_back((id, block));
            }
        }
        let coming = std::mem::take(&mut self.coming);
        KvCopies { tiers: Some(self.tiers.as_mut()), leaving, coming }
    }

    /// Copies blocks to the tiers now.
    pub(super) fn offload(&mut self, pool: &Pool, compute: &impl Compute) {
        self.copies(pool, compute.form().block_bytes).store(usize::MAX, compute);
    }

    /// Forgets what was to be copied and what was found.
    pub(super) fn reset(&mut self, waiting: &mut Queue) {
        self.offers.clear();
        for sequence in waiting.first(usize::MAX) {
            sequence.search = Search::default();
        }
    }
}
