//! The memory of an engine's KV.

use crate::pool::BlockId;

/// The memory of the KV blocks.
pub trait BlockMemory {
    /// A block's KV, [`KvForm::block_bytes`](crate::transfer::KvForm::block_bytes) long. Nobody asks
    /// for it once the engine sleeps, before the next step or [`BlockMemory::kv_mut`].
    fn kv(&self, block: BlockId) -> &[u8];

    /// The memory of a block, to be filled with what was computed elsewhere.
    fn kv_mut(&mut self, block: BlockId) -> &mut [u8];
}
