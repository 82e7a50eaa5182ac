//! Changes of fields in a body that was scanned.

use crate::cursor::find_member;
use crate::edit::{Change, Edits, reshape, trim_end, write_member};
use crate::fields::{Field, Fields};
use crate::screening::Screening;
use crate::span::Span;
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

#[cfg(test)]
#[path = "editor_tests.rs"]
mod tests;
