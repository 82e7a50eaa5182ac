//! KV outside the engine's own memory, as a scheduler sees it: blocks that are kept when they leave
//! the engine, and found again.

use std::fmt;

use stator_protos::hash::{HashSeed, SequenceHash};
use stator_protos::name::BlockName;

use crate::RequestKey;
use crate::named::BlockKey;

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

    /// Copies the KV of a block that is ready, counted from the first that the engine did not hold.
    /// False if the block is not what it should be; then `kv` is anything.
    fn load(&mut self, block: usize, kv: &mut [u8]) -> bool;
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
