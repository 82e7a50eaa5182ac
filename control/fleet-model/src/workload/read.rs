//! Recorded traces, by the form of the file.

use super::{Replay, Workload, azure, mooncake};
use std::path::Path;

/// Reason why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("trace {path:?}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// A line is malformed.
    #[error("trace {path:?}: line {line}: {fault}")]
    Malformed {
        /// The file.
        path: String,
        /// The number of the line, from 1.
        line: usize,
        /// The fault of the line.
        fault: String,
    },
    /// The trace has no request.
    #[error("trace {path:?}: has no request")]
    Empty {
        /// The file.
        path: String,
    },
}

/// Reads a trace: CSV with Azure's header, or else Mooncake's JSON lines.
///
/// # Errors
///
/// The number of the line that cannot be read, and why.
pub(crate) fn parse(
    text: &str,
    block_size: u32,
    play: Replay,
) -> Result<Workload, (usize, String)> {
    match azure::is_azure(text) {
        true => azure::read(text, block_size, play),
        false => mooncake::read(text, block_size, play),
    }
}

impl Workload {
    /// Reads a trace: CSV with Azure's header, or else Mooncake's JSON lines.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] names the file, and the line if one cannot be read.
    pub fn read(path: &Path, block_size: u32, play: Replay) -> Result<Self, WorkloadError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| WorkloadError::Unreadable { path: name.clone(), error })?;
        let malformed = |(line, fault)| {
            let path = name.clone();
            WorkloadError::Malformed { path, line, fault }
        };
        let read = parse(&text, block_size, play).map_err(malformed)?;
        if read.requests.is_empty() { Err(WorkloadError::Empty { path: name }) } else { Ok(read) }
    }
}
