//! Names of the blocks of one sequence, computed once and as far as needed.

use stator_protos::hash::{HashSeed, SequenceHash, block_hash, next_sequence_hash};
use stator_protos::name::{BlockName, NameRoot};

/// Both identities of a full block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey {
    /// Decides which KV is reused.
    pub name: BlockName,
    /// The hash by which KV events name the block.
    pub hash: SequenceHash,
}

/// Keys of the leading full blocks of a sequence of tokens that only grows.
#[derive(Clone, Debug)]
pub struct NamedBlocks {
    root: NameRoot,
    seed: HashSeed,
    block_size: usize,
    keys: Vec<BlockKey>,
}

impl NamedBlocks {
    /// No key yet, for blocks of `block_size` tokens.
    pub fn new(root: NameRoot, seed: HashSeed, block_size: usize) -> Self {
        Self { root, seed, block_size, keys: Vec::new() }
    }

    /// The space of all keys.
    pub fn space(&self) -> HashSeed {
        self.seed
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The keys that are known.
    pub fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    /// The keys of the first `count` blocks of `tokens`, which begin with the tokens of all calls
    /// before and have at least as many full blocks.
    pub fn first(&mut self, count: usize, tokens: &[u32]) -> &[BlockKey] {
        let known = self.keys.len().min(count) * self.block_size;
        let missing = count.saturating_sub(self.keys.len());
        for block in tokens[known..].chunks_exact(self.block_size).take(missing) {
            let before = self.keys.last();
            let name = self.root.next(before.map(|key| key.name), block);
            let own = block_hash(block, self.seed);
            let hash = next_sequence_hash(before.map(|key| key.hash), own);
            self.keys.push(BlockKey { name, hash });
        }
        &self.keys[..count]
    }

    /// The names for a sequence that shares only its first `tokens` tokens with this one.
    pub fn of_prefix(&self, tokens: usize) -> Self {
        let common = self.keys.len().min(tokens / self.block_size);
        Self { keys: self.keys[..common].to_vec(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stator_protos::hash::sequence_hashes;
    use stator_protos::name::NameKey;
    use std::num::NonZeroU32;

    fn named(block_size: usize) -> NamedBlocks {
        let root = NameRoot::new(&NameKey::default(), 0, None, None);
        NamedBlocks::new(root, HashSeed::default(), block_size)
    }

    proptest! {
        /// However a sequence grows: its keys are those of the whole, and their hashes the public
        /// ones.
        #[test]
        fn keys_do_not_depend_on_when_they_were_asked_for(
            tokens in prop::collection::vec(0..9_u32, 0..60),
            block_size in 1..8_usize,
            steps in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let blocks = tokens.len() / block_size;
            let whole = named(block_size).first(blocks, &tokens).to_vec();
            let mut grown = named(block_size);
            for step in steps {
                let count = step.index(blocks + 1);
                prop_assert_eq!(grown.first(count, &tokens[..count * block_size]), &whole[..count]);
            }
            let mut other = grown.of_prefix(tokens.len());
            prop_assert_eq!(other.first(blocks, &tokens), &whole[..]);
            let mut hashes = Vec::new();
            let size = NonZeroU32::new(block_size as u32).unwrap();
            sequence_hashes(&tokens, size, HashSeed::default(), &mut hashes);
            let own: Vec<_> = whole.iter().map(|key| key.hash).collect();
            prop_assert_eq!(own, hashes);
        }
    }
}
