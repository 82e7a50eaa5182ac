//! The way of blocks between the engine's memory and the tiers outside it: what leaves is copied at
//! the ends of steps, what comes back is copied when its sequence is admitted.

use std::collections::VecDeque;

use super::queue::Queue;
use super::search::Search;
use super::sequence::Sequence;
use crate::compute::Compute;
use crate::pool::{BlockId, Pool};
use crate::tiers::{OuterBlock, OuterTiers};

/// Bytes that are copied to the tiers at the end of one step at most, one block at least: some
/// milliseconds.
const OFFLOAD_BYTES: usize = 32 << 20;
/// Bytes that are copied from the tiers before one step, after which nobody else is admitted.
pub(super) const ONBOARD_BYTES: usize = 64 << 20;
/// The tiers of an engine, and the blocks that they are still to be given.
pub(super) struct OuterKv {
    tiers: Box<dyn OuterTiers>,
    offers: VecDeque<(BlockId, OuterBlock)>,
    offers_max: usize,
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

    /// Copies blocks to the tiers; true if some are left.
    pub(super) fn offload(&mut self, pool: &Pool, compute: &impl Compute) -> bool {
        let mut room = OFFLOAD_BYTES;
        while room > 0 {
            let Some((id, block)) = self.offers.pop_front() else { return false };
            // The memory of a block that was evicted is another's by now.
            if pool.find(block.key.name) == Some(id) {
                let kv = compute.kv(id);
                self.tiers.store(&block, kv);
                room = room.saturating_sub(kv.len());
            }
        }
        !self.offers.is_empty()
    }

    /// Forgets what was to be copied and what was found.
    pub(super) fn reset(&mut self, waiting: &mut Queue) {
        self.offers.clear();
        for sequence in waiting.first(usize::MAX) {
            sequence.search = Search::default();
        }
    }
}
