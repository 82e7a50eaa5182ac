//! Token counts of a response, read from its ends while it goes by.

use crate::cursor::{Cursor, find_member};
use crate::fields::whole_number;
use crate::span::Span;
use memchr::memmem::{self, Finder};
use std::sync::LazyLock;

/// Bytes kept of the end of a response. The counts stand in the last event before `[DONE]` or at
/// the end of an object, in a few hundred bytes; `kv_transfer_params` may follow them.
pub(crate) const TAIL_BYTES: usize = 8 << 10;
/// Bytes kept of the beginning, where Anthropic's `message_start` has the counts of the input, and
/// vLLM's rankings have all counts.
pub(crate) const HEAD_BYTES: usize = 1 << 10;

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub completion_tokens: u32,
    /// Tokens of the prompt that were cached, where the worker says so.
    pub cached_tokens: Option<u32>,
    /// All tokens: what the worker says, else the sum.
    pub total_tokens: u32,
}

/// Keeps the ends of one response and finds the counts there.
///
/// A chunk costs one copy of at most 8 KiB; nothing is parsed before [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct UsageTail {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl UsageTail {
    /// Starts with nothing seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sees the next chunk of the response.
    pub fn push(&mut self, chunk: &[u8]) {
        let missing = HEAD_BYTES.saturating_sub(self.head.len()).min(chunk.len());
        self.head.extend_from_slice(&chunk[..missing]);
        let chunk = &chunk[chunk.len().saturating_sub(TAIL_BYTES)..];
        // Twice the tail before moving makes that one more copy of each byte, not one per chunk.
        if self.tail.len() + chunk.len() > 2 * TAIL_BYTES {
            let keep = TAIL_BYTES.min(self.tail.len());
            self.tail.drain(..self.tail.len() - keep);
        }
        self.tail.extend_from_slice(chunk);
    }

    /// The counts of the response; nothing where it has none.
    ///
    /// Understood are the `usage` of the OpenAI chat, completions and responses APIs, of
    /// Anthropic's messages and of vLLM's generate, and SGLang's `meta_info`, in a stream or not.
    pub fn finish(&self) -> Option<Usage> {
        let (first, last) = (first_counts(&self.head), last_counts(&self.tail));
        let is_message = || memmem::find(&self.head, b"\"message_start\"").is_some();
        match (first, last) {
            (Some(first), Some(last)) if is_message() => first.or_later(last).into_usage(),
            // vLLM's rankings have their counts before the results.
            (first, last) => last.or(first)?.into_usage(),
        }
    }
}

/// The counts as an API names them.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    prompt: Option<u32>,
    /// Parts of the prompt that Anthropic does not count in `input_tokens`.
    cache_read: Option<u32>,
    cache_written: Option<u32>,
    completion: Option<u32>,
    cached: Option<u32>,
    total: Option<u32>,
}

impl Counts {
    /// Reads the object at the start of `text`; nothing where it is cut off or has no counts.
    fn read(text: &[u8]) -> Option<Self> {
        let span = Cursor::at(text, 0).object(1, |_| {}).ok()?;
        let inside = |span: Span, name: &str| find_member(text, span, name).map(|m| m.value);
        let count = |names: [&str; 2]| {
            names.iter().find_map(|name| whole_number(inside(span, name)?.of(text)))
        };
        let cached = ["prompt_tokens_details", "input_tokens_details"].iter().find_map(|name| {
            let details = inside(span, name)?;
            whole_number(inside(details, "cached_tokens")?.of(text))
        });
        // Where all of the prompt is counted in one, the parts are not added to it again.
        let whole = count(["prompt_tokens"; 2]);
        let part = |name| if whole.is_none() { count([name; 2]) } else { None };
        let counts = Self {
            prompt: whole.or_else(|| count(["input_tokens"; 2])),
            cache_read: part("cache_read_input_tokens"),
            cache_written: part("cache_creation_input_tokens"),
            completion: count(["completion_tokens", "output_tokens"]),
            cached: cached.or_else(|| count(["cached_tokens"; 2])),
            total: count(["total_tokens"; 2]),
        };
        (counts.prompt.is_some() || counts.completion.is_some()).then_some(counts)
    }

    /// These counts, with those that `later` has in their place.
    fn or_later(self, later: Self) -> Self {
        Self {
            prompt: later.prompt.or(self.prompt),
            cache_read: later.cache_read.or(self.cache_read),
            cache_written: later.cache_written.or(self.cache_written),
            completion: later.completion.or(self.completion),
            cached: later.cached.or(self.cached),
            total: later.total.or(self.total),
        }
    }

    fn into_usage(self) -> Option<Usage> {
        let parts = [self.prompt, self.cache_read, self.cache_written];
        let prompt = parts.into_iter().flatten().fold(0_u32, u32::saturating_add);
        let completion = self.completion.unwrap_or(0);
        Some(Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            cached_tokens: self.cached.or(self.cache_read),
            total_tokens: self.total.unwrap_or(prompt.saturating_add(completion)),
        })
    }
}

/// The last object with counts. Within a string the quotes of its key would be escaped, so that
/// an answer that speaks of usage is not mistaken for one.
fn last_counts(text: &[u8]) -> Option<Counts> {
    keys(text).iter().rev().find_map(|&end| counts_after(text, end))
}

fn first_counts(text: &[u8]) -> Option<Counts> {
    keys(text).iter().find_map(|&end| counts_after(text, end))
}

/// Ends of the keys of objects with counts, in order.
fn keys(text: &[u8]) -> Vec<usize> {
    static KEYS: LazyLock<[Finder<'static>; 2]> =
        LazyLock::new(|| ["\"usage\"", "\"meta_info\""].map(Finder::new));
    let ends = |key: &'static Finder<'_>| key.find_iter(text).map(|at| at + key.needle().len());
    let mut ends: Vec<usize> = KEYS.iter().flat_map(ends).collect();
    ends.sort_unstable();
    ends
}

/// The counts that follow a key.
fn counts_after(text: &[u8], key_end: usize) -> Option<Counts> {
    let value = text[key_end..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    value.starts_with(b"{").then(|| Counts::read(value))?
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
