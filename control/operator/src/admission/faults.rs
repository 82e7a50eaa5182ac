//! Faults of a document, collected so that its author gets all of them at once.

use serde_json::Value;
use std::fmt;

/// Fault of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldFault {
    /// Path of the field, for example `spec.components[Decode].replicas`.
    pub(crate) path: String,
    pub(crate) message: String,
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Document before and after a change.
#[derive(Clone, Copy)]
pub(super) struct DocumentChange<'a> {
    pub(super) new: &'a Value,
    /// The document before; `None` of one that is created.
    pub(super) old: Option<&'a Value>,
    /// Whether the change comes from somebody who may scale what an adapter scales.
    pub(super) is_by_scaler: bool,
}

/// Faults that were found so far.
#[derive(Debug, Default)]
pub(super) struct Faults(pub(super) Vec<FieldFault>);

impl Faults {
    pub(super) fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldFault { path: path.into(), message: message.into() });
    }

    /// Adds a fault unless the rule holds.
    pub(super) fn check(&mut self, holds: bool, path: impl Into<String>, message: &str) {
        if !holds {
            self.add(path, message);
        }
    }

    /// Adds a fault where a field that is to stay has changed.
    pub(super) fn check_same(&mut self, path: impl Into<String>, old: &Value, new: &Value) {
        self.check(old == new, path, "is immutable");
    }
}
