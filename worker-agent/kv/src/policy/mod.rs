//! Order in which blocks leave host memory when room is needed.
//!
//! A block that a request reads is *held*: a policy never chooses it. Requests release their blocks
//! deepest first, and a block that comes is put before the one that it continues, so that of one
//! sequence the deeper block is the older one: a policy that evicts the older block first evicts
//! leaves first, and what stays is a usable prefix.

mod admission;
mod ghosts;
mod list;
mod lru;
mod queues;
mod sample;
mod second_touch;
mod selector;
mod shadow;
mod sketch;
mod tenants;
mod tiny_lfu;
mod two_queue;

#[cfg(test)]
mod tests;

pub use admission::AdmissionSelector;
pub use ghosts::Ghosts;
pub use lru::Lru;
pub use second_touch::SecondTouch;
pub use selector::{PolicyName, PolicySelector, UnknownPolicy};
pub use shadow::ShadowCache;
pub use tenants::TenantSlots;
pub use tiny_lfu::WindowTinyLfu;
pub use two_queue::TwoQueue;

use crate::SlotId;
use stator_protos::name::BlockName;

/// Chooses the next block to evict. All methods take constant time, amortised.
pub trait Eviction: Send {
    /// A request uses the block in `slot`, which must stay until it is released.
    fn hold(&mut self, slot: SlotId);

    /// The block in `slot` may be evicted from now on. A slot that the policy does not know has
    /// just got its block.
    fn release(&mut self, slot: SlotId, name: BlockName);

    /// The block in `slot` has just come, and may be evicted. It continues the block in `prefix`,
    /// without which it is worth nothing: it is to leave before that one. If that one is nowhere, it is
    /// to leave first.
    fn release_behind(&mut self, slot: SlotId, name: BlockName, prefix: Option<SlotId>);

    /// The next block to evict, which the policy forgets; none if all blocks are held.
    fn evict(&mut self) -> Option<SlotId>;

    /// The block in `slot` is gone for a reason of the store's own.
    fn forget(&mut self, slot: SlotId);
}

impl<P: Eviction + ?Sized> Eviction for Box<P> {
    fn hold(&mut self, slot: SlotId) {
        (**self).hold(slot);
    }

    fn release(&mut self, slot: SlotId, name: BlockName) {
        (**self).release(slot, name);
    }

    fn release_behind(&mut self, slot: SlotId, name: BlockName, prefix: Option<SlotId>) {
        (**self).release_behind(slot, name, prefix);
    }

    fn evict(&mut self) -> Option<SlotId> {
        (**self).evict()
    }

    fn forget(&mut self, slot: SlotId) {
        (**self).forget(slot);
    }
}
