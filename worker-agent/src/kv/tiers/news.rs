//! News of the cache for one worker: changes of what tiers hold, and a wake-up for its driver.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_kv::Block;
use stator_kv::tier::TierEvent;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{KvEvent, Medium, Stored};
use tokio::sync::Notify;

/// Changes that a driver has not published yet.
///
/// What cancels out is forgotten, so there is at most one change for each block and medium.
#[derive(Debug, Default)]
pub(crate) struct TierNews {
    changes: Mutex<TierChanges>,
    told: Notify,
}

/// Changes of what tiers hold, in any order.
#[derive(Debug, Default)]
pub(crate) struct TierChanges {
    /// Whether all blocks were forgotten, before the other changes.
    pub(super) is_cleared: bool,
    /// Blocks that a medium holds now and did not hold before.
    blocks: FxHashMap<(SequenceHash, Medium), BlockChange>,
}

/// Changes in the order in which routers are told.
#[derive(Debug, PartialEq)]
pub(super) struct SortedChanges {
    /// Blocks that a medium holds now, parents first.
    pub(super) came: Vec<(Block, Medium)>,
    /// Blocks that a medium holds no more.
    pub(super) went: Vec<(SequenceHash, Medium)>,
}

/// A block that came (1 copy) or went (-1).
#[derive(Debug)]
struct BlockChange {
    block: Block,
    copies: i32,
}

impl TierNews {
    /// Takes note of an event, and wakes the driver.
    pub(crate) fn take_event(&self, event: &TierEvent) {
        let (block, medium, copies) = match event {
            TierEvent::Stored { block, medium } => (block, medium, 1),
            TierEvent::Removed { block, medium } => (block, medium, -1),
            TierEvent::Cleared => {
                *self.changes.lock() = TierChanges { is_cleared: true, ..TierChanges::default() };
                return self.told.notify_one();
            }
        };
        let Some(hash) = told_hash(block) else { return };
        self.changes.lock().add(hash, (block, *medium), copies);
        self.told.notify_one();
    }

    /// Wakes the driver: blocks have come that a request waits for.
    pub(super) fn wake(&self) {
        self.told.notify_one();
    }

    /// Waits for the next news.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    /// Whether there are changes.
    pub(super) fn has_changes(&self) -> bool {
        let changes = self.changes.lock();
        changes.is_cleared || !changes.blocks.is_empty()
    }

    /// Takes the changes.
    pub(super) fn take(&self) -> TierChanges {
        std::mem::take(&mut *self.changes.lock())
    }
}

/// The hash by which routers are told of a block. Nobody can be told of a block without one, or of
/// one that follows an unknown block.
pub(super) fn told_hash(block: &Block) -> Option<SequenceHash> {
    block.hash.filter(|_| block.depth == 0 || block.parent.is_some())
}

/// The event that a block came to a medium.
pub(super) fn stored_event(block: &Block, medium: Medium, block_size: u32) -> Option<KvEvent> {
    Some(KvEvent::Stored(Stored {
        hashes: vec![block.hash?.0],
        parent: block.parent.map(|parent| parent.0),
        tokens: Vec::new(),
        block_size,
        medium,
        lora_name: None,
    }))
}

impl TierChanges {
    /// Counts copies that came to a medium, or went from it.
    pub(super) fn add(&mut self, hash: SequenceHash, of: (&Block, Medium), copies: i32) {
        let (block, medium) = of;
        let change = self.blocks.entry((hash, medium));
        let change = change.or_insert(BlockChange { block: *block, copies: 0 });
        change.copies += copies;
        if change.copies == 0 {
            self.blocks.remove(&(hash, medium));
        }
    }

    /// The blocks that came and those that went.
    pub(super) fn sorted(self) -> SortedChanges {
        let (mut came, mut went) = (Vec::new(), Vec::new());
        for ((hash, medium), BlockChange { block, copies }) in self.blocks {
            match copies > 0 {
                true => came.push((block, medium)),
                false => went.push((hash, medium)),
            }
        }
        came.sort_unstable_by_key(|(block, medium)| (block.depth, block.hash, *medium));
        went.sort_unstable();
        SortedChanges { came, went }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::name::BlockName;

    fn block(hash: u64, depth: u32) -> Block {
        let parent = depth.checked_sub(1).map(|before| SequenceHash(before.into()));
        Block {
            name: BlockName(hash.into()),
            hash: Some(SequenceHash(hash)),
            parent,
            depth,
            tenant: stator_kv::TenantKey::default(),
        }
    }

    fn stored(block: Block, medium: Medium) -> TierEvent {
        TierEvent::Stored { block, medium }
    }

    #[test]
    fn what_cancels_out_is_no_news() {
        let news = TierNews::default();
        news.take_event(&stored(block(1, 0), Medium::Host));
        news.take_event(&TierEvent::Removed { block: block(1, 0), medium: Medium::Host });
        assert!(!news.has_changes());
        news.take_event(&stored(block(2, 1), Medium::Disk));
        news.take_event(&stored(block(1, 0), Medium::Host));
        news.take_event(&TierEvent::Removed { block: block(3, 2), medium: Medium::Host });
        let SortedChanges { came, went } = news.take().sorted();
        assert_eq!(came, [(block(1, 0), Medium::Host), (block(2, 1), Medium::Disk)]);
        assert_eq!(went, [(SequenceHash(3), Medium::Host)]);
        assert!(!news.has_changes());
    }

    #[test]
    fn blocks_whose_place_is_unknown_are_not_told() {
        let news = TierNews::default();
        news.take_event(&stored(Block { parent: None, ..block(2, 1) }, Medium::Disk));
        news.take_event(&stored(Block { hash: None, ..block(1, 0) }, Medium::Disk));
        assert!(!news.has_changes());
    }

    #[test]
    fn clearing_comes_before_what_is_stored_afterwards() {
        let news = TierNews::default();
        news.take_event(&stored(block(1, 0), Medium::Host));
        news.take_event(&TierEvent::Cleared);
        news.take_event(&stored(block(2, 0), Medium::Host));
        let changes = news.take();
        assert!(changes.is_cleared);
        let came = vec![(block(2, 0), Medium::Host)];
        assert_eq!(changes.sorted(), SortedChanges { came, went: vec![] });
    }
}
