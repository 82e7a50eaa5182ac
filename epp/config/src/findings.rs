//! Faults and warnings of a configuration, each with its place.

use std::cell::RefCell;
use std::fmt;

/// A fault or a warning about one place of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The place, such as `schedulingProfiles[0].plugins[2].pluginRef`; empty for the whole.
    pub path: String,
    /// Text of the fault or warning.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}", self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

/// A configuration that cannot be used; every fault that was found, in reading order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct InvalidConfig(pub Vec<Finding>);

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(Finding::to_string).collect::<Vec<_>>().join("\n")
}

/// Collects faults and warnings. Shared by everything that reads one configuration.
#[derive(Debug)]
pub(crate) struct Findings {
    lenient: bool,
    faults: RefCell<Vec<Finding>>,
    warnings: RefCell<Vec<Finding>>,
}

impl Findings {
    /// No findings yet. If `lenient`, unknown keys and names become warnings instead of faults.
    pub(crate) fn new(lenient: bool) -> Self {
        Self { lenient, faults: RefCell::default(), warnings: RefCell::default() }
    }

    /// Whether unknown keys and names are passed over.
    pub(crate) fn lenient(&self) -> bool {
        self.lenient
    }

    /// Notes a fault: a setting that cannot be used.
    pub(crate) fn fault(&self, path: impl Into<String>, message: impl Into<String>) {
        self.faults.borrow_mut().push(Finding { path: path.into(), message: message.into() });
    }

    /// Notes a warning for the operator.
    pub(crate) fn warn(&self, path: impl Into<String>, message: impl Into<String>) {
        self.warnings.borrow_mut().push(Finding { path: path.into(), message: message.into() });
    }

    /// Notes an unknown key or name: a fault, unless lenient.
    pub(crate) fn unknown(&self, path: impl Into<String>, message: impl Into<String>) {
        match self.lenient {
            true => self.warn(path, format!("ignored: {}", message.into())),
            false => self.fault(path, message),
        }
    }

    /// Number of faults.
    pub(crate) fn faults(&self) -> usize {
        self.faults.borrow().len()
    }

    /// Whether a fault was found at exactly this place.
    pub(crate) fn faulty(&self, path: &str) -> bool {
        self.faults.borrow().iter().any(|fault| fault.path == path)
    }

    /// The warnings, or the faults if there is one.
    pub(crate) fn finish(self) -> Result<Vec<Finding>, InvalidConfig> {
        match self.faults.into_inner() {
            faults if faults.is_empty() => Ok(self.warnings.into_inner()),
            faults => Err(InvalidConfig(faults)),
        }
    }
}
