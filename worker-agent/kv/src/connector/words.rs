//! Tokens and salt of blocks, by which routers name them and quotas count them, until they are filled.

use super::names::KeyNames;
use super::wire::{EngineKey, KEYS_MAX, TokensFrame};
use crate::cache::Client;
use crate::{Block, TenantKey};
use rustc_hash::FxHashMap;
use stator_protos::hash::{BlockHash, HashSeed, SequenceHash, block_hash, next_sequence_hash};
use stator_protos::name::BlockName;

/// Hash of a block's own tokens, the block before it, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockWords {
    before: BlockName,
    hash: BlockHash,
    pub(super) tenant: TenantKey,
}

/// Words of the blocks of the next FILLED.
#[derive(Debug, Default)]
pub(super) struct ToldWords(FxHashMap<BlockName, BlockWords>);

impl ToldWords {
    /// Takes a frame; false where that would be too many blocks.
    pub(super) fn add(&mut self, frame: &TokensFrame, names: &KeyNames) -> bool {
        if self.0.len() + frame.blocks.len() > KEYS_MAX {
            return false;
        }
        let seed = HashSeed::new(Some(&frame.lora), Some(&frame.salt));
        let tenant = TenantKey::of_salt(Some(&frame.salt));
        self.0.extend(frame.blocks.iter().map(|block| {
            let mut before = block.key;
            before.0[..32].copy_from_slice(&block.before);
            let words = BlockWords {
                before: names.name(&EngineKey(before.0)),
                hash: block_hash(&block.tokens, seed),
                tenant,
            };
            (names.name(&block.key), words)
        }));
        true
    }

    /// The words of a block.
    pub(super) fn of(&self, name: BlockName) -> Option<BlockWords> {
        self.0.get(&name).copied()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Names blocks in the order in which they are filled, each after the one before it in its sequence.
#[derive(Debug, Default)]
pub(super) struct WordNames(FxHashMap<BlockName, SequenceHash>);

impl WordNames {
    /// The block with its hashes for routers, if the hash of the block before it is known: that of one
    /// filled just now, or of one that the cache holds.
    pub(super) fn name(&mut self, block: Block, words: BlockWords, client: &Client) -> Block {
        let BlockWords { before, hash, .. } = words;
        let parent = match block.depth {
            0 => None,
            _ => match self.0.get(&before).copied().or_else(|| client.event_hash(before)) {
                None => return block,
                known => known,
            },
        };
        let hash = next_sequence_hash(parent, hash);
        self.0.insert(block.name, hash);
        Block { hash: Some(hash), parent, ..block }
    }
}
