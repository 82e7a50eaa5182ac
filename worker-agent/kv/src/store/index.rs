//! Index of blocks: the slot of each in host memory, and the tiers that hold it.

use super::action::TierId;
use crate::{Block, SlotId, TenantKey};
use rustc_hash::FxHashMap;
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;

/// A block that is somewhere or on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownBlock {
    /// Its slot: ready, or being read into.
    pub(super) slot: Option<SlotId>,
    /// One bit for each tier that holds it.
    pub(super) tiers: u8,
    pub(super) depth: u32,
    pub(super) hash: Option<SequenceHash>,
    pub(super) parent: Option<SequenceHash>,
    pub(super) tenant: TenantKey,
}

impl KnownBlock {
    pub(super) fn block(&self, name: BlockName) -> Block {
        Block { name, hash: self.hash, parent: self.parent, depth: self.depth, tenant: self.tenant }
    }
}

/// All known blocks.
#[derive(Debug, Default)]
pub(super) struct BlockIndex(FxHashMap<BlockName, KnownBlock>);

impl BlockIndex {
    pub(super) fn find(&self, name: BlockName) -> Option<&KnownBlock> {
        self.0.get(&name)
    }

    /// The slot of a block, ready or being read into.
    pub(super) fn slot(&self, name: BlockName) -> Option<SlotId> {
        self.0.get(&name)?.slot
    }

    /// Takes the hashes of a known block that had none; the block's place then.
    pub(super) fn learn(&mut self, block: Block) -> Option<KnownBlock> {
        let unnamed = |known: &&mut KnownBlock| known.hash.is_none() && block.hash.is_some();
        let known = self.0.get_mut(&block.name).filter(unnamed)?;
        (known.hash, known.parent) = (block.hash, block.parent);
        Some(*known)
    }

    pub(super) fn set_slot(&mut self, block: Block, slot: SlotId) {
        self.of(block).slot = Some(slot);
    }

    /// Forgets the slot of a block; the block, if it is known.
    pub(super) fn unset_slot(&mut self, name: BlockName) -> Option<Block> {
        let known = self.0.get_mut(&name)?;
        known.slot = None;
        let block = known.block(name);
        self.drop_if_nowhere(name);
        Some(block)
    }

    /// Whether this is news.
    pub(super) fn add_tier(&mut self, block: Block, tier: TierId) -> bool {
        let known = self.of(block);
        let before = known.tiers;
        known.tiers |= tier.bit();
        known.tiers != before
    }

    /// The block, if the tier held it.
    pub(super) fn remove_tier(&mut self, name: BlockName, tier: TierId) -> Option<Block> {
        let known = self.0.get_mut(&name).filter(|known| known.tiers & tier.bit() != 0)?;
        known.tiers &= !tier.bit();
        let block = known.block(name);
        self.drop_if_nowhere(name);
        Some(block)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// All known blocks, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockName, &KnownBlock)> {
        self.0.iter().map(|(name, known)| (*name, known))
    }

    fn of(&mut self, block: Block) -> &mut KnownBlock {
        let Block { name, hash, parent, depth, tenant } = block;
        let new = KnownBlock { slot: None, tiers: 0, depth, hash, parent, tenant };
        let known = self.0.entry(name).or_insert(new);
        // Not every engine knows the hashes of its blocks.
        if known.hash.is_none() {
            (known.hash, known.parent) = (hash, parent);
        }
        known
    }

    fn drop_if_nowhere(&mut self, name: BlockName) {
        if self.0.get(&name).is_some_and(|known| known.slot.is_none() && known.tiers == 0) {
            self.0.remove(&name);
        }
    }
}
