//! Changes of single values in a body. Every byte outside them is passed on as it came: numbers
//! above 2^53, the order of keys and the space between them survive.

use crate::allow::Screening;
use crate::body::Body;
use crate::cursor::find_member;
use crate::fields::{Field, Fields, Member, Span};
use crate::strings::write_string;
use bytes::Bytes;

/// Collects what is to change in a body that was scanned. A later call for a field replaces an
/// earlier one for the same field.
#[derive(Debug)]
pub struct Editor<'a> {
    body: &'a [u8],
    fields: &'a Fields,
    steps: Vec<(Field, Step)>,
    screening: Screening,
}

#[derive(Debug)]
enum Step {
    Set(Bytes),
    Remove,
    Merge(&'static str, Bytes),
}

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

impl<'a> Editor<'a> {
    /// Starts with no change. `body` is the one that `fields` were found in, in one piece.
    pub fn new(body: &'a [u8], fields: &'a Fields) -> Self {
        Self { body, fields, steps: Vec::new(), screening: Screening::default() }
    }

    /// Gives `field` the value `json`, which has to be sound JSON; adds the member at the end
    /// where there is none.
    pub fn set(&mut self, field: Field, json: impl Into<Bytes>) {
        self.step(field, Step::Set(json.into()));
    }

    /// Gives `field` a string as its value.
    pub fn set_string(&mut self, field: Field, text: &str) {
        let mut json = Vec::with_capacity(text.len() + 2);
        write_string(text, &mut json);
        self.set(field, json);
    }

    /// Removes `field`, every time that it stands in the body.
    pub fn remove(&mut self, field: Field) {
        self.step(field, Step::Remove);
    }

    /// Gives the member `name` of the object `field` the value `json`. Other members of the
    /// object stay; where `field` is absent or no object, it becomes one.
    pub fn merge(&mut self, field: Field, name: &'static str, json: impl Into<Bytes>) {
        self.step(field, Step::Merge(name, json.into()));
    }

    /// Removes the fields that `screening` found in this body. A field that it removes must not be
    /// set as well.
    pub fn screen(&mut self, screening: &Screening) {
        self.screening = screening.clone();
    }

    fn step(&mut self, field: Field, step: Step) {
        self.steps.retain(|(earlier, _)| *earlier != field);
        self.steps.push((field, step));
    }

    /// The changes, ready to be applied.
    pub fn finish(self) -> Edits {
        let mut changes = Vec::with_capacity(self.steps.len() + 1);
        let Screening { mut removed, inner, .. } = self.screening;
        changes.extend(inner);
        let mut added = Vec::new();
        for (field, step) in self.steps {
            let present = self.fields.get(field);
            match (step, present) {
                (Step::Set(with), Some(span)) => changes.push(Change { span, with }),
                (Step::Set(with), None) => write_member(field.name(), &with, &mut added),
                (Step::Remove, _) => removed.extend(self.fields.every(self.body, field)),
                (Step::Merge(name, json), Some(span)) => {
                    changes.push(merge_into(self.body, span, name, &json));
                }
                (Step::Merge(name, json), None) => {
                    write_member(field.name(), &object_of(name, &json), &mut added);
                }
            }
        }
        let object = self.fields.object();
        changes.extend(reshape(self.body, object, &mut removed, added));
        changes.sort_by_key(|change| (change.span.start, change.span.end));
        Edits { changes }
    }
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
fn trim_end(body: &[u8], end: usize) -> usize {
    body[..end].trim_ascii_end().len()
}

/// The change that gives the object at `span` a member, or makes an object of what is there.
fn merge_into(body: &[u8], span: Span, name: &str, json: &[u8]) -> Change {
    if let Some(member) = find_member(body, span, name) {
        return Change { span: member.value, with: Bytes::copy_from_slice(json) };
    }
    if body[span.start] != b'{' {
        return Change { span, with: object_of(name, json).into() };
    }
    let end = trim_end(body, span.end - 1);
    let mut with = Vec::with_capacity(name.len() + json.len() + 4);
    if end > span.start + 1 {
        with.push(b',');
    }
    write_member(name, json, &mut with);
    Change { span: Span { start: end, end }, with: with.into() }
}

fn object_of(name: &str, json: &[u8]) -> Vec<u8> {
    let mut object = Vec::with_capacity(name.len() + json.len() + 5);
    object.push(b'{');
    write_member(name, json, &mut object);
    object.push(b'}');
    object
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

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
