//! Encryption of what tiers keep on disks and in object stores.
//!
//! AES-256-GCM. A nonce must never come twice under one key with other bytes, whatever crashes, is
//! restored from a backup, or is written by two agents at a time. A counter could not promise that:
//! it would have to be on disk before each use. So:
//!
//! - **Blocks** have a key of their own each: BLAKE3 of the tier's key, the block's name and twelve
//!   random bytes. One key encrypts one block, once; the random bytes would have to repeat for the
//!   same block.
//! - **Records** (descriptors, headers, indexes) are written again and again, often unchanged. Their
//!   nonce is BLAKE3 of their bytes and their place, under a key of its own: the same record has the
//!   same nonce and the same bytes, which tells nobody anything, and another record has another.

use rand::random;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use stator_protos::name::BlockName;
use std::fmt;

/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// Purposes for which keys are derived: another use of the file has another key.
const CONTEXT: &str = "stator 2026 encryption of KV at rest";
const BLOCKS: &str = "stator 2026 encryption of KV at rest: blocks";
const RECORDS: &str = "stator 2026 encryption of KV at rest: records";
const NONCES: &str = "stator 2026 encryption of KV at rest: nonces of records";
const CHECK: &str = "stator 2026 encryption of KV at rest: check";

/// The key of an agent's tiers, made from the content of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct KvKey([u8; 32]);

impl KvKey {
    /// The key for the content of a key file.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }
}

impl fmt::Debug for KvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KvKey(..)")
    }
}

/// Nonce of encrypted bytes, and the tag that reveals a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CipherTag {
    /// The nonce.
    pub nonce: [u8; NONCE_LEN],
    /// The tag.
    pub tag: [u8; TAG_BYTES],
}

impl CipherTag {
    /// Bytes of a tag and its nonce.
    pub const BYTES: usize = NONCE_LEN + TAG_BYTES;

    /// The tag in bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..NONCE_LEN].copy_from_slice(&self.nonce);
        bytes[NONCE_LEN..].copy_from_slice(&self.tag);
        bytes
    }

    /// The tag that these bytes are.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut tag = Self::default();
        tag.nonce.copy_from_slice(&bytes[..NONCE_LEN]);
        tag.tag.copy_from_slice(&bytes[NONCE_LEN..]);
        tag
    }
}

/// Encrypts what one tier keeps. Cheap to clone.
#[derive(Clone)]
pub struct KvCipher {
    blocks: [u8; 32],
    nonces: [u8; 32],
    records: LessSafeKey,
    check: [u8; 16],
}

impl KvCipher {
    /// The cipher of a tier. The salt is the tier's own, so that no two tiers have the same keys.
    pub fn new(key: &KvKey, salt: &[u8; 32]) -> Self {
        let material = *blake3::keyed_hash(&key.0, salt).as_bytes();
        let of = |purpose| blake3::derive_key(purpose, &material);
        let check = of(CHECK);
        Self {
            blocks: of(BLOCKS),
            nonces: of(NONCES),
            records: aes(&of(RECORDS)),
            check: *check.first_chunk().expect("it has 32 bytes"),
        }
    }

    /// A number by which a tier knows its key again. It tells nothing of the key.
    pub fn check(&self) -> [u8; 16] {
        self.check
    }

    /// A key for hashes that nobody else is to make.
    pub(crate) fn hash_key(&self) -> &[u8; 32] {
        &self.nonces
    }

    /// Encrypts a block.
    pub fn seal_block(&self, name: BlockName, kv: &mut [u8]) -> CipherTag {
        let nonce = random();
        let (key, aad) = (self.block_key(name, &nonce), Aad::from(name.to_bytes()));
        seal(&key, nonce, aad, kv)
    }

    /// Decrypts a block. False if it is not what was encrypted; `kv` is anything then.
    #[must_use]
    pub fn open_block(&self, name: BlockName, tag: &CipherTag, kv: &mut [u8]) -> bool {
        let (key, aad) = (self.block_key(name, &tag.nonce), Aad::from(name.to_bytes()));
        open(&key, tag, aad, kv)
    }

    /// Encrypts a record. `place` is all that its reader knows of it.
    pub fn seal_record(&self, place: &[u8], record: &mut [u8]) -> CipherTag {
        let mut hasher = blake3::Hasher::new_keyed(&self.nonces);
        hasher.update(&(place.len() as u64).to_le_bytes()).update(place).update(record);
        let nonce = *hasher.finalize().as_bytes().first_chunk().expect("it has 32 bytes");
        seal(&self.records, nonce, Aad::from(place), record)
    }

    /// Decrypts a record. False if it is not what was encrypted for this place; `record` is
    /// anything then.
    #[must_use]
    pub fn open_record(&self, place: &[u8], tag: &CipherTag, record: &mut [u8]) -> bool {
        open(&self.records, tag, Aad::from(place), record)
    }

    fn block_key(&self, name: BlockName, nonce: &[u8; NONCE_LEN]) -> LessSafeKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.blocks);
        hasher.update(&name.to_bytes()).update(nonce);
        aes(hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for KvCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KvCipher(..)")
    }
}

fn aes(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("the key has 32 bytes"))
}

fn seal<A: AsRef<[u8]>>(
    key: &LessSafeKey,
    nonce: [u8; NONCE_LEN],
    aad: Aad<A>,
    bytes: &mut [u8],
) -> CipherTag {
    let sealed = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, bytes);
    let sealed = sealed.expect("no block has the 64 GiB that are too many");
    let mut tag = CipherTag { nonce, ..CipherTag::default() };
    tag.tag.copy_from_slice(sealed.as_ref());
    tag
}

fn open<A: AsRef<[u8]>>(key: &LessSafeKey, tag: &CipherTag, aad: Aad<A>, bytes: &mut [u8]) -> bool {
    let nonce = Nonce::assume_unique_for_key(tag.nonce);
    key.open_in_place_separate_tag(nonce, aad, Tag::from(tag.tag), bytes, 0..).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn cipher(secret: &str, salt: u8) -> KvCipher {
        KvCipher::new(&KvKey::of_secret(secret.as_bytes()), &[salt; 32])
    }

    proptest! {
        #[test]
        fn a_block_comes_back_and_every_flipped_bit_shows(
            kv in vec(any::<u8>(), 1..300), name: u128, at: usize,
        ) {
            let (cipher, name) = (cipher("a", 1), BlockName(name));
            let mut sealed = kv.clone();
            let tag = cipher.seal_block(name, &mut sealed);
            let mut bytes = [&tag.to_bytes()[..], &sealed].concat();
            let read = |cipher: &KvCipher, name, bytes: &[u8]| {
                let (tag, sealed) = bytes.split_first_chunk().unwrap();
                let mut opened = sealed.to_vec();
                let is_open = cipher.open_block(name, &CipherTag::from_bytes(*tag), &mut opened);
                is_open.then_some(opened)
            };
            prop_assert_eq!(read(&cipher, name, &bytes), Some(kv));
            prop_assert_eq!(read(&cipher, BlockName(name.0 ^ 1), &bytes), None);
            let bit = at % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(&cipher, name, &bytes), None);
        }

        #[test]
        fn a_record_comes_back_at_its_place_alone(
            record in vec(any::<u8>(), 1..100), place in vec(any::<u8>(), 0..20), at: usize,
        ) {
            let cipher = cipher("a", 1);
            let mut sealed = record.clone();
            let tag = cipher.seal_record(&place, &mut sealed);
            let read = |cipher: &KvCipher, place: &[u8], sealed: &[u8]| {
                let mut opened = sealed.to_vec();
                cipher.open_record(place, &tag, &mut opened).then_some(opened)
            };
            prop_assert_eq!(read(&cipher, &place, &sealed), Some(record.clone()));
            prop_assert_eq!(read(&cipher, &[&place[..], &[0]].concat(), &sealed), None);
            let mut again = record.clone();
            prop_assert_eq!(cipher.seal_record(&place, &mut again), tag);
            prop_assert_eq!(&again, &sealed);
            // Another record has another nonce.
            let bit = at % (record.len() * 8);
            let mut other = record;
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(cipher.seal_record(&place, &mut other).nonce, tag.nonce);
        }
    }

    #[test]
    fn equal_blocks_look_different_and_other_keys_and_tiers_read_nothing() {
        let (mut one, mut two) = ([7; 64], [7; 64]);
        let own = cipher("a", 1);
        let tag = own.seal_block(BlockName(1), &mut one);
        let other = own.seal_block(BlockName(1), &mut two);
        assert!(tag.nonce != other.nonce && one != two);
        for stranger in [cipher("b", 1), cipher("a", 2)] {
            assert_ne!(stranger.check(), own.check());
            assert!(!stranger.open_block(BlockName(1), &tag, &mut one.clone()));
        }
        assert_eq!(cipher("a", 1).check(), own.check());
    }

    /// Disks outlive the agent's version.
    #[test]
    fn keys_stay_what_they_are() {
        let cipher = cipher("secret", 5);
        let mut record = *b"descriptor";
        let tag = cipher.seal_record(b"place", &mut record);
        let seen = (u128::from_le_bytes(cipher.check()), u128::from_le_bytes(tag.tag));
        let expected = (0xc61c7c054134f50c58542c4bf5ea447c, 0x43fe1f63ea82bcd65df71f9c2f6540ed);
        assert_eq!(seen, expected);
    }

    #[test]
    fn no_debug_output_shows_a_key() {
        let key = KvKey::of_secret(b"horse");
        let shown = format!("{key:?} {:?}", KvCipher::new(&key, &[0; 32]));
        assert_eq!(shown, "KvKey(..) KvCipher(..)");
    }
}
