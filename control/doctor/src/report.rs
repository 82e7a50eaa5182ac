//! The findings, as people and as programs read them.

use crate::args::Patient;
use crate::finding::{Finding, Severity};
use serde::Serialize;
use std::fmt::Write;

/// All findings about one patient.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// `laptop`, `node` or `cluster`.
    pub patient: &'static str,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// Findings that are wrong.
    pub wrong: usize,
    /// Findings that warn.
    pub warnings: usize,
}

impl DoctorReport {
    pub(crate) fn new(patient: Patient, findings: Vec<Finding>) -> Self {
        let count = |severity| findings.iter().filter(|of| of.severity == severity).count();
        let (wrong, warnings) = (count(Severity::Wrong), count(Severity::Warning));
        Self { patient: patient.name(), findings, wrong, warnings }
    }

    /// One object, indented.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and numbers are JSON")
    }

    /// A line for each finding, with its advice below, and a line with the counts.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let mark = match finding.severity {
                Severity::Fine => "ok",
                Severity::Note => "note",
                Severity::Warning => "warning",
                Severity::Wrong => "WRONG",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{mark:8} {:10} {}", finding.area, finding.says);
            if !finding.advice.is_empty() {
                let _ = writeln!(text, "{:19} -> {}", "", finding.advice);
            }
        }
        let (findings, wrong, warnings) = (self.findings.len(), self.wrong, self.warnings);
        let counts = format!("{findings} findings, {wrong} wrong, {warnings} warnings");
        let _ = writeln!(text, "\n{}: {counts}", self.patient);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_advice_below_the_finding_and_counts_at_its_end() {
        let findings = vec![
            Finding::fine("gpu", "one"),
            Finding::wrong("ports", "port 8000 is taken", "free it"),
            Finding::warning("limits", "few files", "raise it"),
        ];
        let report = DoctorReport::new(Patient::Node, findings);
        let expected = "\
ok       gpu        one
WRONG    ports      port 8000 is taken
                    -> free it
warning  limits     few files
                    -> raise it

node: 3 findings, 1 wrong, 1 warnings
";
        assert_eq!(report.text(), expected);
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["findings"][1]["severity"], "wrong");
        assert_eq!([&json["wrong"], &json["warnings"]], [1, 1]);
    }
}
