//! Reads the `parameters` of a plug-in: strictly, with defaults, and with all errors at once.

use crate::bytes::parse_bytes;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The parameters of a plug-in, or an object within them, while they are read.
///
/// Every method reads one parameter and gives its default where it is absent or wrong; a wrong
/// one also leaves an error that begins with its path. What nobody asked for is an error too.
pub(crate) struct Params<'p> {
    object: Option<&'p Map<String, Value>>,
    path: String,
    known: Vec<&'static str>,
    errors: &'p mut Vec<String>,
    notes: &'p mut Vec<String>,
}

/// Numbers that a parameter may have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// From the first to the second, both included.
    Within(f64, f64),
    /// This number or more.
    AtLeast(f64),
    /// More than this one.
    Above(f64),
    /// More than 0, and this one or less.
    UpTo(f64),
}

impl Bound {
    fn broken_by(self, value: f64) -> Option<String> {
        match self {
            Self::Within(low, high) if !(low..=high).contains(&value) => {
                Some(format!("{value} is not in {low}..={high}"))
            }
            Self::AtLeast(low) if value < low => Some(format!("{value} is less than {low}")),
            Self::Above(low) if value <= low => Some(format!("{value} is not above {low}")),
            Self::UpTo(high) if value <= 0.0 || value > high => {
                Some(format!("{value} is not above 0 and at most {high}"))
            }
            _ => None,
        }
    }
}

/// Reads `value`, an object or null; also what an operator should know of it, each note beginning
/// with the path of its parameter.
///
/// # Errors
///
/// Every error there is, each beginning with the path of its parameter.
pub(crate) fn read<T>(
    value: &Value,
    read: impl FnOnce(&mut Params<'_>) -> T,
) -> Result<(T, Vec<String>), Vec<String>> {
    let (mut errors, mut notes) = (Vec::new(), Vec::new());
    let object = match value {
        Value::Null => None,
        Value::Object(object) => Some(object),
        _ => return Err(vec!["parameters: not an object".to_owned()]),
    };
    let (errors_of, notes_of) = (&mut errors, &mut notes);
    let mut params = Params {
        object,
        path: String::new(),
        known: Vec::new(),
        errors: errors_of,
        notes: notes_of,
    };
    let result = read(&mut params);
    params.refuse_unknown();
    if errors.is_empty() { Ok((result, notes)) } else { Err(errors) }
}

impl Params<'_> {
    /// Leaves an error about the parameter `name`.
    pub(crate) fn wrong(&mut self, name: &str, message: impl Display) {
        let path = self.path_of(name);
        self.errors.push(format!("{path}: {message}"));
    }

    /// Leaves an error with its whole text, unless it is there already.
    pub(crate) fn wrong_once(&mut self, error: String) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Whether the parameter is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.object.is_some_and(|object| object.get(name).is_some_and(|value| !value.is_null()))
    }

    /// A boolean.
    pub(crate) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        self.convert(name, "true or false", Value::as_bool).unwrap_or(default)
    }

    /// A number within a bound.
    pub(crate) fn number(&mut self, name: &'static str, default: f64, bound: Bound) -> f64 {
        let Some(value) = self.convert(name, "a number", Value::as_f64) else {
            return default;
        };
        match bound.broken_by(value) {
            None => value,
            Some(message) => {
                self.wrong(name, message);
                default
            }
        }
    }

    /// A whole number in a range.
    pub(crate) fn whole(
        &mut self,
        name: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> u64 {
        let Some(value) = self.convert(name, "a whole number", Value::as_i64) else {
            return default;
        };
        match u64::try_from(value) {
            Ok(value) if range.contains(&value) => value,
            _ if *range.end() == u64::MAX => {
                self.wrong(name, format!("{value} is less than {}", range.start()));
                default
            }
            _ => {
                self.wrong(name, format!("{value} is not in {range:?}"));
                default
            }
        }
    }

    /// A whole number of either sign.
    pub(crate) fn integer(&mut self, name: &'static str, default: i64) -> i64 {
        self.convert(name, "a whole number", Value::as_i64).unwrap_or(default)
    }

    /// A text that is not empty.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        let text = self.convert(name, "a text", |value| value.as_str().map(str::to_owned))?;
        (!text.is_empty()).then_some(text)
    }

    /// A text that must be there.
    pub(crate) fn required_text(&mut self, name: &'static str) -> String {
        let had = self.has(name);
        let text = self.text(name);
        if text.is_none() && (!had || self.is_empty_text(name)) {
            self.wrong(name, "is required");
        }
        text.unwrap_or_default()
    }

    /// One of some words; the first is the default.
    pub(crate) fn choice<T: Copy>(&mut self, name: &'static str, choices: &[(&str, T)]) -> T {
        let default = choices[0].1;
        let Some(word) = self.text(name) else { return default };
        match choices.iter().find(|(choice, _)| *choice == word) {
            Some((_, chosen)) => *chosen,
            None => {
                let words: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
                self.wrong(name, format!("{word:?} is none of {}", words.join(", ")));
                default
            }
        }
    }

    /// A length of time, such as `"1m30s"`, or a number of nanoseconds.
    pub(crate) fn duration(&mut self, name: &'static str, default: Duration) -> Duration {
        let Some(value) = self.take(name) else { return default };
        let duration = match value {
            Value::String(text) => stator_protos::duration::parse(text),
            other => other.as_u64().map(Duration::from_nanos),
        };
        duration.unwrap_or_else(|| {
            self.wrong(name, format!("{value} is not a duration such as \"500ms\""));
            default
        })
    }

    /// A number of bytes, such as `"2GiB"`.
    pub(crate) fn bytes(&mut self, name: &'static str) -> Option<u64> {
        self.convert(name, "a size such as \"2GiB\"", |value| parse_bytes(value.as_str()?))
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, name: &'static str) -> Vec<String> {
        let texts = |value: &Value| {
            let items = value.as_array()?.iter();
            items.map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        self.convert(name, "a list of texts", texts).unwrap_or_default()
    }

    /// An object of texts.
    pub(crate) fn text_map(&mut self, name: &'static str) -> Vec<(String, String)> {
        let entries = |value: &Value| {
            let entry = |(key, value): (&String, &Value)| {
                value.as_str().map(|value| (key.clone(), value.to_owned()))
            };
            value.as_object()?.iter().map(entry).collect::<Option<Vec<_>>>()
        };
        self.convert(name, "an object of texts", entries).unwrap_or_default()
    }

    /// An object within; read as an empty one where it is absent.
    pub(crate) fn within<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Params<'_>) -> T,
    ) -> T {
        let object = match self.take(name) {
            None => None,
            Some(Value::Object(object)) => Some(object),
            Some(_) => {
                self.wrong(name, "is not an object");
                None
            }
        };
        let path = self.path_of(name);
        let mut inner = self.inner(object, path);
        let result = read(&mut inner);
        inner.refuse_unknown();
        result
    }

    /// A list of objects.
    pub(crate) fn list<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Params<'_>) -> T,
    ) -> Vec<T> {
        let items = match self.take(name) {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.wrong(name, "is not a list");
                return Vec::new();
            }
        };
        let mut results = Vec::with_capacity(items.len());
        for (position, item) in items.iter().enumerate() {
            let path = self.path_of(&format!("{name}[{position}]"));
            let Value::Object(object) = item else {
                self.errors.push(format!("{path}: is not an object"));
                continue;
            };
            // An item that is wrong does not hide what is wrong with the others.
            let object = Some(object);
            let mut inner = self.inner(object, path);
            results.push(read(&mut inner));
            inner.refuse_unknown();
        }
        results
    }

    /// Accepts a parameter that has no effect because there is nothing here for it to change.
    pub(crate) fn ignore(&mut self, name: &'static str) {
        self.known.push(name);
    }

    /// Tells that a parameter, where it is there, does not do here what it says. It has been read
    /// already.
    pub(crate) fn without_effect(&mut self, name: &str) {
        if self.has(name) {
            self.note(name, "has no effect here");
        }
    }

    /// Tells an operator something about the parameter `name`.
    pub(crate) fn note(&mut self, name: &str, message: impl Display) {
        let path = self.path_of(name);
        self.notes.push(format!("{path}: {message}"));
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn is_empty_text(&self, name: &str) -> bool {
        self.object.and_then(|object| object.get(name)).and_then(Value::as_str) == Some("")
    }

    fn convert<T>(
        &mut self,
        name: &'static str,
        wanted: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(name)?;
        let converted = convert(value);
        if converted.is_none() {
            self.wrong(name, format!("{value} is not {wanted}"));
        }
        converted
    }

    fn refuse_unknown(&mut self) {
        let Some(object) = self.object else { return };
        let unknown: Vec<_> =
            object.keys().filter(|name| !self.known.contains(&name.as_str())).cloned().collect();
        let known = match self.known.len() {
            0 => "there are none".to_owned(),
            _ => format!("known are {}", self.known.join(", ")),
        };
        for name in unknown {
            self.wrong(&name, format!("unknown parameter, {known}"));
        }
    }
}

impl<'p> Params<'p> {
    fn inner<'i>(&'i mut self, object: Option<&'i Map<String, Value>>, path: String) -> Params<'i> {
        Params { object, path, known: Vec::new(), errors: self.errors, notes: self.notes }
    }

    fn take(&mut self, name: &'static str) -> Option<&'p Value> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.object.and_then(|object| object.get(name)).filter(|value| !value.is_null())
    }
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
