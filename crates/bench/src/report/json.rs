//! Reports as JSON: everything that was measured, for scripts and for `stator bench compare`.

use std::path::Path;

use anyhow::{Result, ensure};
use stator_report::read_json;

use super::{FORMAT, Report};

/// Reads a report that `stator bench` wrote.
///
/// # Errors
///
/// When the file cannot be read, or is no report of this format.
pub fn read(path: &Path) -> Result<Report> {
    let report: Report = read_json(path)?;
    let (name, format) = (path.display(), report.format);
    ensure!(format == FORMAT, "report {name}: format {format} is not {FORMAT}");
    Ok(report)
}

#[cfg(test)]
mod tests {
    use stator_report::write_json;

    use super::super::tests::sample;
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let report = sample("a", 50, 1.0);
        write_json(&path, &report).unwrap();
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
        write_json(&path, &Report { format: 9, ..sample("a", 1, 1.0) }).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("format 9 is not 1"));
        assert!(read(&folder.path().join("none.json")).is_err());
    }
}
