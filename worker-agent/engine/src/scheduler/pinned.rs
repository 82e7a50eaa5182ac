//! Prompts that clients have pinned in the engine's own memory.
//!
//! A pin is a wish: when the last sequence that runs, or the first that waits, has no room beside
//! pinned blocks, all pins end.

use crate::pool::{BlockId, Pool};
use stator_pins::{ClientPins, Now, PinLimits, PinOutcome, PinWish};
use stator_protos::name::BlockName;

/// Pinned blocks, also those that are still to be computed.
#[derive(Debug)]
pub(super) struct PinnedPrompts(ClientPins<BlockName, BlockId>);

impl PinnedPrompts {
    pub(super) fn new(limits: PinLimits) -> Self {
        Self(ClientPins::new(limits))
    }

    /// Pins leading blocks of a prompt.
    pub(super) fn pin(
        &mut self,
        names: &[BlockName],
        wish: PinWish,
        pool: &mut Pool,
        now: Now,
    ) -> PinOutcome {
        let total = pool.total();
        self.0.pin(names, wish, total, now, |name| pool.pin(name))
    }

    /// Whether blocks are to be told of that come.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pins a block that was just indexed, if it is awaited.
    pub(super) fn came(&mut self, name: BlockName, id: BlockId, pool: &mut Pool) {
        if self.0.came(name, id) {
            pool.pin(name);
        }
    }

    /// Ends the pins whose time is over.
    pub(super) fn expire(&mut self, pool: &mut Pool, now: Now) {
        while let Some(name) = self.0.first_ended(now) {
            self.end(name, pool);
        }
    }

    /// Ends all pins; false if there is none.
    pub(super) fn give_up(&mut self, pool: &mut Pool) -> bool {
        let had = !self.0.is_empty();
        while let Some(name) = self.0.first() {
            self.end(name, pool);
        }
        had
    }

    fn end(&mut self, name: BlockName, pool: &mut Pool) {
        if let Some(id) = self.0.remove(name) {
            pool.unpin(id);
        }
    }
}
