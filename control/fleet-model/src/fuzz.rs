//! Recorded traces, for fuzz targets.

use crate::workload;

/// Most requests that are read of a trace.
pub const REQUESTS_MAX: u32 = 1000;

/// Reads a trace; gives the number of its requests.
///
/// # Errors
///
/// The line that cannot be read, and why.
pub fn trace(text: &str) -> Result<usize, (usize, String)> {
    workload::parse(text, 16, workload::Replay { speed: 1.0, repeat: 1, limit: REQUESTS_MAX })
        .map(|workload| workload.requests.len())
}
