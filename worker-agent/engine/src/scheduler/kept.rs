//! Prompts whose blocks stay held after their end, for another engine.

use crate::pool::{BlockId, Pool};

/// Blocks of a prompt that are kept; none until it is computed.
#[derive(Debug, Default)]
pub(super) struct KeptPrompt {
    pub(super) blocks: Vec<BlockId>,
}

impl KeptPrompt {
    pub(super) fn release(self, pool: &mut Pool) {
        for block in self.blocks.into_iter().rev() {
            pool.release(block);
        }
    }
}
