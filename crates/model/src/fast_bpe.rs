//! Byte-level BPE with known split patterns, without the general machinery.
//!
//! The general tokenizer keeps an alignment of every byte through every step, which costs ten times
//! what the tokens themselves cost. Here a scanner finds the words, a small table has the tokens of
//! the words seen before, and only for others the tokenizer's own BPE model is asked. The result
//! is the same, token for token: what is not exactly known is left to the general path.

use super::segments::{Splitter, is_plain};
use super::tokenizer_shape::TokenizerShape;
use super::vocabulary::bytes_to_chars;
use super::word_cache::{WordCache, WordKey};
use super::words::Pattern;
use parking_lot::Mutex;
use serde_json::Value;
use std::borrow::Cow;
use tokenizers::{Model as _, ModelWrapper, NormalizedString, Normalizer as _, Tokenizer};

/// The fast path of one tokenizer.
pub(crate) struct FastBpe {
    pattern: Pattern,
    /// The normalizer is Unicode's NFC; otherwise there is none.
    nfc: bool,
    /// Added tokens that are looked for after normalization.
    normalized: Option<Splitter>,
    chars: [char; 256],
    /// Word tables that nobody uses now. There are as many as ever were in use at once.
    caches: Mutex<Vec<WordCache>>,
}

impl FastBpe {
    /// The fast path for a tokenizer of this shape, where every part of it is known.
    pub(crate) fn new(shape: &TokenizerShape, tokenizer: &Tokenizer) -> Option<Self> {
        let chars = bytes_to_chars();
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
        let plain_model = model.dropout.is_none_or(|dropout| dropout == 0.0)
            && empty(&model.continuing_subword_prefix)
            && empty(&model.end_of_word_suffix)
            && !model.byte_fallback;
        // With a token for every byte nothing is ever unknown.
        let every_byte =
            chars.iter().all(|c| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_some());
        let nfc = match &shape.normalizer {
            Value::Null => false,
            normalizer if normalizer["type"] == "NFC" => true,
            _ => return None,
        };
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        // An ASCII token is its own normal form.
        let plain_tokens = added
            .values()
            .all(|token| is_plain(token) && (!token.normalized || token.content.is_ascii()));
        if !(plain_model && every_byte && plain_tokens) {
            return None;
        }
        let normalized =
            added.iter().filter(|(_, token)| token.normalized).map(|(id, token)| (*id, token));
        Some(Self {
            pattern: pattern(&shape.pre_tokenizer)?,
            nfc,
            normalized: Splitter::new(normalized),
            chars,
            caches: Mutex::new(Vec::new()),
        })
    }

    /// Appends the tokens of a text in which there is no token that is looked for in raw text.
    ///
    /// # Errors
    ///
    /// The model's own, which a byte-level model does not have.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let text = match self.nfc && !is_surely_nfc(text) {
            true => normalize(tokenizer, text)?,
            false => Cow::Borrowed(text),
        };
        let mut cache = self.caches.lock().pop().unwrap_or_else(WordCache::new);
        let result = match &self.normalized {
            None => self.encode_words(tokenizer, &text, &mut cache, ids),
            Some(splitter) => splitter.segments(&text).try_for_each(|segment| {
                ids.extend(segment.token.map(|(id, _)| id));
                self.encode_words(tokenizer, segment.body(), &mut cache, ids)
            }),
        };
        self.caches.lock().push(cache);
        result
    }

    fn encode_words(
        &self,
        tokenizer: &Tokenizer,
        mut text: &str,
        cache: &mut WordCache,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        while !text.is_empty() {
            let (word, rest) = text.split_at(self.pattern.first_word(text));
            let key = WordKey::new(word);
            match key.and_then(|key| cache.get(key)) {
                Some(tokens) => ids.extend_from_slice(tokens),
                // Long words have no key: they are rare enough to be tokenized anew.
                None => {
                    let start = ids.len();
                    let mapped: String =
                        word.bytes().map(|byte| self.chars[usize::from(byte)]).collect();
                    ids.extend(
                        tokenizer.get_model().tokenize(&mapped)?.into_iter().map(|token| token.id),
                    );
                    if let Some(key) = key {
                        cache.insert(key, &ids[start..]);
                    }
                }
            }
            text = rest;
        }
        Ok(())
    }
}

/// The split pattern of a pre-tokenizer, if every part of it is known.
fn pattern(json: &Value) -> Option<Pattern> {
    let byte_level = |json: &Value, use_regex: bool| {
        json["type"] == "ByteLevel"
            && json["add_prefix_space"] == false
            && json["use_regex"].as_bool().unwrap_or(true) == use_regex
    };
    if byte_level(json, true) {
        return Some(Pattern::Gpt2);
    }
    let parts = json["pretokenizers"].as_array().filter(|_| json["type"] == "Sequence")?;
    let [split, last] = &parts[..] else { return None };
    let known = split["type"] == "Split"
        && split["behavior"] == "Isolated"
        && split["invert"] == false
        && byte_level(last, false);
    Pattern::of_regex(split["pattern"]["Regex"].as_str().filter(|_| known)?)
}

/// Whether a text is in normal form for a simple reason: all of its characters are of ranges in
/// which none has a decomposition that NFC applies or combines with the one before it.
fn is_surely_nfc(text: &str) -> bool {
    text.is_ascii()
        || text.chars().all(|c| {
            matches!(u32::from(c),
                0..=0x2ff // Latin
                | 0x400..=0x482 | 0x48a..=0x52f // Cyrillic
                | 0x2010..=0x2027 | 0x2030..=0x205e // punctuation
                | 0x2190..=0x2328 | 0x232b..=0x2adb // arrows, mathematics, drawing
                | 0x3001..=0x3029 | 0x3030..=0x3098 | 0x309b..=0x30ff // CJK punctuation, kana
                | 0x4e00..=0x9fff // ideographs
                | 0xac00..=0xd7a3 // Hangul syllables
                | 0xff01..=0xffee // full-width forms
                | 0x1f300..=0x1f64f | 0x1f680..=0x1f6ff | 0x1f900..=0x1f9ff // pictographs
            )
        })
}

fn normalize<'a>(tokenizer: &Tokenizer, text: &str) -> tokenizers::Result<Cow<'a, str>> {
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = tokenizer.get_normalizer() {
        normalizer.normalize(&mut normalized)?;
    }
    Ok(Cow::Owned(normalized.get().to_owned()))
}

#[cfg(test)]
#[path = "fast_bpe_tests.rs"]
mod tests;
