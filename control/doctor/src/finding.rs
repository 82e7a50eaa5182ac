//! Findings of the doctor.

use serde::Serialize;

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// All is well.
    Fine,
    /// Something to know: an optional part is missing, or could not be looked at.
    Note,
    /// stator runs, but slower or less safely than it could.
    Warning,
    /// stator, or a part that was asked for, does not run like this.
    Wrong,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject, a short word: `gpu`, `ports`.
    pub area: &'static str,
    /// Weight.
    pub severity: Severity,
    /// The observation, with values and limits.
    pub says: String,
    /// Steps that help; empty where nothing needs help.
    pub advice: String,
}

impl Finding {
    /// All is well.
    pub(crate) fn fine(area: &'static str, says: impl Into<String>) -> Self {
        Self { area, severity: Severity::Fine, says: says.into(), advice: String::new() }
    }

    /// Something to know.
    pub(crate) fn note(
        area: &'static str,
        says: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { area, severity: Severity::Note, says: says.into(), advice: advice.into() }
    }

    /// Something that could be better.
    pub(crate) fn warning(
        area: &'static str,
        says: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { area, severity: Severity::Warning, says: says.into(), advice: advice.into() }
    }

    /// Something that does not work.
    pub(crate) fn wrong(
        area: &'static str,
        says: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { area, severity: Severity::Wrong, says: says.into(), advice: advice.into() }
    }
}

/// Numbers of bytes as people read them: `8.0 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    match bytes >> 30 {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{gib:.1} GiB"),
    }
}
