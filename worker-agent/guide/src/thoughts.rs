//! A bound of a model's thoughts.

use stator_protos::worker::ThoughtLimit;
use std::sync::Arc;
use toktrie::{TokEnv, TokTrie};

/// Follows the thoughts of one answer. Once they are as long as they may be, the tokens of the marker
/// that ends thoughts come next, whatever the model would write.
///
/// Markers are looked for in the text, so that a marker may be several tokens.
#[derive(Clone)]
pub struct ThoughtGuard {
    tokens: TokEnv,
    limit: Arc<ThoughtLimit>,
    place: ThoughtPlace,
    /// The end of the text so far, in which a marker may have begun.
    tail: Vec<u8>,
}

/// The place in an answer, as thoughts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThoughtPlace {
    /// Nothing has come but white space and perhaps the beginning of a marker.
    Ahead,
    /// In thoughts, of which this number of tokens has come.
    Inside(u32),
    /// So many tokens of the forced marker have come.
    Ending(usize),
    /// No thoughts come any more.
    Behind,
}

impl std::fmt::Debug for ThoughtGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThoughtGuard").field("place", &self.place).finish_non_exhaustive()
    }
}

impl ThoughtGuard {
    pub(crate) fn new(tokens: TokEnv, limit: ThoughtLimit) -> Self {
        let place = if limit.inside { ThoughtPlace::Inside(0) } else { ThoughtPlace::Ahead };
        let mut guard = Self { tokens, limit: Arc::new(limit), place, tail: Vec::new() };
        guard.end_if_due();
        guard
    }

    /// The token that must come next, if the model has no choice.
    pub fn forced(&self) -> Option<u32> {
        match self.place {
            ThoughtPlace::Ending(at) => self.limit.end_tokens.get(at).copied(),
            _ => None,
        }
    }

    /// Takes the token that came.
    pub fn advance(&mut self, token: u32) {
        match self.place {
            ThoughtPlace::Behind => {}
            ThoughtPlace::Ending(at) if at + 1 < self.limit.end_tokens.len() => {
                self.place = ThoughtPlace::Ending(at + 1);
            }
            ThoughtPlace::Ending(_) => self.leave(),
            ThoughtPlace::Ahead => {
                self.push(token);
                self.look_for_thoughts();
            }
            ThoughtPlace::Inside(tokens) => {
                self.push(token);
                match has_any(&self.tail, &self.limit.closers) {
                    true => self.leave(),
                    false => self.place = ThoughtPlace::Inside(tokens.saturating_add(1)),
                }
                let longest = self.limit.closers.iter().map(String::len).max().unwrap_or(0);
                self.tail.drain(..self.tail.len().saturating_sub(longest));
            }
        }
        self.end_if_due();
    }

    fn push(&mut self, token: u32) {
        let bytes = self.tokens.tok_trie().token(token);
        let text = bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes);
        self.tail.extend_from_slice(text);
    }

    fn look_for_thoughts(&mut self) {
        let text = self.tail.trim_ascii_start();
        let openers = || self.limit.openers.iter().map(String::as_bytes);
        if openers().any(|opener| text.starts_with(opener)) {
            self.place = ThoughtPlace::Inside(0);
            self.tail.clear();
        } else if !openers().any(|opener| opener.starts_with(text)) {
            self.leave();
        }
    }

    fn leave(&mut self) {
        self.place = ThoughtPlace::Behind;
        self.tail = Vec::new();
    }

    fn end_if_due(&mut self) {
        if matches!(self.place, ThoughtPlace::Inside(tokens) if tokens >= self.limit.tokens) {
            self.place = ThoughtPlace::Ending(0);
        }
    }
}

/// Whether one of the markers is in the text.
fn has_any(text: &[u8], markers: &[String]) -> bool {
    markers.iter().any(|marker| text.windows(marker.len()).any(|part| part == marker.as_bytes()))
}
