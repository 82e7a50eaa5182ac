//! Memory of which peer has which block.

use crate::Block;
use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// A peer that is said to have a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    /// Address of the peer.
    pub(super) peer: SocketAddr,
    /// Number of the list of blocks that the hint came with: blocks of one list follow one another.
    pub(super) list: u64,
    /// Place in the list.
    pub(super) place: u32,
}

/// Changes that a list of blocks made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HintChanges {
    /// Blocks that were not known before.
    pub(super) new: Vec<Block>,
    /// Blocks that were forgotten to make room.
    pub(super) forgotten: Vec<BlockName>,
}

/// The latest hint for each block, for a bounded number of blocks.
#[derive(Debug)]
pub(super) struct Hints {
    by_name: FxHashMap<BlockName, Hint>,
    /// Names with the number of their list, oldest first. A name that has a later list is stale.
    order: VecDeque<ListedName>,
    capacity: usize,
    lists: u64,
}

#[derive(Debug)]
struct ListedName {
    name: BlockName,
    list: u64,
}

impl Hints {
    pub(super) fn new(capacity: usize) -> Self {
        Self { by_name: FxHashMap::default(), order: VecDeque::new(), capacity, lists: 0 }
    }

    /// Remembers that the peer has these blocks, which follow one another in a sequence.
    pub(super) fn insert(&mut self, peer: SocketAddr, blocks: &[Block]) -> HintChanges {
        let mut changes = HintChanges::default();
        let list = self.lists;
        self.lists += 1;
        // The first blocks of a sequence are worth most.
        for (place, block) in (0..).zip(&blocks[..blocks.len().min(self.capacity)]) {
            if self.by_name.insert(block.name, Hint { peer, list, place }).is_none() {
                changes.new.push(*block);
            }
            self.order.push_back(ListedName { name: block.name, list });
        }
        while self.by_name.len() > self.capacity || self.order.len() > 2 * self.capacity {
            let Some(oldest) = self.order.pop_front() else { break };
            let is_latest = |hint: &Hint| hint.list == oldest.list;
            if self.by_name.get(&oldest.name).is_some_and(is_latest) {
                self.by_name.remove(&oldest.name);
                changes.forgotten.push(oldest.name);
            }
        }
        changes
    }

    pub(super) fn get(&self, name: BlockName) -> Option<Hint> {
        self.by_name.get(&name).copied()
    }

    /// Forgets who has a block.
    pub(super) fn remove(&mut self, name: BlockName) {
        self.by_name.remove(&name);
    }

    pub(super) fn clear(&mut self) {
        self.by_name.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn peer(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], number))
    }

    fn block(name: u128) -> Block {
        Block {
            name: BlockName(name),
            hash: None,
            parent: None,
            depth: 0,
            tenant: crate::TenantKey::default(),
        }
    }

    #[test]
    fn the_latest_hint_counts_and_the_oldest_is_forgotten() {
        let mut hints = Hints::new(3);
        let new = |names: &[u128]| names.iter().copied().map(block).collect::<Vec<_>>();
        let changes = hints.insert(peer(1), &new(&[1, 2]));
        assert_eq!(changes, HintChanges { new: new(&[1, 2]), forgotten: vec![] });
        assert_eq!(hints.insert(peer(2), &new(&[1, 3])).new, new(&[3]));
        assert_eq!(hints.get(BlockName(1)), Some(Hint { peer: peer(2), list: 1, place: 0 }));
        let changes = hints.insert(peer(3), &new(&[4]));
        assert_eq!(changes, HintChanges { new: new(&[4]), forgotten: vec![BlockName(2)] });
        assert_eq!(hints.get(BlockName(2)), None);
    }

    proptest! {
        /// Hints are bounded, and those who hear of changes know all names that are remembered.
        #[test]
        fn changes_tell_all_and_memory_is_bounded(
            lists in vec(vec(0..12_u128, 0..8), 0..40),
            capacity in 1..8_usize,
        ) {
            let mut hints = Hints::new(capacity);
            let mut known = std::collections::BTreeSet::new();
            for names in lists {
                let blocks: Vec<_> = names.iter().copied().map(block).collect();
                let changes = hints.insert(peer(1), &blocks);
                known.extend(changes.new.iter().map(|block| block.name));
                for name in changes.forgotten {
                    prop_assert!(known.remove(&name));
                }
                prop_assert!(known.len() <= capacity && hints.order.len() <= 2 * capacity);
                let remembered: std::collections::BTreeSet<_> =
                    hints.by_name.keys().copied().collect();
                prop_assert_eq!(&remembered, &known);
            }
        }
    }
}
