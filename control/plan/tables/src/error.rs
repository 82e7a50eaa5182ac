//! Faults of tables.

use std::fmt;
use std::path::{Path, PathBuf};

/// A folder or a file that cannot be used as tables. The text names the file, and the column and
/// the row if the fault has them; rows count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TableError {
    path: PathBuf,
    column: Option<&'static str>,
    row: Option<usize>,
    reason: String,
}

impl TableError {
    /// A fault of a whole file or folder.
    pub(crate) fn file(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.to_owned(), column: None, row: None, reason: reason.to_string() }
    }

    /// A fault of a column.
    pub(crate) fn column(path: &Path, column: &'static str, reason: impl ToString) -> Self {
        Self { column: Some(column), ..Self::file(path, reason) }
    }

    /// The fault in this row, which counts from 1.
    pub(crate) fn in_row(self, row: usize) -> Self {
        Self { row: Some(row), ..self }
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tables: {}", self.path.display())?;
        if let Some(column) = self.column {
            write!(f, ": column {column}")?;
        }
        if let Some(row) = self.row {
            write!(f, ", row {row}")?;
        }
        write!(f, ": {}", self.reason)
    }
}
