//! Index of blocks: the slot of each in host memory, and the tiers that hold it.

use super::action::TierId;
use crate::cost::SourceId;
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
    /// Source that a tier would read it from, if the tier has several.
    pub(super) source: Option<SourceId>,
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
pub(super) struct BlockIndex {
    blocks: FxHashMap<BlockName, KnownBlock>,
    /// Names of blocks whose hash is known. Several blocks may have one hash: then one of them.
    hashes: FxHashMap<SequenceHash, BlockName>,
}

impl BlockIndex {
    pub(super) fn find(&self, name: BlockName) -> Option<&KnownBlock> {
        self.blocks.get(&name)
    }

    /// The slot of a block, ready or being read into.
    pub(super) fn slot(&self, name: BlockName) -> Option<SlotId> {
        self.blocks.get(&name)?.slot
    }

    /// The name of a block by its hash, if it is somewhere.
    pub(super) fn name(&self, hash: SequenceHash) -> Option<BlockName> {
        self.hashes.get(&hash).copied()
    }

    /// The block of a hash, if it is somewhere.
    pub(super) fn named(&self, hash: SequenceHash) -> Option<&KnownBlock> {
        self.blocks.get(self.hashes.get(&hash)?)
    }

    /// Takes the hashes of a known block that had none; the block's place then.
    pub(super) fn learn(&mut self, block: Block) -> Option<KnownBlock> {
        let unnamed = |known: &&mut KnownBlock| known.hash.is_none() && block.hash.is_some();
        let known = self.blocks.get_mut(&block.name).filter(unnamed)?;
        (known.hash, known.parent, known.tenant) = (block.hash, block.parent, block.tenant);
        self.hashes.extend(known.hash.map(|hash| (hash, block.name)));
        Some(*known)
    }

    pub(super) fn set_slot(&mut self, block: Block, slot: SlotId) {
        self.of(block).slot = Some(slot);
    }

    /// Forgets the slot of a block; the block, if it is known.
    pub(super) fn unset_slot(&mut self, name: BlockName) -> Option<Block> {
        let known = self.blocks.get_mut(&name)?;
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

    /// A tier that holds the block would read it from this source.
    pub(super) fn locate(&mut self, name: BlockName, tier: TierId, source: SourceId) {
        if let Some(known) = self.blocks.get_mut(&name).filter(|of| of.tiers & tier.bit() != 0) {
            known.source = Some(source);
        }
    }

    /// The block, if the tier held it.
    pub(super) fn remove_tier(&mut self, name: BlockName, tier: TierId) -> Option<Block> {
        let known = self.blocks.get_mut(&name).filter(|known| known.tiers & tier.bit() != 0)?;
        known.tiers &= !tier.bit();
        let block = known.block(name);
        self.drop_if_nowhere(name);
        Some(block)
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.hashes.clear();
    }

    /// All known blocks, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockName, &KnownBlock)> {
        self.blocks.iter().map(|(name, known)| (*name, known))
    }

    fn of(&mut self, block: Block) -> &mut KnownBlock {
        let Block { name, hash, parent, depth, tenant } = block;
        let new = KnownBlock { slot: None, tiers: 0, source: None, depth, hash, parent, tenant };
        let known = self.blocks.entry(name).or_insert(new);
        // Not every engine knows the hashes of its blocks.
        if known.hash.is_none() {
            (known.hash, known.parent) = (hash, parent);
        }
        self.hashes.extend(known.hash.map(|hash| (hash, name)));
        known
    }

    fn drop_if_nowhere(&mut self, name: BlockName) {
        let is_nowhere = |known: &KnownBlock| known.slot.is_none() && known.tiers == 0;
        if !self.blocks.get(&name).is_some_and(is_nowhere) {
            return;
        }
        let hash = self.blocks.remove(&name).and_then(|known| known.hash);
        if let Some(hash) = hash.filter(|hash| self.hashes.get(hash) == Some(&name)) {
            self.hashes.remove(&hash);
        }
    }
}
