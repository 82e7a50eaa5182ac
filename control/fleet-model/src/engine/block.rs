//! Identities of KV blocks.

use crate::random::mix;
use stator_protos::hash::SequenceHash;

/// Identity of a block together with all before it.
pub type BlockId = u32;

/// The hash under which a block is known outside of engines.
pub(crate) fn hash(id: BlockId) -> SequenceHash {
    SequenceHash(mix(u64::from(id)))
}

/// Place of a block in its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// The block before it.
    pub(crate) parent: Option<BlockId>,
    /// Blocks before it.
    pub(crate) depth: u32,
}
