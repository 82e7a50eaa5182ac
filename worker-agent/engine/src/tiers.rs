//! KV outside the engine's own memory, as a scheduler sees it: blocks that are kept when they leave
//! the engine, and found again.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use stator_protos::hash::{HashSeed, SequenceHash};
use stator_protos::name::BlockName;

use crate::RequestKey;
use crate::memory::BlockMemory;
use crate::named::BlockKey;
use crate::pool::BlockId;

/// Storage for blocks of an engine. Calls return at once, and none of them does I/O.
pub trait OuterTiers: Send {
    /// Looks for the leading blocks of a sequence of a request, the first `held` of which the engine
    /// holds. `None` if nothing behind these is to be had, now or soon.
    fn look_up(
        &mut self,
        request: RequestKey,
        names: &[BlockName],
        held: usize,
    ) -> Option<Box<dyn OuterLookup>>;

    /// Takes a copy of a block, if there is room.
    fn store(&mut self, block: &OuterBlock, kv: &[u8]);
}

/// A search for blocks of one sequence. What is found stays until the lookup is dropped.
pub trait OuterLookup: fmt::Debug + Send {
    /// Progress of the search. Within two seconds nothing is pending any more.
    fn found(&mut self) -> OuterFound;

    /// Whether a block that is ready, counted from the first that the engine did not hold, can be
    /// loaded. It stays so.
    fn holds(&mut self, block: usize) -> bool;

    /// Copies a part of the KV of a block that can be loaded, from byte `start` on.
    fn load(&mut self, block: usize, start: usize, kv: &mut [u8]);
}

/// Blocks of a sequence behind those that the engine holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterFound {
    /// Blocks that can be loaded now. It only grows.
    pub ready: usize,
    /// Blocks behind these that are on their way.
    pub pending: usize,
}

/// A full block and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterBlock {
    /// Its identities.
    pub key: BlockKey,
    /// The hash of the block before it; `None` for the first of a sequence.
    pub parent: Option<SequenceHash>,
    /// Blocks before it in its sequence.
    pub depth: u32,
    /// The prefix space of its request: a block is of use in no other.
    pub space: HashSeed,
}

/// Copies of KV that a step makes while it computes. None of its items writes these blocks; those
/// that come are read by some.
#[derive(Default)]
pub struct KvCopies<'a> {
    pub(crate) tiers: Option<&'a mut dyn OuterTiers>,
    /// Blocks that leave.
    pub(crate) leaving: VecDeque<(BlockId, OuterBlock)>,
    /// Blocks that come, by sequence.
    pub(crate) coming: Vec<ComingBlocks>,
}

/// Blocks of a sequence that come from the tiers.
#[derive(Debug)]
pub(crate) struct ComingBlocks {
    pub(crate) lookup: Box<dyn OuterLookup>,
    /// Each with its number in the lookup.
    pub(crate) blocks: Vec<(usize, BlockId)>,
}

impl KvCopies<'_> {
    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.coming.is_empty()
    }

    /// Blocks that are still to leave.
    pub fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Copies these bytes of each block that comes.
    pub fn load(&mut self, part: Range<usize>, memory: &mut impl BlockMemory) {
        for ComingBlocks { lookup, blocks } in &mut self.coming {
            for (number, block) in blocks {
                lookup.load(*number, part.start, &mut memory.kv_mut(*block)[part.clone()]);
            }
        }
    }

    /// Copies some of the blocks that are still to leave.
    pub fn store(&mut self, count: usize, memory: &impl BlockMemory) {
        let Some(tiers) = &mut self.tiers else { return };
        for (id, block) in self.leaving.drain(..count.min(self.leaving.len())) {
            tiers.store(&block, memory.kv(id));
        }
    }
}
