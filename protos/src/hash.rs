//! Block and sequence hashes, by which two processes name the same KV without sending tokens.
//!
//! Hashes are for KV events and routing alone: a collision there costs time, never an answer.
//! Anybody can make a collision, because the hash is public and has 64 bits; a second block with
//! the hash of a given block takes seconds to find. Reuse of KV goes by [`crate::name`].
//!
//! Source: the public hash of NVIDIA Dynamo (XXH3-64 over little-endian token ids, chained), so
//! that its routers and ours agree about a block. Its published vectors are the tests below.

use std::num::NonZeroU32;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Seed of a block that belongs to no adapter and no salt, and of the chain between blocks.
const BASE_SEED: u64 = 1337;

/// Longest cache salt of a request, in bytes. The API refuses a longer one from clients, and an
/// agent from proxies.
pub const CACHE_SALT_MAX_BYTES: usize = 256;

/// Identity of a block's own tokens, whatever came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Identity of a block together with everything before it: equal prefixes have equal hashes, and
/// different prefixes have different hashes unless somebody wants it otherwise. Comparable only
/// under one block size and [`HashSeed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash(pub u64);

/// Namespace of hashes: the same tokens under another adapter or salt are other blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashSeed(u64);

impl HashSeed {
    /// The namespace of a LoRA adapter and a cache salt; an empty string is the same as none.
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let part = |text: Option<&str>, seed| match text {
            None | Some("") => 0,
            Some(text) => xxh3_64_with_seed(text.as_bytes(), seed),
        };
        Self(BASE_SEED.wrapping_add(part(lora, 0)).wrapping_add(part(salt, 1)))
    }
}

impl HashSeed {
    /// The namespace as a number: the same for the same adapter and salt, zero without any.
    pub fn number(self) -> u64 {
        self.0.wrapping_sub(BASE_SEED)
    }
}

impl Default for HashSeed {
    fn default() -> Self {
        Self(BASE_SEED)
    }
}

/// A number for a name that a client gave, such as a flow or a session: the same for the same name,
/// and hardly ever for another.
pub fn name_hash(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// Hash of one block's token ids.
pub fn block_hash(tokens: &[u32], seed: HashSeed) -> BlockHash {
    if cfg!(target_endian = "little") {
        return BlockHash(xxh3_64_with_seed(bytemuck::cast_slice(tokens), seed.0));
    }
    block_hash_with_media(tokens, &mut [], seed)
}

/// Hash of a block in which images or other media stand, named by `media`, one hash each.
///
/// The order of `media` has no meaning; it is sorted in place.
pub fn block_hash_with_media(tokens: &[u32], media: &mut [u64], seed: HashSeed) -> BlockHash {
    media.sort_unstable();
    let mut hasher = Xxh3::with_seed(seed.0);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    for hash in media {
        hasher.update(&hash.to_le_bytes());
    }
    BlockHash(hasher.digest())
}

/// Hash of a sequence that continues `parent` with `block`; `None` at the start of a sequence.
pub fn next_sequence_hash(parent: Option<SequenceHash>, block: BlockHash) -> SequenceHash {
    let Some(parent) = parent else {
        return SequenceHash(block.0);
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
    bytes[8..].copy_from_slice(&block.0.to_le_bytes());
    SequenceHash(xxh3_64_with_seed(&bytes, BASE_SEED))
}

/// Brings `out` to one hash for each complete block of `tokens`, in order.
///
/// What `out` holds already counts as the hashes of the first blocks of these very `tokens` under
/// this very `seed` and is kept, so that a longer prompt costs only its new tail; start with an
/// empty one. Tokens past the last complete block have no hash.
pub fn sequence_hashes(
    tokens: &[u32],
    block_size: NonZeroU32,
    seed: HashSeed,
    out: &mut Vec<SequenceHash>,
) {
    let block_size = block_size.get() as usize;
    let blocks = tokens.len() / block_size;
    out.truncate(blocks);
    out.reserve(blocks - out.len());
    let known = out.len() * block_size;
    let mut parent = out.last().copied();
    for block in tokens[known..].chunks_exact(block_size) {
        let hash = next_sequence_hash(parent, block_hash(block, seed));
        out.push(hash);
        parent = Some(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// Hashes of the two 16-token blocks of tokens 1 to 32, each on its own.
    #[track_caller]
    fn check(lora: Option<&str>, salt: Option<&str>, expected: [u64; 2]) {
        let tokens: Vec<u32> = (1..=32).collect();
        let seed = HashSeed::new(lora, salt);
        let hashes = [&tokens[..16], &tokens[16..]].map(|block| block_hash(block, seed).0);
        assert_eq!(hashes, expected);
    }

    fn sequence(tokens: &[u32], block_size: u32) -> Vec<SequenceHash> {
        let mut out = Vec::new();
        let block_size = NonZeroU32::new(block_size).unwrap();
        sequence_hashes(tokens, block_size, HashSeed::default(), &mut out);
        out
    }

    #[test]
    fn published_vectors_hold() {
        check(None, None, [16863443419780771464, 2287610619914608821]);
        check(Some("my-lora"), None, [4148081000444450790, 2866551892415683476]);
        check(None, Some("tenantA"), [9745382445712921165, 16206106983189726149]);
        check(Some("my-lora"), Some("tenantA"), [1862254200047706939, 9923840290920392562]);
    }

    #[test]
    fn published_vector_of_media_holds_in_any_order() {
        let tokens: Vec<u32> = (1..=16).collect();
        for mut media in [[5, 123456789], [123456789, 5]] {
            let hash = block_hash_with_media(&tokens, &mut media, HashSeed::default());
            assert_eq!(hash, BlockHash(962080436837985895));
        }
    }

    #[test]
    fn published_vector_of_a_longer_window_holds() {
        let tokens: Vec<u32> = (1..=17).collect();
        assert_eq!(block_hash(&tokens, HashSeed::default()), BlockHash(6752489653130089168));
    }

    #[test]
    fn empty_names_are_no_names() {
        check(Some(""), Some(""), [16863443419780771464, 2287610619914608821]);
    }

    #[test]
    fn the_first_sequence_hash_is_the_block_hash() {
        let tokens: Vec<u32> = (1..=40).collect();
        let hashes = sequence(&tokens, 16);
        assert_eq!(hashes.len(), 2, "the tail of 8 tokens has no hash");
        assert_eq!(hashes[0], SequenceHash(16863443419780771464));
        let second = next_sequence_hash(Some(hashes[0]), BlockHash(2287610619914608821));
        assert_eq!(hashes[1], second);
    }

    #[test]
    fn hashes_beyond_the_tokens_are_dropped() {
        let tokens: Vec<u32> = (1..=32).collect();
        let mut out = sequence(&tokens, 16);
        let block_size = NonZeroU32::new(16).unwrap();
        sequence_hashes(&tokens[..31], block_size, HashSeed::default(), &mut out);
        assert_eq!(out, sequence(&tokens[..16], 16));
    }

    proptest! {
        #[test]
        fn both_ways_to_hash_a_block_agree(tokens in vec(any::<u32>(), 0..100), salt in ".*") {
            let seed = HashSeed::new(None, Some(&salt));
            let streamed = block_hash_with_media(&tokens, &mut [], seed);
            prop_assert_eq!(block_hash(&tokens, seed), streamed);
        }

        #[test]
        fn continuing_is_the_same_as_starting_over(
            tokens in vec(any::<u32>(), 0..300),
            block_size in 1u32..40,
            known in 0usize..300,
        ) {
            let whole = sequence(&tokens, block_size);
            let mut out = sequence(&tokens[..known.min(tokens.len())], block_size);
            let size = NonZeroU32::new(block_size).unwrap();
            sequence_hashes(&tokens, size, HashSeed::default(), &mut out);
            prop_assert_eq!(out, whole);
        }
    }
}
