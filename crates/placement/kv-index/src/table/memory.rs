//! Memory of the buckets of a table.
#![allow(unsafe_code)]

use super::Bucket;
use crate::arena::{Arena, Lot};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// The cells of one shard, in memory that goes when the last of its clones does.
#[derive(Clone)]
pub(crate) struct Table {
    /// Beside its owner, so that readers need not go there for it.
    buckets: NonNull<[Bucket]>,
    memory: Arc<Memory>,
}

enum Memory {
    Heap(Box<[Bucket]>),
    Lot(Lot),
}

// SAFETY: a table is a shared slice of buckets with its owner, both of which may go anywhere.
unsafe impl Send for Table where Arc<Memory>: Send {}
// SAFETY: as above.
unsafe impl Sync for Table where Arc<Memory>: Sync {}

impl Table {
    /// An empty table of an even number of buckets.
    pub(crate) fn new(arena: &Arena, buckets: usize) -> Self {
        Self::in_memory(match arena.lend(buckets) {
            Some(lot) => Memory::Lot(lot),
            None => Memory::Heap((0..buckets).map(|_| Bucket::new()).collect()),
        })
    }

    /// Whether there are clones of this one.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }

    fn in_memory(memory: Memory) -> Self {
        let memory = Arc::new(memory);
        let buckets = match &*memory {
            Memory::Heap(buckets) => buckets,
            Memory::Lot(lot) => lot.buckets(),
        };
        Self { buckets: NonNull::from_ref(buckets), memory }
    }
}

impl Deref for Table {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        // SAFETY: `memory` has the buckets, at one place for as long as it is there, and nobody
        // has more of them than shared references.
        unsafe { self.buckets.as_ref() }
    }
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;
    use crate::table;

    #[test]
    fn a_table_lasts_as_long_as_a_clone_of_it_wherever_it_stands() {
        for (arena, buckets) in
            [(Arena::new(0), 8), (Arena::new(0), 600), (Arena::new(1 << 16), 600)]
        {
            let table = Table::new(&arena, buckets);
            assert!(table.len() == buckets && !table.is_shared());
            let clone = table.clone();
            clone[buckets - 1].fill_first(7);
            assert!(clone.is_shared());
            drop((table, arena));
            assert!(!clone.is_shared());
            assert_eq!(table::blocks(&clone).count(), 1);
        }
    }
}
