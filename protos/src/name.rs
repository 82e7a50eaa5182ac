//! Block names: the identity under which engines reuse KV, which nobody can forge.
//!
//! A [`BlockName`] is to [`crate::hash::SequenceHash`] what a signature is to a checksum. Engines
//! reuse and exchange KV by names alone; hashes are for KV events and routing. Only agents compute
//! names: two of them agree on the names of a prompt where model, salt and fleet secret are alike.
//!
//! The name of a block is BLAKE3 in its keyed mode over the block's tokens. The key is the root of
//! the sequence and the name of the block before, which is how BLAKE3 itself goes from one 64 bytes
//! to the next: a block of 16 tokens costs one compression. A root covers the fleet's secret, the
//! model, the adapter and the salt. Without a secret names are safe by the strength of the hash
//! alone (128 bits against a second block of a given name).

use std::fmt;

/// Purpose for which the key of names is derived: another use of the secret has another key.
const CONTEXT: &str = "stator 2026 names of KV blocks";

/// Identity of a block together with everything before it: equal names, equal prefixes, also where
/// somebody wants it otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName(pub u128);

impl BlockName {
    /// The name in bytes, as others hash it.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl fmt::Debug for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockName({:032x})", self.0)
    }
}

/// The key of all names of an engine. Engines that exchange KV have the same key.
#[derive(Clone, PartialEq, Eq)]
pub struct NameKey([u8; 32]);

impl NameKey {
    /// The key of a fleet with this secret.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }
}

impl Default for NameKey {
    /// The key of fleets without a secret, which everybody knows.
    fn default() -> Self {
        Self::of_secret(&[])
    }
}

impl fmt::Debug for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameKey(..)")
    }
}

/// The beginning of all names of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRoot(BlockName);

impl NameRoot {
    /// The root for an adapter and a salt; an empty string is the same as none. `model` stands for
    /// all that decides what the KV of a token is.
    pub fn new(key: &NameKey, model: u64, adapter: Option<&str>, salt: Option<&str>) -> Self {
        let (adapter, salt) = (adapter.unwrap_or_default(), salt.unwrap_or_default());
        let mut hasher = blake3::Hasher::new_keyed(&key.0);
        hasher.update(&model.to_le_bytes());
        // With its length before it: the end of an adapter's name is no beginning of a salt.
        hasher.update(&(adapter.len() as u64).to_le_bytes());
        hasher.update(adapter.as_bytes()).update(salt.as_bytes());
        Self(name_of(hasher.finalize()))
    }

    /// The name of a block that follows `parent`; `None` at the start of a sequence.
    pub fn next(self, parent: Option<BlockName>, tokens: &[u32]) -> BlockName {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&self.0.to_bytes());
        key[16..].copy_from_slice(&parent.unwrap_or(self.0).to_bytes());
        if cfg!(target_endian = "little") {
            return name_of(blake3::keyed_hash(&key, bytemuck::cast_slice(tokens)));
        }
        let mut hasher = blake3::Hasher::new_keyed(&key);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        name_of(hasher.finalize())
    }
}

/// The first half of a hash.
fn name_of(hash: blake3::Hash) -> BlockName {
    let (halves, _) = hash.as_bytes().as_chunks();
    BlockName(u128::from_le_bytes(halves[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{HashSeed, block_hash};

    const TOKENS: [u32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
    /// Found in seconds: XXH3-64 of 64 bytes is a sum of four terms of 16 bytes each, and four lists
    /// of 2^22 terms hold some that add up to any sum.
    const FORGED: [u32; 16] = [19, 43, 51, 30, 85, 19, 19, 8, 96, 59, 75, 17, 52, 45, 72, 54];

    fn root(secret: &str, model: u64, adapter: &str, salt: &str) -> NameRoot {
        let key = NameKey::of_secret(secret.as_bytes());
        NameRoot::new(&key, model, Some(adapter), Some(salt))
    }

    #[test]
    fn blocks_that_share_a_hash_have_names_of_their_own() {
        let seed = HashSeed::default();
        assert_eq!(block_hash(&TOKENS, seed), block_hash(&FORGED, seed));
        let root = root("", 0, "", "");
        assert_ne!(root.next(None, &TOKENS), root.next(None, &FORGED));
    }

    #[test]
    fn a_name_is_of_secret_model_adapter_salt_tokens_and_all_before_them() {
        let name = |root: NameRoot| root.next(None, &TOKENS);
        let first = name(root("s", 1, "ab", "c"));
        let roots =
            [("t", 1, "ab", "c"), ("s", 2, "ab", "c"), ("s", 1, "a", "bc"), ("s", 1, "ab", "")];
        for (secret, model, adapter, salt) in roots {
            assert_ne!(
                name(root(secret, model, adapter, salt)),
                first,
                "{secret} {model} {adapter}"
            );
        }
        let root = root("s", 1, "ab", "c");
        let second = root.next(Some(first), &TOKENS);
        assert_ne!(second, first);
        assert_ne!(root.next(Some(second), &TOKENS), second);
        assert_eq!(root.next(Some(first), &TOKENS), second);
        let key = NameKey::of_secret(b"s");
        assert_eq!(NameRoot::new(&key, 1, None, None), NameRoot::new(&key, 1, Some(""), Some("")));
    }

    /// Agents of two versions must agree.
    #[test]
    fn names_stay_what_they_are() {
        let root = NameRoot::new(&NameKey::default(), 7, None, Some("tenantA"));
        let first = root.next(None, &TOKENS);
        let second = root.next(Some(first), &TOKENS);
        let expected = [0xe980b236dd61d3c75de0bd8b703de78d, 0x886033b4e4e012e9252c28fb8c7feefd];
        assert_eq!([first, second], expected.map(BlockName));
    }

    #[test]
    fn no_debug_output_shows_the_key() {
        assert_eq!(format!("{:?}", NameKey::of_secret(b"hush")), "NameKey(..)");
    }
}
