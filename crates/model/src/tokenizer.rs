//! Text to token ids, as `tokenizers` does it, with what was seen before.
//!
//! A prompt is cut before each special token, where the tokenizer itself cuts it: the parts do not
//! know of each other. So the tokens of a part can be kept and found again in any prompt that has
//! the part, as the turns of a conversation and shared instructions do.

use super::detokenizer::TokenDecoder;
use super::fast_bpe::FastBpe;
use super::segments::{Segment, Splitter, raw_splitter};
use super::tokenizer_shape::TokenizerShape;
use super::vocabulary::ByteTable;
use moka::sync::Cache;
use std::borrow::Cow;
use std::sync::Arc;
use tokenizers::Tokenizer as General;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Default bound of the cache of one model, in bytes.
pub const CACHE_MAX_BYTES: u64 = 64 << 20;
/// Shorter parts are encoded anew: that is as fast as looking for them.
const CACHED_MIN_BYTES: usize = 256;
/// As [`CACHED_MIN_BYTES`], for the general path, which is slower.
const CACHED_MIN_BYTES_GENERAL: usize = 32;

/// A model's tokenizer. Cheap to use from many threads.
pub struct Tokenizer {
    general: Arc<General>,
    fast: Option<FastBpe>,
    splitter: Option<Splitter>,
    /// Tokens before and after every text that is encoded with special tokens; none if the
    /// tokenizer does more than put them around it.
    around: Option<(Vec<u32>, Vec<u32>)>,
    cache: Cache<u64, Arc<Part>>,
    cached_min_bytes: usize,
    /// So that nobody can make up texts that share a place in the cache.
    seed: u64,
    decoder: TokenDecoder,
}

/// A part of a prompt and its tokens.
struct Part {
    text: Box<str>,
    ids: Box<[u32]>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("fast", &self.fast.is_some()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. `cache_max_bytes` bounds what is kept of earlier prompts.
    ///
    /// # Errors
    ///
    /// What is wrong with the file.
    pub fn new(json: &[u8], cache_max_bytes: u64) -> Result<Self, String> {
        let mut general = General::from_bytes(json).map_err(|error| error.to_string())?;
        // Prompts are neither cut nor filled up: the context length is checked elsewhere.
        general.with_truncation(None).map_err(|error| error.to_string())?;
        general.with_padding(None);
        let general = Arc::new(general);
        let shape: TokenizerShape =
            serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let splitter = raw_splitter(&general);
        // Without a splitter there may be raw tokens that the fast path does not look for.
        let raw_tokens = general
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .values()
            .any(|t| !t.normalized);
        let fast =
            if splitter.is_none() && raw_tokens { None } else { FastBpe::new(&shape, &general) };
        let decoder = match shape.decoder["type"] == "ByteLevel" {
            true => TokenDecoder::Bytes(Arc::new(ByteTable::new(&general))),
            false => TokenDecoder::Generic(general.clone()),
        };
        let weight =
            |_: &u64, part: &Arc<Part>| (part.text.len() + 4 * part.ids.len() + 128) as u32;
        Ok(Self {
            around: around(&general),
            cache: Cache::builder().max_capacity(cache_max_bytes).weigher(weight).build(),
            cached_min_bytes: if fast.is_some() {
                CACHED_MIN_BYTES
            } else {
                CACHED_MIN_BYTES_GENERAL
            },
            seed: rand::random(),
            general,
            fast,
            splitter,
            decoder,
        })
    }

    /// The special tokens and their texts, in the order of their ids.
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        let added = self.general.get_added_vocabulary().get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special);
        let mut special: Vec<_> = special.map(|(id, token)| (*id, token.content.clone())).collect();
        special.sort_unstable();
        special
    }

    /// The texts of all tokens that were added to the vocabulary, special or not.
    pub(crate) fn added_tokens(&self) -> Vec<String> {
        let added = self.general.get_added_vocabulary().get_added_tokens_decoder();
        added.values().map(|token| token.content.clone()).collect()
    }

    /// The tokens of a text. With `add_special_tokens` the tokenizer's post-processor adds what
    /// belongs around a text by itself; a rendered chat has it already.
    ///
    /// # Errors
    ///
    /// The tokenizer's own message, for a text that its model cannot express.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let (before, after) = match (&self.around, add_special_tokens) {
            (_, false) => (&[][..], &[][..]),
            (Some((before, after)), true) => (&before[..], &after[..]),
            (None, true) => return self.general_ids(text, true),
        };
        // Rather too much than a second allocation: four bytes a token are few.
        let mut ids = Vec::with_capacity(text.len() / 4 + before.len() + after.len() + 16);
        ids.extend_from_slice(before);
        match &self.splitter {
            Some(splitter) => {
                splitter
                    .segments(text)
                    .try_for_each(|segment| self.encode_segment(segment, &mut ids))?;
            }
            None if text.is_empty() => {}
            None => self.encode_segment(Segment { token: None, text }, &mut ids)?,
        }
        ids.extend_from_slice(after);
        Ok(ids)
    }

    /// Way from tokens back to text.
    pub(crate) fn decoder(&self) -> &TokenDecoder {
        &self.decoder
    }

    /// The bytes of one token by itself.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        match &self.decoder {
            TokenDecoder::Bytes(table) => Cow::Borrowed(table.bytes(id)),
            TokenDecoder::Generic(general) => {
                let token = general.id_to_token(id).unwrap_or_default();
                match byte_token(&token) {
                    Some(byte) => Cow::Owned(vec![byte]),
                    // Decoders of this kind drop a leading space at the start of a text only.
                    None => Cow::Owned(token.replace('▁', " ").into_bytes()),
                }
            }
        }
    }

    /// The id of a token by its text.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.general.token_to_id(token)
    }

    /// Tokens in the vocabulary, added ones included.
    pub fn vocabulary_size(&self) -> usize {
        self.general.get_vocab_size(true)
    }

    /// The fewest tokens that a text of so many bytes can have; 0 where that is not known.
    ///
    /// The normal form NFC, which is all that the fast path does to a text, makes it at most three
    /// times shorter. Source: Unicode Standard Annex 15, table 14.
    pub fn fewest_tokens(&self, text_bytes: usize) -> usize {
        match (&self.fast, &self.decoder) {
            (Some(_), TokenDecoder::Bytes(table)) => text_bytes / (3 * table.longest().max(1)),
            _ => 0,
        }
    }

    /// Whether the fast path serves this tokenizer.
    pub fn is_fast(&self) -> bool {
        self.fast.is_some()
    }

    fn encode_segment(&self, segment: Segment<'_>, ids: &mut Vec<u32>) -> Result<(), String> {
        if segment.text.len() < self.cached_min_bytes {
            return self.encode_anew(segment, ids);
        }
        let key = xxh3_64_with_seed(segment.text.as_bytes(), self.seed);
        if let Some(part) = self.cache.get(&key)
            && *part.text == *segment.text
        {
            ids.extend_from_slice(&part.ids);
            return Ok(());
        }
        let start = ids.len();
        self.encode_anew(segment, ids)?;
        self.cache
            .insert(key, Arc::new(Part { text: segment.text.into(), ids: ids[start..].into() }));
        Ok(())
    }

    fn encode_anew(&self, segment: Segment<'_>, ids: &mut Vec<u32>) -> Result<(), String> {
        match &self.fast {
            Some(fast) => {
                ids.extend(segment.token.map(|(id, _)| id));
                fast.encode(&self.general, segment.body(), ids).map_err(|error| error.to_string())
            }
            // The token goes with its text: some tokenizers treat the start of a text otherwise.
            None => {
                ids.extend(self.general_ids(segment.text, false)?);
                Ok(())
            }
        }
    }

    fn general_ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encoding = self
            .general
            .encode_fast(text, add_special_tokens)
            .map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Tokens that the post-processor puts before and after a text, if they are the same for all texts.
fn around(general: &General) -> Option<(Vec<u32>, Vec<u32>)> {
    let ids = |text: &str, special: bool| {
        general.encode_fast(text, special).ok().map(|e| e.get_ids().to_vec())
    };
    let around_of = |text: &str| {
        let (with, without) = (ids(text, true)?, ids(text, false)?);
        if without.is_empty() {
            return None;
        }
        let start = with.windows(without.len()).position(|window| window == without)?;
        Some((with[..start].to_vec(), with[start + without.len()..].to_vec()))
    };
    let (first, second) = (around_of("a")?, around_of("The b, 12.")?);
    let empty = [&first.0[..], &first.1[..]].concat();
    (first == second && ids("", true)? == empty).then_some(first)
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
