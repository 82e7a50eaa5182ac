//! The edges: read facts, judge nothing.

pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod engine;
pub(crate) mod machine;
pub(crate) mod model;

use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest text that is read from one file, bytes.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Folder in which the system's files are looked for: `/`, or one of a test.
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn system() -> Self {
        Self("/".into())
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// A text file without the white space around it; `None` where it cannot be read.
    pub(crate) fn text(&self, file: &str) -> Option<String> {
        text(&self.path(file))
    }

    /// The names in a folder, sorted; none where it cannot be read.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

/// A text file without the white space around it; `None` where it cannot be read.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}
