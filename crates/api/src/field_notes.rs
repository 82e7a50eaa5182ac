//! Fields of a request that nobody reads: refused by name, or named to the client as ignored.

use crate::field_rules::{self, FieldRule, Standing};
use crate::object::{MemberWeight, Strangers};
use crate::openai::ApiError;
use crate::request::PromptPin;
use stator_body::Api;
use std::cell::{Cell, RefCell};
use std::fmt::Display;

/// Most names of ignored fields that a client is told.
const IGNORED_MAX: usize = 16;

/// Treatment of fields that no API here has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownFields {
    /// The request is refused, with the field's name.
    #[default]
    Refuse,
    /// The field changes nothing, and the answer names it.
    Ignore,
}

/// Notes on the fields of one request.
#[derive(Debug, Default)]
pub struct FieldNotes {
    unknown: UnknownFields,
    ignored: RefCell<Vec<String>>,
    pin: Cell<Option<PromptPin>>,
}

impl FieldNotes {
    /// Notes of a request whose unknown fields are treated so.
    pub fn new(unknown: UnknownFields) -> Self {
        Self { unknown, ignored: RefCell::default(), pin: Cell::default() }
    }

    /// Notes of a request that nobody refuses for an unknown field.
    pub fn lenient() -> Self {
        Self::new(UnknownFields::Ignore)
    }

    /// Notes that a field changes nothing.
    pub fn ignore(&self, name: impl Display) {
        let mut ignored = self.ignored.borrow_mut();
        if ignored.len() < IGNORED_MAX {
            // Names that a client made up may be no text of a header.
            ignored.push(name.to_string().escape_default().to_string());
        }
    }

    /// Notes a wish that the prompt stays cached; the longest counts, and one that must be obeyed
    /// goes before one that need not.
    pub(crate) fn pin(&self, wish: PromptPin) {
        let weight = |pin: PromptPin| (!pin.is_usual, pin.seconds);
        let longer = self.pin.get().is_none_or(|known| weight(known) < weight(wish));
        if longer {
            self.pin.set(Some(wish));
        }
    }

    /// The wish that the prompt stays cached, if there is one.
    pub(crate) fn pinned(&self) -> Option<PromptPin> {
        self.pin.get()
    }

    /// A field that no API here has; `known` are the names that it may be a slip of.
    ///
    /// # Errors
    ///
    /// 400 with the field's name, unless unknown fields are ignored.
    pub(crate) fn unknown<'n>(
        &self,
        name: &impl Display,
        known: impl Iterator<Item = &'n str>,
    ) -> Result<(), ApiError> {
        if self.unknown == UnknownFields::Ignore {
            self.ignore(name);
            return Ok(());
        }
        let name = name.to_string();
        let last = name.rsplit('.').next().unwrap_or(&name);
        let message = match nearest(last, known) {
            Some(meant) => format!("{name} is not a field of this API; did you mean {meant}?"),
            None => format!("{name} is not a field of this API"),
        };
        Err(ApiError::bad_request(message).with_code("unknown_parameter").with_param(name))
    }

    /// Settles the members of an object that its struct does not read, by the rules of the API.
    /// `prefix` is the object's path with a dot, and empty for the body itself; `read` are the
    /// members that are read.
    ///
    /// # Errors
    ///
    /// 400 for the first that would change the answer, or that no API has.
    pub(crate) fn settle(
        &self,
        api: Api,
        prefix: &str,
        strangers: &Strangers<'_>,
        read: &[&'static str],
    ) -> Result<(), ApiError> {
        for (last, weight) in strangers.iter() {
            let name = &*format!("{prefix}{last}");
            match field_rules::find(api, name) {
                Some(rule) => self.obey(rule, name, weight)?,
                None if weight == MemberWeight::Null => {}
                None => {
                    let rules = field_rules::of(api);
                    let rules = rules.filter_map(|rule| rule.name.strip_prefix(prefix));
                    self.unknown(&name, read.iter().copied().chain(rules))?;
                }
            }
        }
        Ok(())
    }

    /// Settles a field that nobody reads by its rule.
    ///
    /// # Errors
    ///
    /// 400 for a field that is refused, and asks for something.
    pub(crate) fn obey(
        &self,
        rule: &FieldRule,
        name: &str,
        weight: MemberWeight,
    ) -> Result<(), ApiError> {
        match rule.standing {
            // Absence is what such a value asks for.
            _ if weight < rule.asks_from => Ok(()),
            Standing::Honoured => Ok(()),
            Standing::Ignored => {
                self.ignore(name);
                Ok(())
            }
            Standing::Refused => {
                let message = format!("{name} is not supported: {}", rule.why);
                Err(ApiError::unsupported(name, message))
            }
        }
    }

    /// Whether fields that no API here has are refused.
    pub(crate) fn refuses_unknown(&self) -> bool {
        self.unknown == UnknownFields::Refuse
    }

    /// The names of ignored fields, with commas between them; nothing if there are none.
    pub fn ignored(&self) -> Option<String> {
        let ignored = self.ignored.borrow();
        (!ignored.is_empty()).then(|| ignored.join(", "))
    }
}

/// The name that `name` is most likely a slip of.
fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.len() / 3).clamp(1, 3);
    let near = known.map(|known| (distance(name, known), known));
    near.filter(|(slips, _)| *slips <= most).min().map(|(_, known)| known)
}

/// Edits between two names: insertions, deletions, replacements, and swaps of neighbours.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let replaced = last[j] + usize::from(!a.eq_ignore_ascii_case(b));
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            // Two neighbours the other way round are one slip.
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_to_what_is_meant() {
        let known = ["temperature", "top_p", "top_k", "stop", "max_tokens", "n"];
        for (slip, meant) in [
            ("temprature", Some("temperature")),
            ("Temperature", Some("temperature")),
            ("temeprature", Some("temperature")),
            ("max_token", Some("max_tokens")),
            ("topp", Some("top_p")),
            ("maxtokens", Some("max_tokens")),
            ("wibble", None),
            ("zz", None),
        ] {
            assert_eq!(nearest(slip, known.into_iter()), meant, "{slip}");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_or_named() {
        let strict = FieldNotes::default();
        let error = strict.unknown(&"a.temprature", ["temperature"].into_iter()).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("a.temprature"));
        assert!(error.message.ends_with("did you mean temperature?"), "{error}");
        let lenient = FieldNotes::lenient();
        lenient.unknown(&"x", [].into_iter()).expect("it is ignored");
        lenient.ignore("user");
        lenient.ignore("é\r\n");
        assert_eq!(lenient.ignored().as_deref(), Some("x, user, \\u{e9}\\r\\n"));
        assert_eq!(strict.ignored(), None);
    }
}
