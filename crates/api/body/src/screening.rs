//! The fields that a body loses on its way to an engine.

use crate::edit::{Change, Edits, reshape};
use crate::span::{Member, Span};

/// Fields of a kind that are kept by name, and the bytes kept of each name.
pub(crate) const NAMES_MAX: usize = 16;
pub(crate) const NAME_MAX_BYTES: usize = 64;

/// The kind of a field that no engine gets from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// The field steers engines: only proxies and pickers set it.
    Steering,
    /// The field chooses what an engine runs: it passes where an operator names it.
    Privileged,
    /// The field is on no list.
    Unknown,
}

/// A field that a body loses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedField {
    /// The field with the objects around it, such as `vllm_xargs.rid`; at most 64 bytes.
    pub name: String,
    /// The field's kind.
    pub kind: RemovedKind,
    /// Whether the value asks for something: `null`, `false` and what is empty do not, nor does a
    /// zero, unless a field that steers has it, where it names the first of some. Of a field that is
    /// on no list `null` alone asks for nothing.
    pub asks: bool,
}

/// The fields that a body loses; made by [`FieldRules::screen`](crate::FieldRules::screen), applied by
/// [`Editor::screen`](crate::Editor::screen), or by [`Screening::edits`] where nothing else changes.
#[derive(Clone, Debug, Default)]
pub struct Screening {
    pub(crate) removed: Vec<Member>,
    pub(crate) inner: Vec<Change>,
    fields: Vec<RemovedField>,
    steering: u64,
    unknown: u64,
}

impl Screening {
    /// Whether the body stays as it is.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.inner.is_empty()
    }

    /// Removed fields, in the body's order: at most 16 that steer or are privileged, and 16 others.
    pub fn fields(&self) -> &[RemovedField] {
        &self.fields
    }

    /// Names of [`Screening::fields`], for a log.
    pub fn names(&self) -> Vec<&str> {
        self.fields.iter().map(|field| &*field.name).collect()
    }

    /// Removed fields that steer engines or are privileged.
    pub fn steering(&self) -> u64 {
        self.steering
    }

    /// Removed fields that are on no list.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// All changes of a body that nobody edits otherwise.
    pub fn edits(&self) -> Edits {
        Edits { changes: self.inner.clone() }
    }

    /// The changes in the words of [`Screening::edits`], where `object` is the body's own.
    pub(crate) fn settle(mut self, body: &[u8], object: Span) -> Self {
        self.inner.extend(reshape(body, object, &mut self.removed, Vec::new()));
        self.removed.clear();
        self.inner.sort_by_key(|change| (change.span.start, change.span.end));
        self
    }

    /// Counts a removed field; `value` is its JSON, where it is JSON.
    pub(crate) fn note(&mut self, name: &str, kind: RemovedKind, value: Option<&[u8]>) {
        let count = match kind {
            RemovedKind::Steering | RemovedKind::Privileged => &mut self.steering,
            RemovedKind::Unknown => &mut self.unknown,
        };
        *count += 1;
        if *count <= NAMES_MAX as u64 {
            let end = name.floor_char_boundary(NAME_MAX_BYTES);
            let asks = value.is_none_or(|value| asks(kind, value));
            self.fields.push(RemovedField { name: name[..end].to_owned(), kind, asks });
        }
    }
}

/// Whether a sound JSON value of a field asks for something.
fn asks(kind: RemovedKind, value: &[u8]) -> bool {
    match (kind, value) {
        (_, b"null") => false,
        (RemovedKind::Unknown, _) => true,
        (_, b"false" | b"\"\"") => false,
        (_, [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}']) => !inner.trim_ascii().is_empty(),
        (RemovedKind::Privileged, [b'-' | b'0'..=b'9', ..]) => {
            let mantissa = value.split(|byte| matches!(byte, b'e' | b'E')).next();
            mantissa.unwrap_or_default().iter().any(|byte| matches!(byte, b'1'..=b'9'))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_asks_for_nothing() {
        use RemovedKind::{Privileged, Steering, Unknown};
        for (value, expected) in [
            ("null", [false, false, false]),
            ("false", [false, false, true]),
            ("\"\"", [false, false, true]),
            ("[ ]", [false, false, true]),
            ("{}", [false, false, true]),
            ("0", [true, false, true]),
            ("-0.0e9", [true, false, true]),
            ("0.01", [true, true, true]),
            ("true", [true, true, true]),
            ("[0]", [true, true, true]),
            ("\" \"", [true, true, true]),
        ] {
            let found = [Steering, Privileged, Unknown].map(|kind| asks(kind, value.as_bytes()));
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn fields_that_steer_are_kept_beside_any_number_of_others() {
        let mut screening = Screening::default();
        for at in 0..40 {
            screening.note(&format!("a{at}"), RemovedKind::Unknown, Some(b"1"));
        }
        for at in 0..40 {
            screening.note(&format!("b{at}"), RemovedKind::Steering, None);
        }
        assert_eq!((screening.unknown(), screening.steering()), (40, 40));
        assert_eq!(screening.fields().len(), 2 * NAMES_MAX);
        assert_eq!(screening.fields()[NAMES_MAX].name, "b0");
    }
}
