//! A small table from words to their tokens.

/// Longest word that is kept, in bytes.
pub(crate) const WORD_MAX_BYTES: usize = 24;
/// Most tokens of a word that is kept.
const TOKENS_MAX: usize = 7;
/// Sets of two entries; a table has 2 MiB.
const SETS: usize = 1 << 14;

/// A word and its tokens, in one cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Entry {
    word: [u64; WORD_MAX_BYTES / 8],
    tokens: [u32; TOKENS_MAX],
    /// Length of the word in bytes; 0 is an empty entry.
    length: u8,
    count: u8,
}

/// A word in the form in which entries hold it.
#[derive(Clone, Copy)]
pub(crate) struct WordKey {
    word: [u64; WORD_MAX_BYTES / 8],
    length: u8,
}

impl WordKey {
    /// The key of a word; none for one that is not kept.
    #[inline]
    pub(crate) fn new(word: &str) -> Option<Self> {
        let length = word.len();
        if length > WORD_MAX_BYTES {
            return None;
        }
        let mut padded = [0u8; WORD_MAX_BYTES];
        padded[..length].copy_from_slice(word.as_bytes());
        let part =
            |at: usize| u64::from_le_bytes(padded[at..at + 8].try_into().expect("eight bytes"));
        Some(Self { word: [part(0), part(8), part(16)], length: length as u8 })
    }

    /// Mixes all bits of the word into the number of its set.
    #[inline]
    fn set(self) -> usize {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64) ^ (product >> 64) as u64
        };
        let low = fold(self.word[0] ^ 0x9e37_79b9_7f4a_7c15, self.word[1] ^ 0xc2b2_ae3d_27d4_eb4f);
        let all = fold(low ^ self.word[2] ^ u64::from(self.length), 0xff51_afd7_ed55_8ccd);
        all as usize % SETS
    }
}

/// The tokens of words, for one user at a time. Two entries share a set; the newer word displaces
/// the older one, so that the table neither grows nor has to be swept.
pub(crate) struct WordCache {
    entries: Box<[[Entry; 2]]>,
}

impl WordCache {
    pub(crate) fn new() -> Self {
        Self { entries: vec![[Entry::default(); 2]; SETS].into_boxed_slice() }
    }

    /// The tokens of a word, if they are here.
    #[inline]
    pub(crate) fn get(&self, key: WordKey) -> Option<&[u32]> {
        let set = &self.entries[key.set()];
        let found =
            set.iter().find(|entry| entry.length == key.length && entry.word == key.word)?;
        Some(&found.tokens[..usize::from(found.count)])
    }

    /// Keeps the tokens of a word, if they are few.
    pub(crate) fn insert(&mut self, key: WordKey, tokens: &[u32]) {
        if tokens.len() > TOKENS_MAX || key.length == 0 {
            return;
        }
        let mut entry = Entry {
            word: key.word,
            length: key.length,
            count: tokens.len() as u8,
            ..Entry::default()
        };
        entry.tokens[..tokens.len()].copy_from_slice(tokens);
        let set = &mut self.entries[key.set()];
        set[1] = set[0];
        set[0] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// A word has the tokens that it was given last, or none.
        #[test]
        fn never_answers_with_another_words_tokens(
            words in proptest::collection::vec(("[a-c\u{e9} ]{1,26}", proptest::collection::vec(any::<u32>(), 0..9)), 0..60),
        ) {
            let (mut cache, mut model) = (WordCache::new(), HashMap::new());
            for (word, tokens) in words {
                let Some(key) = WordKey::new(&word) else { continue };
                cache.insert(key, &tokens);
                if tokens.len() <= TOKENS_MAX {
                    model.insert(word, tokens);
                }
            }
            for (word, tokens) in &model {
                let found = WordKey::new(word).and_then(|key| cache.get(key));
                prop_assert!(found.is_none_or(|found| found == tokens));
            }
        }
    }

    #[test]
    fn words_that_differ_in_length_only_are_different() {
        let mut cache = WordCache::new();
        cache.insert(WordKey::new("a").unwrap(), &[1]);
        assert_eq!(cache.get(WordKey::new("a\0").unwrap()), None);
        assert_eq!(cache.get(WordKey::new("a").unwrap()), Some(&[1][..]));
        assert!(WordKey::new(&"x".repeat(25)).is_none());
    }
}
