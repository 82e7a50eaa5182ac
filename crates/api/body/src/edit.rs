//! Changes of single values in a body. Every byte outside them is passed on as it came: numbers
//! above 2^53, the order of keys and the space between them survive.

use crate::body::Body;
use crate::span::{Member, Span};
use crate::strings::write_string;
use bytes::Bytes;

/// Replacements in order and without overlap, to be applied to the body they were made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub(crate) changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) span: Span,
    pub(crate) with: Bytes,
}

impl Edits {
    /// Whether the body stays as it is.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes of the edited body, where the original has `original`.
    pub fn edited_len(&self, original: usize) -> usize {
        let gone: usize = self.changes.iter().map(|change| change.span.len()).sum();
        let new: usize = self.changes.iter().map(|change| change.with.len()).sum();
        original - gone + new
    }

    /// The edited body in one piece.
    pub fn apply(&self, body: &[u8]) -> Vec<u8> {
        let mut edited = Vec::with_capacity(self.edited_len(body.len()));
        let mut at = 0;
        for Change { span, with } in &self.changes {
            edited.extend_from_slice(&body[at..span.start]);
            edited.extend_from_slice(with);
            at = span.end;
        }
        edited.extend_from_slice(&body[at..]);
        edited
    }

    /// The edited body in pieces of 1 to `max_len` bytes. They share their memory with the
    /// chunks of `body` and with the replacements: nothing is copied.
    pub fn pieces<'a>(&'a self, body: &'a Body, max_len: usize) -> Pieces<'a> {
        Pieces {
            chunks: body.chunks(),
            offset: 0,
            at: 0,
            length: body.len(),
            changes: &self.changes,
            pending: Bytes::new(),
            max_len: max_len.max(1),
        }
    }
}

/// The iterator of [`Edits::pieces`].
#[derive(Debug)]
pub struct Pieces<'a> {
    /// Chunks from the one that `at` lies in; `offset` is the place within it.
    chunks: &'a [Bytes],
    offset: usize,
    at: usize,
    length: usize,
    changes: &'a [Change],
    pending: Bytes,
    max_len: usize,
}

impl Pieces<'_> {
    /// Moves on by `count` bytes, which lie within the first chunk.
    fn advance(&mut self, count: usize) {
        self.at += count;
        self.offset += count;
        if self.chunks.first().is_some_and(|chunk| self.offset == chunk.len()) {
            self.chunks = &self.chunks[1..];
            self.offset = 0;
        }
    }

    fn skip_to(&mut self, end: usize) {
        while let Some(chunk) = self.chunks.first().filter(|_| self.at < end) {
            let left = chunk.len() - self.offset;
            self.advance(left.min(end - self.at));
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.pending.is_empty() {
                let length = self.pending.len().min(self.max_len);
                return Some(self.pending.split_to(length));
            }
            let stop = self.changes.first().map_or(self.length, |change| change.span.start);
            if self.at < stop {
                let chunk = self.chunks.first()?;
                let left = chunk.len() - self.offset;
                let length = left.min(stop - self.at).min(self.max_len);
                let piece = chunk.slice(self.offset..self.offset + length);
                self.advance(length);
                return Some(piece);
            }
            let (change, rest) = self.changes.split_first()?;
            self.changes = rest;
            self.pending = change.with.clone();
            self.skip_to(change.span.end);
        }
    }
}

/// The change that removes members from the object and adds some at its end. `removed` is in any
/// order, `added` has the new members with commas between them.
pub(crate) fn reshape(
    body: &[u8],
    object: Span,
    removed: &mut Vec<Member>,
    added: Vec<u8>,
) -> Vec<Change> {
    removed.sort_by_key(|member| member.key_start);
    removed.dedup_by_key(|member| member.key_start);
    // Members at the end go together with the comma before them, all others with the one after.
    let mut end = trim_end(body, object.end - 1);
    let last = end;
    let mut inner = removed.len();
    while let Some(member) = removed[..inner].last().filter(|member| member.value.end == end) {
        end = trim_end(body, member.key_start);
        if body[end - 1] == b',' {
            end = trim_end(body, end - 1);
        }
        inner -= 1;
    }
    let mut changes: Vec<Change> = removed[..inner]
        .iter()
        .map(|member| Change { span: with_comma(body, member), with: Bytes::new() })
        .collect();
    if end < last || !added.is_empty() {
        let mut with = added;
        if !with.is_empty() && end > object.start + 1 {
            with.insert(0, b',');
        }
        changes.push(Change { span: Span { start: end, end: last }, with: with.into() });
    }
    changes
}

/// The member, the comma after it and the space around that.
fn with_comma(body: &[u8], member: &Member) -> Span {
    let comma = member.value.end + spaces(&body[member.value.end..]) + 1;
    Span { start: member.key_start, end: comma + spaces(&body[comma..]) }
}

fn spaces(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).count()
}

/// The end of what stands before `end`, without the space between.
pub(crate) fn trim_end(body: &[u8], end: usize) -> usize {
    body[..end].trim_ascii_end().len()
}

/// Appends a member, after a comma where `out` has another one already.
pub(crate) fn write_member(name: &str, json: &[u8], out: &mut Vec<u8>) {
    if out.last().is_some_and(|last| !matches!(last, b'{' | b',')) {
        out.push(b',');
    }
    write_string(name, out);
    out.push(b':');
    out.extend_from_slice(json);
}
