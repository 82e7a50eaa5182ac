//! Token ids to text, as they come, never half a character.

use super::vocabulary::ByteTable;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Most tokens that are held back in the hope that they make a character together.
const PENDING_MAX: usize = 32;
/// Replacement for bytes that are not text.
const REPLACEMENT: char = '\u{fffd}';

/// Way from a model's tokens to text.
#[derive(Clone, Debug)]
pub(crate) enum TokenDecoder {
    /// A token is its bytes, whatever stands before it: one look into a table.
    Bytes(Arc<ByteTable>),
    /// Anything else, by way of the tokenizer's own decoder.
    Generic(Arc<Tokenizer>),
}

/// The text of one choice, piece by piece.
///
/// The pieces together are what decoding all tokens at once gives. One exception: where a model
/// spells out characters in byte tokens and a run of them goes wrong in the end, the characters
/// that were complete are kept, while a decoder that sees the whole run gives all of it up.
#[derive(Debug)]
pub struct Detokenizer {
    skip_special: bool,
    /// Further tokens that have no text, ascending.
    dropped: Option<Arc<[u32]>>,
    state: State,
}

#[derive(Debug)]
enum State {
    Bytes {
        table: Arc<ByteTable>,
        /// Up to three bytes that begin a character.
        pending: Vec<u8>,
    },
    Generic(Window),
}

/// A few tokens of context, since decoders look at neighbours (spaces, bytes).
#[derive(Debug)]
struct Window {
    tokenizer: Arc<Tokenizer>,
    /// Tokens whose text is out, then tokens that are held back.
    ids: Vec<u32>,
    /// Number of `ids` whose text is out.
    done: usize,
}

impl Detokenizer {
    pub(crate) fn new(decoder: &TokenDecoder, skip_special: bool) -> Self {
        let state = match decoder {
            TokenDecoder::Bytes(table) => {
                State::Bytes { table: table.clone(), pending: Vec::new() }
            }
            TokenDecoder::Generic(tokenizer) => {
                State::Generic(Window { tokenizer: tokenizer.clone(), ids: Vec::new(), done: 0 })
            }
        };
        Self { skip_special, dropped: None, state }
    }

    /// Leaves out the text of these tokens, which are in ascending order.
    pub(crate) fn without(self, dropped: Arc<[u32]>) -> Self {
        Self { dropped: Some(dropped), ..self }
    }

    /// Takes the next tokens and appends the characters that are complete.
    pub fn push(&mut self, ids: &[u32], out: &mut String) {
        for id in ids {
            if self.dropped.as_ref().is_some_and(|dropped| dropped.binary_search(id).is_ok()) {
                continue;
            }
            match &mut self.state {
                State::Bytes { table, .. } if self.skip_special && table.is_special(*id) => {}
                State::Bytes { table, pending } => push_bytes(pending, table.bytes(*id), out),
                State::Generic(window) => window.push(*id, self.skip_special, out),
            }
        }
    }

    /// Appends what was held back; half a character becomes a replacement character.
    pub fn finish(&mut self, out: &mut String) {
        match &mut self.state {
            State::Bytes { pending, .. } => {
                if !std::mem::take(pending).is_empty() {
                    out.push(REPLACEMENT);
                }
            }
            State::Generic(window) => window.finish(self.skip_special, out),
        }
    }
}

/// Appends `bytes` as far as they are whole characters; the rest waits. Like
/// `String::from_utf8_lossy` of everything, in pieces.
fn push_bytes(pending: &mut Vec<u8>, bytes: &[u8], out: &mut String) {
    // Nearly every token is whole characters: they are not copied twice.
    if pending.is_empty()
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return out.push_str(text);
    }
    pending.extend_from_slice(bytes);
    let mut rest = 0;
    loop {
        match std::str::from_utf8(&pending[rest..]) {
            Ok(text) => {
                out.push_str(text);
                return pending.clear();
            }
            Err(error) => {
                let valid = rest + error.valid_up_to();
                out.push_str(
                    std::str::from_utf8(&pending[rest..valid]).expect("valid up to there"),
                );
                let Some(wrong) = error.error_len() else {
                    pending.drain(..valid);
                    return;
                };
                out.push(REPLACEMENT);
                rest = valid + wrong;
            }
        }
    }
}

impl Window {
    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // A decoder fails on no input that the model can produce; if one does, its tokens are empty.
        self.tokenizer.decode(ids, skip_special).unwrap_or_default()
    }

    fn push(&mut self, id: u32, skip_special: bool, out: &mut String) {
        self.ids.push(id);
        let before = self.decode(&self.ids[..self.done], skip_special);
        let all = self.decode(&self.ids, skip_special);
        let pending = self.ids.len() - self.done;
        if all.len() > before.len() && !all.ends_with(REPLACEMENT) && all.starts_with(&before) {
            out.push_str(&all[before.len()..]);
        } else if pending < PENDING_MAX {
            return;
        } else {
            self.push_rest(&before, &all, skip_special, out);
        }
        self.ids.drain(..self.done);
        self.done = self.ids.len();
    }

    fn push_rest(&self, before: &str, all: &str, skip_special: bool, out: &mut String) {
        match all.strip_prefix(before) {
            Some(rest) => out.push_str(rest),
            // What is held back spoils the text before it, which is out: it stands by itself then.
            None => out.push_str(&self.decode(&self.ids[self.done..], skip_special)),
        }
    }

    fn finish(&mut self, skip_special: bool, out: &mut String) {
        if self.ids.len() > self.done {
            let before = self.decode(&self.ids[..self.done], skip_special);
            let all = self.decode(&self.ids, skip_special);
            self.push_rest(&before, &all, skip_special, out);
        }
        self.ids.clear();
        self.done = 0;
    }
}

#[cfg(test)]
#[path = "detokenizer_tests.rs"]
mod tests;
