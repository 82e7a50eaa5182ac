//! Keys of pages.

use ring::digest::{Context, SHA256};
use std::num::NonZeroU32;

/// Hash of a page and all before it, under which SGLang stores it.
///
/// SHA-256 over the hash of the page before and the page's tokens. Before a first page stands the
/// hash of its sequence's salt, if it has one. Source: SGLang 0.5.23, `get_storage_hash_str`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PageKey(pub(crate) [u8; 32]);

impl PageKey {
    /// Stands before the first page of a salted sequence. Sequences of adapters have other ones, which
    /// SGLang draws by lot.
    pub(super) fn of_salt(salt: &str) -> Self {
        let mut hash = Context::new(&SHA256);
        hash.update(b"sglang-cache-namespace-v1");
        // No key of the caller's own, a salt, and its bytes.
        hash.update(&[0, 1]);
        hash.update(&(salt.len() as u64).to_le_bytes());
        hash.update(salt.as_bytes());
        Self::finish(hash)
    }

    /// The key of a page.
    pub(super) fn next(before: Option<Self>, tokens: &[u32]) -> Self {
        let mut hash = Context::new(&SHA256);
        if let Some(Self(before)) = before {
            hash.update(&before);
        }
        for token in tokens {
            hash.update(&token.to_le_bytes());
        }
        Self::finish(hash)
    }

    fn finish(hash: Context) -> Self {
        let digest = hash.finish();
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// Keys of a prompt's whole pages.
pub(crate) fn prompt_keys(
    tokens: &[u32],
    salt: Option<&str>,
    page_tokens: NonZeroU32,
) -> Vec<PageKey> {
    let mut before = salt.filter(|salt| !salt.is_empty()).map(PageKey::of_salt);
    let pages = tokens.chunks_exact(page_tokens.get() as usize);
    pages.map(|page| *before.insert(PageKey::next(before, page))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by SGLang 0.5.23: `get_storage_hash_str(RadixKey(range(1, 9), None, salt), None, 4)`.
    #[test]
    fn keys_equal_the_engines() {
        let of = |salt| {
            let tokens: Vec<u32> = (1..9).collect();
            let keys = prompt_keys(&tokens, salt, NonZeroU32::new(4).unwrap());
            keys.iter()
                .map(|PageKey(key)| key[..8].try_into().map(u64::from_be_bytes).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(None), [0xcf97_adee_db59_e05b, 0x4ebf_a8a1_f3c3_4151]);
        assert_eq!(of(Some("")), of(None));
        assert_eq!(of(Some("tenant")), [0xd1af_f133_80aa_8c28, 0x96d2_5d94_7ac3_3a89]);
    }

    #[test]
    fn a_page_that_is_not_whole_has_no_key() {
        assert_eq!(prompt_keys(&[7; 11], None, NonZeroU32::new(4).unwrap()).len(), 2);
    }
}
