//! One trial as one line of a file.

use crate::measure::Values;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::Path;

/// What one process measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Record {
    /// Name of the index.
    pub index: String,
    /// Name of the corpus's file, without folder and extension.
    pub corpus: String,
    /// Name of the measurement.
    pub measure: String,
    /// Rate of the measurement per second, 0 where it has none.
    pub rate: f64,
    /// Which repetition; trials of one repetition are compared with each other.
    pub repetition: u32,
    /// What came out.
    pub values: Values,
    /// Per cent of the machine that others took meanwhile, where the system tells.
    pub others_percent: Option<f64>,
}

impl Record {
    /// Adds the record to a file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append(&self, path: &Path) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.with_context(|| format!("{}", path.display()))?;
        Ok(file.write_all(line.as_bytes())?)
    }
}

/// Reads a file of records.
///
/// # Errors
///
/// The file cannot be read or holds something else.
pub fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let records = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    records.collect()
}
