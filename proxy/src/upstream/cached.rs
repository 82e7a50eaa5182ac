//! Cached tokens of a prompt, as the client sees them: the count of the engine that computed it.
//! The engine that goes on from its KV would count all that was handed over.
//!
//! Source: llm-d's sidecar, which tells clients the same.

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use stator_body::Object;

/// The count's name. Within a string its quotes would be escaped, so that an answer that speaks of
/// it is not mistaken for one.
const KEY: &[u8] = b"\"cached_tokens\"";
/// Most bytes that are held back: the name, the space around the colon, and a count.
const HELD_MAX_BYTES: usize = 64;

/// Puts a count in the place of another one while an answer goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedTokens {
    count: u64,
    /// The end of what came, where the name or the count may go on.
    held: BytesMut,
}

/// Result of looking behind a name.
enum Found {
    /// A count in these bytes after the name's start, of which the first are to stay.
    Count { start: usize, end: usize },
    /// Something else.
    Other,
    /// Not enough to tell.
    Unfinished,
}

impl CachedTokens {
    /// The count in the answer of the engine that computed a prompt, 0 where it is null; nothing
    /// where it does not count.
    pub(crate) fn of(answer: &[u8]) -> Option<Self> {
        let usage = Object::parse(Object::parse(answer).ok()?.get("usage")?).ok()?;
        let details = usage.get("prompt_tokens_details").or(usage.get("input_tokens_details"))?;
        let count = match details {
            b"null" => None,
            details => Object::parse(details).ok()?.get("cached_tokens"),
        };
        let count = count.filter(|count| *count != b"null").unwrap_or(b"0");
        Some(Self { count: str::from_utf8(count).ok()?.parse().ok()?, held: BytesMut::new() })
    }

    /// Takes the next part of an answer and gives what can go on, which may be nothing.
    pub(crate) fn pass(&mut self, part: Bytes) -> Bytes {
        if self.held.is_empty() && memchr::memchr(b'"', &part).is_none() {
            return part;
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&part);
        let mut out = BytesMut::with_capacity(text.len());
        while let Some(at) = memmem::find(&text, KEY) {
            out.extend_from_slice(&text.split_to(at));
            match after_key(&text) {
                Found::Count { start, end } => {
                    out.extend_from_slice(&text.split_to(end)[..start]);
                    out.extend_from_slice(self.count.to_string().as_bytes());
                }
                Found::Unfinished if text.len() < HELD_MAX_BYTES => {
                    self.held = text;
                    return out.freeze();
                }
                Found::Other | Found::Unfinished => {
                    out.extend_from_slice(&text.split_to(KEY.len()));
                }
            }
        }
        // The end may be the beginning of the key: it is held back until the next part shows.
        let begun = (1..KEY.len()).rev().find(|length| text.ends_with(&KEY[..*length]));
        self.held = text.split_off(text.len() - begun.unwrap_or(0));
        out.extend_from_slice(&text);
        out.freeze()
    }

    /// The bytes left at the answer's end.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }
}

/// Reads on behind the name that `text` begins with.
fn after_key(text: &[u8]) -> Found {
    let mut at = KEY.len();
    let space = |at: usize| text[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    at += space(at);
    match text.get(at) {
        None => return Found::Unfinished,
        Some(b':') => at += 1,
        Some(_) => return Found::Other,
    }
    at += space(at);
    let word = text[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let end = at + word;
    match &text[at..end] {
        // A name and count that do not fit the held bytes pass, however the answer is cut.
        _ if end >= HELD_MAX_BYTES => Found::Other,
        // The next byte may still belong to it.
        _ if end == text.len() => Found::Unfinished,
        b"null" => Found::Count { start: at, end },
        digits if word > 0 && digits.iter().all(u8::is_ascii_digit) => {
            Found::Count { start: at, end }
        }
        _ => Found::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The answer with 7 in the place of the count, where it comes in pieces that end at `cuts`.
    fn check(answer: &str, cuts: &[usize]) -> String {
        let mut tokens = CachedTokens { count: 7, held: BytesMut::new() };
        let mut out = Vec::new();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (answer.len() + 1)).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            let part = &answer.as_bytes()[pair[0]..pair[1]];
            out.extend_from_slice(&tokens.pass(Bytes::copy_from_slice(part)));
            assert!(tokens.held.len() < HELD_MAX_BYTES);
        }
        out.extend_from_slice(&tokens.rest());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn the_count_is_the_one_of_the_engine_that_computed_the_prompt() {
        let of = |usage: &str| {
            let answer = format!(r#"{{"choices":[],"usage":{usage}}}"#);
            CachedTokens::of(answer.as_bytes()).map(|tokens| tokens.count)
        };
        assert_eq!(of(r#"{"prompt_tokens_details":{"cached_tokens":48}}"#), Some(48));
        assert_eq!(of(r#"{"input_tokens_details":{"cached_tokens":48}}"#), Some(48));
        assert_eq!(of(r#"{"prompt_tokens_details":{"cached_tokens":null}}"#), Some(0));
        assert_eq!(of(r#"{"prompt_tokens_details":null}"#), Some(0));
        for usage in ["{}", "null", r#"{"prompt_tokens_details":{"cached_tokens":"x"}}"#] {
            assert_eq!(of(usage), None, "{usage}");
        }
    }

    #[test]
    fn only_the_count_is_another() {
        let answer = r#"{"usage":{"prompt_tokens_details":{"cached_tokens" : 1234 }}}"#;
        assert_eq!(check(answer, &[]), answer.replace("1234", "7"));
        assert_eq!(check(r#"{"cached_tokens":null}"#, &[]), r#"{"cached_tokens":7}"#);
        for same in [
            r#"{"text":"\"cached_tokens\":5"}"#,
            r#"{"text":"cached_tokens","n":5}"#,
            r#"{"cached_tokens":"5"}"#,
            r#"{"cached_tokens":-5.5}"#,
            "data: [DONE]\n\n",
            "\"cached_tokens\":5",
            "\"cached_tok",
            "",
        ] {
            assert_eq!(check(same, &[]), same);
        }
        let far = format!("{{\"cached_tokens\":{}5}}", " ".repeat(100));
        assert_eq!(check(&far, &[10, 50, 90]).len(), far.len());
    }

    proptest! {
        /// However an answer is cut into pieces, it comes out the same.
        #[test]
        fn pieces_make_no_difference(
            words in vec(proptest::sample::select(vec![
                "\"cached_tokens\"", ":", "12", "null", " ", ",", "\"", "\"cached", "}", "data: x\n\n",
                "0123456789012345678901234567890123456789",
            ]), 0..12),
            cuts in vec(any::<usize>(), 0..6),
        ) {
            let answer = words.concat();
            prop_assert_eq!(check(&answer, &cuts), check(&answer, &[]));
        }
    }
}
