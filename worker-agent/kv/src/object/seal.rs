//! Tags over what lies in the bucket, so that nobody without the fleet's secret can add to it, and
//! encryption, so that nobody without the key can read it.

use std::borrow::Cow;

use stator_protos::name::BlockName;

use crate::Checksum;
use crate::cipher::{CipherTag, KvCipher};

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 32;
/// Bytes that close a header or an index.
pub(crate) const CLOSE_BYTES: usize = CipherTag::BYTES + TAG_BYTES;
/// Bytes that stay plain at the start of a header or an index: magic and version.
const PLAIN_BYTES: usize = 12;

/// Purpose for which the key of tags is derived: another use of the secret has another key.
const CONTEXT: &str = "stator 2026 KV blocks in object stores";

/// First word of a block's tag. The tags of headers and indexes begin with other words.
const BLOCK_WORD: &[u8; 8] = b"STKVBLK1";

/// Makes and verifies tags. Without a secret everybody knows the key: tags of headers and indexes
/// then tell damage only, and blocks have none, as their checksums tell damage already.
pub struct Seal {
    key: [u8; TAG_BYTES],
    is_secret: bool,
    cipher: Option<KvCipher>,
}

impl Seal {
    /// The seal of a fleet for KV of one form.
    pub fn new(secret: Option<[u8; 32]>, fingerprint: &[u8; 32]) -> Self {
        let mut material = [0; 64];
        material[..32].copy_from_slice(&secret.unwrap_or_default());
        material[32..].copy_from_slice(fingerprint);
        let key = blake3::derive_key(CONTEXT, &material);
        Self { key, is_secret: secret.is_some(), cipher: None }
    }

    /// The seal that also encrypts, where there is a cipher.
    #[must_use]
    pub fn with_cipher(self, cipher: Option<KvCipher>) -> Self {
        Self { cipher, ..self }
    }

    /// The cipher; none for plain objects.
    pub(crate) fn cipher(&self) -> Option<&KvCipher> {
        self.cipher.as_ref()
    }

    /// Begins a hash of names. With a cipher nobody else can make it, and guess at prompts by it.
    pub(crate) fn name_hasher(&self) -> blake3::Hasher {
        match &self.cipher {
            Some(cipher) => blake3::Hasher::new_keyed(cipher.hash_key()),
            None => blake3::Hasher::new(),
        }
    }

    /// Encrypts all that `bytes` has so far but for its beginning, if there is a cipher, and appends
    /// the tag over it.
    pub fn close(&self, bytes: &mut Vec<u8>) {
        let plain_bytes = bytes.len().min(PLAIN_BYTES);
        let (plain, content) = bytes.split_at_mut(plain_bytes);
        let cipher = self.cipher.as_ref();
        let tag = cipher.map_or_else(CipherTag::default, |of| of.seal_record(plain, content));
        bytes.extend_from_slice(&tag.to_bytes());
        let tag = blake3::keyed_hash(&self.key, bytes);
        bytes.extend_from_slice(tag.as_bytes());
    }

    /// Opens closed `bytes`; none if a tag is wrong, or another seal closed them.
    pub(crate) fn open<'a>(&self, bytes: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let (content, tag) = bytes.split_last_chunk::<TAG_BYTES>()?;
        // This comparison takes the same time whatever the tags are.
        if blake3::keyed_hash(&self.key, content) != blake3::Hash::from_bytes(*tag) {
            return None;
        }
        let (content, tag) = content.split_last_chunk()?;
        let tag = CipherTag::from_bytes(*tag);
        let Some(cipher) = &self.cipher else {
            return (tag == CipherTag::default()).then_some(Cow::Borrowed(content));
        };
        let mut content = content.to_vec();
        let plain_bytes = content.len().min(PLAIN_BYTES);
        let (plain, secret) = content.split_at_mut(plain_bytes);
        cipher.open_record(plain, &tag, secret).then_some(Cow::Owned(content))
    }

    /// Begins the tag of a block, whose KV may come in pieces.
    pub fn block(&self, name: BlockName) -> BlockTag {
        let hasher = self.is_secret.then(|| {
            let mut hasher = blake3::Hasher::new_keyed(&self.key);
            hasher.update(BLOCK_WORD).update(&name.to_bytes());
            hasher
        });
        BlockTag(hasher)
    }
}

/// The tag of a block, whose KV is given piece by piece.
pub struct BlockTag(Option<blake3::Hasher>);

impl BlockTag {
    /// Takes the next piece of the KV.
    pub fn update(&mut self, kv: &[u8]) {
        if let Some(hasher) = &mut self.0 {
            hasher.update(kv);
        }
    }

    /// The tag; zeros without a secret.
    pub fn finish(self, checksum: Checksum) -> [u8; TAG_BYTES] {
        self.hash(checksum).map_or([0; TAG_BYTES], blake3::Hash::into)
    }

    /// Whether `tag` is right. Without a secret every tag is.
    pub(crate) fn verify(self, checksum: Checksum, tag: [u8; TAG_BYTES]) -> bool {
        self.hash(checksum).is_none_or(|hash| hash == blake3::Hash::from_bytes(tag))
    }

    fn hash(self, checksum: Checksum) -> Option<blake3::Hash> {
        let mut hasher = self.0?;
        hasher.update(&checksum.0.to_le_bytes());
        Some(hasher.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: BlockName = BlockName(7);
    const SUM: Checksum = Checksum(9);

    fn tag(secret: Option<[u8; 32]>, name: BlockName, kv: &[u8], sum: Checksum) -> [u8; 32] {
        let mut tag = Seal::new(secret, &[1; 32]).block(name);
        kv.iter().for_each(|byte| tag.update(&[*byte]));
        tag.finish(sum)
    }

    #[test]
    fn a_block_tag_is_of_secret_name_kv_and_checksum() {
        let right = tag(Some([2; 32]), NAME, b"kv", SUM);
        let check = |secret: [u8; 32], name, kv: &[u8], sum| {
            let mut tag = Seal::new(Some(secret), &[1; 32]).block(name);
            tag.update(kv);
            tag.verify(sum, right)
        };
        assert!(check([2; 32], NAME, b"kv", SUM));
        assert!(!check([3; 32], NAME, b"kv", SUM));
        assert!(!check([2; 32], BlockName(8), b"kv", SUM));
        assert!(!check([2; 32], NAME, b"kw", SUM));
        assert!(!check([2; 32], NAME, b"kv", Checksum(8)));
    }

    #[test]
    fn without_a_secret_blocks_have_no_tag_and_need_none() {
        assert_eq!(tag(None, NAME, b"kv", SUM), [0; 32]);
        assert!(Seal::new(None, &[1; 32]).block(NAME).verify(SUM, [5; 32]));
    }

    #[test]
    fn what_another_fleet_or_form_closed_does_not_open() {
        let seal = Seal::new(Some([2; 32]), &[1; 32]);
        let mut bytes = b"content".to_vec();
        seal.close(&mut bytes);
        assert_eq!(seal.open(&bytes).as_deref(), Some(&b"content"[..]));
        for other in [Seal::new(None, &[1; 32]), Seal::new(Some([2; 32]), &[3; 32])] {
            assert_eq!(other.open(&bytes), None);
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(&changed), None, "{at}");
            assert_eq!(seal.open(&bytes[..at]), None, "{at}");
        }
    }

    #[test]
    fn what_is_encrypted_shows_nothing_and_opens_with_its_key_alone() {
        use crate::cipher::KvKey;
        let plain = || Seal::new(Some([2; 32]), &[1; 32]);
        let with = |secret: &[u8]| {
            let cipher = KvCipher::new(&KvKey::of_secret(secret), &[1; 32]);
            plain().with_cipher(Some(cipher))
        };
        let own = with(b"a");
        let mut bytes = b"MAGIC and 12 and a secret name".to_vec();
        let content = bytes.clone();
        own.close(&mut bytes);
        assert!(!bytes.windows(6).any(|window| window == b"secret"));
        assert_eq!(own.open(&bytes).as_deref(), Some(&content[..]));
        assert!(plain().open(&bytes).is_none() && with(b"b").open(&bytes).is_none());
        let mut bytes = content;
        plain().close(&mut bytes);
        assert!(own.open(&bytes).is_none(), "what is not encrypted is not this bucket's");
    }
}
