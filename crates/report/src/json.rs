//! Reports as files.

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

/// Writes a report as JSON. Equal reports give equal bytes.
///
/// # Errors
///
/// When the file cannot be written; the message names it.
pub fn write_json(path: &Path, report: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(report).context("json")?;
    text.push('\n');
    write_text(path, &text)
}

/// Writes a report that is text: a page, or a table in Markdown.
///
/// # Errors
///
/// When the file cannot be written; the message names it.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("report {}", path.display()))
}

/// Reads a report that [`write_json`] wrote.
///
/// # Errors
///
/// When the file cannot be read, or holds something else; the message names it.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let name = || format!("report {}", path.display());
    let text = fs::read(path).with_context(name)?;
    serde_json::from_slice(&text).with_context(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written_and_a_fault_names_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.json");
        write_json(&path, &vec![1, 2]).expect("the folder is there");
        assert_eq!(read_json::<Vec<u32>>(&path).expect("it was written"), [1, 2]);
        let error = read_json::<bool>(&path).expect_err("it is a list");
        assert!(error.to_string().contains("report.json"), "{error}");
        assert!(write_text(&folder.path().join("a/b"), "").is_err());
    }
}
