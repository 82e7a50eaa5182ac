//! Reads a tree of values, noting every fault with its path instead of stopping at the first.

use serde_json::Value;
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Most faults that are noted; the rest would be more of the same.
const FAULTS_MAX: usize = 32;

/// The faults of a file, in reading order.
#[derive(Default)]
pub(super) struct FileFaults(RefCell<Vec<String>>);

impl FileFaults {
    /// `value` if nothing is wrong.
    pub(super) fn none<T>(self, value: T) -> Result<T, Vec<String>> {
        let faults = self.0.into_inner();
        if faults.is_empty() { Ok(value) } else { Err(faults) }
    }
}

/// A value and where it stands.
#[derive(Clone)]
pub(super) struct Node<'a> {
    value: &'a Value,
    path: String,
    faults: &'a FileFaults,
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value, faults: &'a FileFaults) -> Self {
        Self { value, path: String::new(), faults }
    }

    /// Notes that something is wrong at `key` of this value.
    pub(super) fn fault(&self, key: &str, what: &str) {
        let path = self.path_of(key);
        let mut faults = self.faults.0.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(format!("{path}: {what}"));
        }
    }

    /// Whether a key is there and not null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value.get(key).is_some_and(|value| !value.is_null())
    }

    /// The node at a key, if there is one.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Self { value, path: self.path_of(key), faults: self.faults })
    }

    /// Notes a fault for every key that is not known, and if this is no map.
    pub(super) fn only(&self, known: &[&str]) {
        let Some(map) = self.value.as_object() else {
            self.wrong("a map");
            return;
        };
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            self.fault(key, &format!("unknown key, known are {}", known.join(", ")));
        }
    }

    /// The text at a key, if there is any.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.get(key)?.as_text()
    }

    /// The text at a key that must be there and not empty.
    pub(super) fn required(&self, key: &str) -> Option<String> {
        let text = match self.get(key) {
            Some(node) => node.as_text()?,
            None => String::new(),
        };
        if text.is_empty() {
            self.fault(key, "missing");
        }
        Some(text).filter(|text| !text.is_empty())
    }

    /// The entries of the list at a key; none if it is not there.
    pub(super) fn list(&self, key: &str, limit: usize) -> Vec<Self> {
        let Some(list) = self.get(key) else { return Vec::new() };
        let Some(entries) = list.value.as_array() else {
            list.wrong("a list");
            return Vec::new();
        };
        if entries.len() > limit {
            self.fault(key, &format!("{} entries, limit {limit}", entries.len()));
            return Vec::new();
        }
        let entry =
            |(at, value)| Self { value, path: format!("{}[{at}]", list.path), faults: self.faults };
        entries.iter().enumerate().map(entry).collect()
    }

    /// The entries of the map at a key, if it is there.
    pub(super) fn map(&self, key: &str) -> Option<Vec<(String, Self)>> {
        let map = self.get(key)?;
        let Some(entries) = map.value.as_object() else {
            map.wrong("a map");
            return None;
        };
        Some(entries.keys().filter_map(|key| Some((key.clone(), map.get(key)?))).collect())
    }

    /// This text.
    pub(super) fn as_text(&self) -> Option<String> {
        if !self.value.is_string() {
            self.wrong("text");
        }
        self.value.as_str().map(str::to_owned)
    }

    /// This whole number, which may also be written as text.
    pub(super) fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let text = self.value.as_str().and_then(|text| text.parse().ok());
        let number = self.value.as_i64().or(text).filter(|number| range.contains(number));
        if number.is_none() {
            self.wrong(&format!("a whole number in {}..={}", range.start(), range.end()));
        }
        number
    }

    fn wrong(&self, expected: &str) {
        self.fault("", &format!("{} is not {expected}", self.value));
    }

    fn path_of(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            ("", "") => "file".to_owned(),
            (path, "") => path.to_owned(),
            ("", key) => key.to_owned(),
            (path, key) => format!("{path}.{key}"),
        }
    }
}
