//! Splitting a prompt at special tokens.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, Tokenizer};

/// A token that the text names itself, and the text up to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    /// The token at the start, and the length of its text; none in the first segment.
    pub(crate) token: Option<(u32, usize)>,
    /// The segment, the token's text included.
    pub(crate) text: &'a str,
}

impl<'a> Segment<'a> {
    /// The text after the token.
    pub(crate) fn body(&self) -> &'a str {
        &self.text[self.token.map_or(0, |(_, length)| length)..]
    }
}

/// Finds the added tokens of one kind in a text, as the tokenizer does: the leftmost first, of
/// those the longest.
#[derive(Debug)]
pub(crate) struct Splitter {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Splitter {
    /// A splitter for `tokens`; none if there are none.
    pub(crate) fn new<'t>(tokens: impl Iterator<Item = (u32, &'t AddedToken)>) -> Option<Self> {
        let (ids, contents): (Vec<_>, Vec<_>) =
            tokens.map(|(id, token)| (id, token.content.as_bytes())).unzip();
        if ids.is_empty() {
            return None;
        }
        let automaton =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()?;
        Some(Self { automaton, ids })
    }

    /// The segments of a text, which together are the text; none of an empty one.
    pub(crate) fn segments<'a>(&self, text: &'a str) -> impl Iterator<Item = Segment<'a>> {
        let mut token = None;
        let mut start = 0;
        let mut matches = self.automaton.find_iter(text);
        let mut done = false;
        std::iter::from_fn(move || {
            while !done {
                let next = matches.next();
                let end = next.map_or(text.len(), |found| found.start());
                let segment = Segment { token, text: &text[start..end] };
                match next {
                    Some(found) => {
                        start = found.start();
                        token = Some((self.ids[found.pattern().as_usize()], found.len()));
                    }
                    None => done = true,
                }
                if !segment.text.is_empty() {
                    return Some(segment);
                }
            }
            None
        })
    }
}

/// Whether what stands around a token decides nothing about it: then a prompt can be cut before it,
/// and the parts encoded by themselves.
pub(crate) fn is_plain(token: &AddedToken) -> bool {
    !token.single_word && !token.lstrip && !token.rstrip && !token.content.is_empty()
}

/// The splitter for the added tokens that the tokenizer looks for in the raw text (`normalized` is
/// false), where all of them are plain.
pub(crate) fn raw_splitter(tokenizer: &Tokenizer) -> Option<Splitter> {
    let tokens = || {
        tokenizer
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .iter()
            .map(|(id, token)| (*id, token))
    };
    let raw = || tokens().filter(|(_, token)| !token.normalized);
    if raw().any(|(_, token)| !is_plain(token)) {
        return None;
    }
    Splitter::new(raw())
}
