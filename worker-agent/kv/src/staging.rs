//! Memory for blocks on their way between an engine and another agent.

use crate::arena::{Arena, SLOT_ALIGNMENT};
use crate::{Checksum, SlotId};
use parking_lot::Mutex;
use stator_protos::name::BlockName;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A bounded number of slots, each of which is in use or free. The system gives the memory of a slot
/// when it is first written, so that an idle agent takes none.
pub struct Staging {
    arena: Arc<Arena>,
    /// The slot that was free last is used first: few slots are ever written.
    free: Mutex<Vec<SlotId>>,
    /// Has a permit for each free slot.
    room: Semaphore,
}

/// A slot in use. Dropping it frees the slot.
pub struct StagedSlot {
    staging: Arc<Staging>,
    slot: SlotId,
}

impl Staging {
    /// Room for blocks of `block_bytes` in `bytes` of memory, for one at least.
    ///
    /// # Errors
    ///
    /// The system has no memory files (other systems than Linux), or not as many addresses.
    pub fn new(bytes: u64, block_bytes: usize) -> io::Result<Arc<Self>> {
        let stride = block_bytes.next_multiple_of(SLOT_ALIGNMENT).max(1) as u64;
        let slots = u32::try_from((bytes / stride).max(1)).unwrap_or(u32::MAX);
        let arena = Arc::new(Arena::new(slots, block_bytes)?);
        let free = Mutex::new((0..slots).rev().map(SlotId).collect());
        Ok(Arc::new(Self { arena, free, room: Semaphore::new(slots as usize) }))
    }

    /// The memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Slots that are free.
    pub fn free(&self) -> usize {
        self.room.available_permits()
    }

    /// Takes as many slots as are free, `max` at most. Waits until there is one, in the order of the
    /// calls.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes none.
    pub async fn take(self: &Arc<Self>, max: usize) -> Vec<StagedSlot> {
        let first = self.room.acquire().await.expect("nobody closes the semaphore");
        first.forget();
        let mut slots = vec![self.pop()];
        while slots.len() < max {
            let Ok(permit) = self.room.try_acquire() else { break };
            permit.forget();
            slots.push(self.pop());
        }
        slots
    }

    /// Takes free slots without a wait, `max` at most, as far as more than `spared` are free.
    pub fn take_spare(self: &Arc<Self>, spared: usize, max: usize) -> Vec<StagedSlot> {
        let spare = self.free().saturating_sub(spared).min(max);
        let take = |_| {
            self.room.try_acquire().ok()?.forget();
            Some(self.pop())
        };
        (0..spare).map_while(take).collect()
    }

    /// A free slot. The caller has a permit for it.
    fn pop(self: &Arc<Self>) -> StagedSlot {
        let slot = self.free.lock().pop().expect("a permit stands for a free slot");
        StagedSlot { staging: self.clone(), slot }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slots, free) = (self.arena.slots(), self.free());
        f.debug_struct("Staging").field("slots", &slots).field("free", &free).finish()
    }
}

impl StagedSlot {
    /// Number of the slot in the arena.
    pub fn id(&self) -> SlotId {
        self.slot
    }

    /// Bytes of the block that it has room for.
    pub fn block_bytes(&self) -> usize {
        self.staging.arena.block_bytes()
    }

    /// Copies a block into the slot, and returns the checksum of the bytes that were copied.
    ///
    /// # Panics
    ///
    /// `kv` has not the size of a block.
    pub fn write(&self, name: BlockName, kv: &[u8]) -> Checksum {
        self.staging.arena.write_checked(self.slot, name, kv)
    }

    /// Copies the block in the slot.
    ///
    /// # Panics
    ///
    /// `kv` has not the size of a block.
    pub fn read(&self, kv: &mut [u8]) {
        self.staging.arena.read(self.slot, kv);
    }
}

impl fmt::Debug for StagedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StagedSlot").field(&self.slot.0).finish()
    }
}

impl Drop for StagedSlot {
    fn drop(&mut self) {
        self.staging.free.lock().push(self.slot);
        self.staging.room.add_permits(1);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn memory_is_bounded_and_who_waits_gets_what_is_freed() {
        let staging = Staging::new(3 * 4096, 100).unwrap();
        let mut slots = staging.take(2).await;
        slots.extend(staging.take(9).await);
        assert_eq!((slots.len(), staging.free()), (3, 0));
        let mut waiting = Box::pin(staging.take(9));
        assert!(waiting.as_mut().now_or_never().is_none());
        let freed = slots.pop().unwrap().id();
        assert_eq!(waiting.await.iter().map(StagedSlot::id).collect::<Vec<_>>(), [freed]);
        drop(slots);
        assert_eq!(staging.free(), 3);
    }

    #[tokio::test]
    async fn what_is_spared_is_for_those_who_wait() {
        let staging = Staging::new(4 * 4096, 100).unwrap();
        let spare = staging.take_spare(2, 9);
        assert_eq!((spare.len(), staging.take_spare(2, 9).len()), (2, 0));
        assert_eq!(staging.take_spare(0, 1).len(), 1);
        let all = staging.take(2).await;
        assert_eq!((all.len(), staging.take_spare(0, 9).len()), (2, 0));
        let mut waiting = Box::pin(staging.take(9));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(spare);
        let rest = staging.take_spare(0, 9);
        assert_eq!((rest.len(), waiting.await.len()), (1, 1), "who waits is first");
    }

    #[tokio::test]
    async fn a_block_that_is_larger_than_the_memory_has_room_alone() {
        let staging = Staging::new(1, 5000).unwrap();
        let slots = staging.take(2).await;
        assert_eq!(slots.len(), 1);
        let written = slots[0].write(BlockName(7), &[3; 5000]);
        let mut kv = vec![0; 5000];
        slots[0].read(&mut kv);
        assert_eq!(kv, [3; 5000]);
        assert_eq!(written, crate::checksum::checksum(BlockName(7), &kv));
    }
}
