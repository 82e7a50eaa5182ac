//! Reports as JSON: everything that was measured, for scripts and for `stator bench compare`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{FORMAT, Report};

/// Writes a report.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(report).context("json")?;
    text.push(b'\n');
    fs::write(path, text).with_context(|| format!("json: {}", path.display()))
}

/// Reads a report that [`write()`] wrote.
///
/// # Errors
///
/// When the file cannot be read, or is no report of this format.
pub fn read(path: &Path) -> Result<Report> {
    let name = path.display();
    let text = fs::read(path).with_context(|| format!("report {name}"))?;
    let report: Report = serde_json::from_slice(&text).with_context(|| format!("report {name}"))?;
    ensure!(report.format == FORMAT, "report {name}: format {} is not {FORMAT}", report.format);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let report = sample("a", 50, 1.0);
        write(&path, &report).unwrap();
        let again = read(&path).unwrap();
        let (found, written) = (again.latency.ttft, report.latency.ttft);
        assert!(found.count == written.count && (found.p99_ms - written.p99_ms).abs() < 1e-9);
        assert_eq!(again.requests, report.requests);
        assert_eq!(again.processes, report.processes);
        assert_eq!(again.config["rate"], 5.0);
    }

    #[test]
    fn another_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        write(&path, &Report { format: 9, ..sample("a", 1, 1.0) }).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("format 9 is not 1"));
        assert!(read(&folder.path().join("none.json")).is_err());
    }
}
