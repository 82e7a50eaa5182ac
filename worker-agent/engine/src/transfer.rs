//! KV on its way from one engine to another: what must be alike at both ends, and blocks that came.

use stator_protos::name::BlockName;

/// Form of a block's KV, and of the model that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvForm {
    /// Equal where model, arithmetic, layout and block size are: equal prefixes have equal KV then,
    /// to the bit.
    pub fingerprint: u64,
    /// Bytes of a block; 0 where nothing is computed.
    pub block_bytes: usize,
}

/// Blocks that another engine computed, in the order of their prompt.
pub trait ArrivedBlocks {
    /// The name of a block; `None` behind the last one.
    fn name(&self, block: usize) -> Option<BlockName>;

    /// Copies the KV of a block, [`KvForm::block_bytes`] long. False if there is no KV of this
    /// length; then `kv` is anything.
    fn load(&mut self, block: usize, kv: &mut [u8]) -> bool;
}
