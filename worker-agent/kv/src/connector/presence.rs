//! The presence of a scheduler that can load what the tiers hold.

use super::settings::{EngineChange, EngineWatch};
use std::sync::Arc;
use std::time::Duration;

/// A connected scheduler, of which the watch hears; dropping it tells that the scheduler has gone.
pub(super) struct Presence {
    watch: Arc<EngineWatch>,
    is_reset: bool,
}

impl Presence {
    /// A scheduler with blocks of so many tokens has connected.
    pub(super) fn begin(watch: Arc<EngineWatch>, block_tokens: u32) -> Self {
        watch(EngineChange::Joined { block_tokens });
        Self { watch, is_reset: false }
    }

    /// Its keys have another meaning from here on.
    pub(super) fn reset(&mut self) {
        if !std::mem::replace(&mut self.is_reset, true) {
            (self.watch)(EngineChange::Reset);
        }
    }

    /// Notes how long the engine takes to compute a block.
    pub(super) fn paced(&self, block: Duration) {
        (self.watch)(EngineChange::Paced { block });
    }

    pub(super) fn is_reset(&self) -> bool {
        self.is_reset
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        (self.watch)(EngineChange::Left { was_reset: self.is_reset });
    }
}
