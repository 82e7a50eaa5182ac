//! Decoding that goes on after a fault: a mapping's fields are taken one by one, each fault is
//! noted with its path, and what nobody asked for is unknown.

use crate::document::Reference;
use crate::findings::Findings;
use crate::suggest::did_you_mean;
use crate::tree::{Tree, child};
use crate::units::{parse_duration, parse_quantity};
use std::cell::RefCell;
use std::time::Duration;

/// Most items of a list: more would be a mistake, and slow to tell of.
const LIST_MAX: usize = 1_000;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) path: String,
    pub(crate) value: T,
}

/// A mapping that is being read. A key with nothing behind it counts as absent; of a key that is
/// there twice the first is read.
pub(crate) struct MappingFields<'t> {
    path: String,
    entries: &'t [(String, Tree)],
    findings: &'t Findings,
    asked: RefCell<Vec<&'static str>>,
}

impl<'t> MappingFields<'t> {
    /// Opens the mapping; notes a fault if it is none.
    pub(crate) fn open(at: At<&'t Tree>, findings: &'t Findings) -> Option<Self> {
        match at.value {
            Tree::Map(entries) => {
                Some(Self { path: at.path, entries, findings, asked: RefCell::default() })
            }
            other => {
                findings.fault(at.path, format!("expected a mapping, got {}", other.kind()));
                None
            }
        }
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        child(&self.path, name)
    }

    /// The value of a field, of any kind.
    pub(crate) fn tree(&self, name: &'static str) -> Option<At<&'t Tree>> {
        self.asked.borrow_mut().push(name);
        let (_, value) = self.entries.iter().find(|(key, _)| key == name)?;
        (*value != Tree::Null).then(|| At { path: self.path(name), value })
    }

    /// A mapping inside this one.
    pub(crate) fn fields(&self, name: &'static str) -> Option<Self> {
        Self::open(self.tree(name)?, self.findings)
    }

    /// The items of a list, up to [`LIST_MAX`].
    pub(crate) fn list(&self, name: &'static str) -> Vec<At<&'t Tree>> {
        let items = self.take(name, "a list", |tree| match tree {
            Tree::List(items) => Some(Ok(items)),
            _ => None,
        });
        let Some(At { path, value }) = items else { return Vec::new() };
        if value.len() > LIST_MAX {
            let message = format!("has {} items, more than {LIST_MAX}", value.len());
            self.findings.fault(&path, message);
        }
        let items = value.iter().take(LIST_MAX).enumerate();
        items.map(|(n, value)| At { path: format!("{path}[{n}]"), value }).collect()
    }

    /// A text that is not empty; an empty one counts as absent.
    pub(crate) fn text(&self, name: &'static str) -> Option<At<String>> {
        let text = self.take(name, "a text", |tree| match tree {
            Tree::Text(text) => Some(Ok(text.clone())),
            _ => None,
        });
        text.filter(|text| !text.value.is_empty())
    }

    /// A text that has to be there.
    pub(crate) fn required(&self, name: &'static str) -> Option<At<String>> {
        let before = self.findings.faults();
        let text = self.text(name);
        if text.is_none() && self.findings.faults() == before {
            self.findings.fault(self.path(name), "is missing");
        }
        text
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, name: &'static str) -> Option<bool> {
        let boolean = self.take(name, "true or false", |tree| match tree {
            Tree::Bool(value) => Some(Ok(*value)),
            _ => None,
        });
        boolean.map(|at| at.value)
    }

    /// A number.
    pub(crate) fn number(&self, name: &'static str) -> Option<At<f64>> {
        self.take(name, "a number", |tree| match tree {
            Tree::Number(value) => value.as_f64().map(Ok),
            _ => None,
        })
    }

    /// A whole number.
    pub(crate) fn integer(&self, name: &'static str) -> Option<At<i32>> {
        self.take(name, "a whole number", |tree| match tree {
            Tree::Number(value) if !value.is_f64() => {
                Some(match value.as_i64().map(i32::try_from) {
                    Some(Ok(value)) => Ok(value),
                    _ => Err(format!("{value} is not in {}..={}", i32::MIN, i32::MAX)),
                })
            }
            _ => None,
        })
    }

    /// A quantity such as `10Gi`, or a number.
    pub(crate) fn quantity(&self, name: &'static str) -> Option<u64> {
        let quantity = self.take(name, "a quantity", |tree| match tree {
            Tree::Text(text) => Some(parse_quantity(text)),
            Tree::Number(number) => Some(parse_quantity(&number.to_string())),
            _ => None,
        });
        quantity.map(|at| at.value)
    }

    /// A duration such as `60s`.
    pub(crate) fn duration(&self, name: &'static str) -> Option<Duration> {
        let duration = self.take(name, "a duration", |tree| match tree {
            Tree::Text(text) => Some(parse_duration(text)),
            _ => None,
        });
        duration.map(|at| at.value)
    }

    /// Notes the fields that nobody asked for.
    pub(crate) fn close(self) {
        let asked = self.asked.into_inner();
        for (key, _) in self.entries {
            if !asked.contains(&key.as_str()) {
                let suggestion = did_you_mean(key, asked.iter().copied());
                let message = format!("there is no such field{suggestion}");
                self.findings.unknown(child(&self.path, key), message);
            }
        }
    }

    /// A field as `read` reads it: `None` is another kind of value, `Err` one out of range.
    fn take<T>(
        &self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&'t Tree) -> Option<Result<T, String>>,
    ) -> Option<At<T>> {
        let At { path, value: tree } = self.tree(name)?;
        match read(tree) {
            Some(Ok(value)) => Some(At { path, value }),
            Some(Err(message)) => {
                self.findings.fault(path, message);
                None
            }
            None => {
                self.findings.fault(path, format!("expected {expected}, got {}", tree.kind()));
                None
            }
        }
    }
}

/// A text as a reference.
pub(crate) fn refer(At { path, value: name }: At<String>) -> Reference {
    Reference { path, name, why: None }
}
