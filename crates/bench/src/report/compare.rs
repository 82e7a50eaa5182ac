//! `stator bench compare`: measurements side by side.

use std::fs;

use anyhow::{Context, Result};

use crate::args::CompareArgs;

use super::number::count_or_short;
use super::{Report, json};

/// Prints the comparison and writes it as Markdown where asked for.
///
/// # Errors
///
/// When a report cannot be read, or the Markdown cannot be written.
pub fn run(args: &CompareArgs) -> Result<()> {
    let reports =
        args.reports.iter().map(|path| json::read(path)).collect::<Result<Vec<Report>>>()?;
    let table = Table::new(&reports);
    print!("{}", table.text());
    if let Some(path) = &args.markdown {
        fs::write(path, table.markdown())
            .with_context(|| format!("markdown: {}", path.display()))?;
    }
    Ok(())
}

/// A row of the comparison: its name, and its value in a report that has one.
type Figure = (&'static str, fn(&Report) -> Option<f64>);

/// Figures that are compared, in this order.
const FIGURES: [Figure; 24] = [
    ("requests succeeded", |report| Some(report.requests.succeeded as f64)),
    ("requests failed", |report| Some(report.requests.failed as f64)),
    ("requests/s", |report| Some(report.throughput.requests_per_s)),
    ("output tokens/s", |report| Some(report.throughput.output_tokens_per_s)),
    ("goodput, requests/s", |report| Some(report.goodput.as_ref()?.requests_per_s)),
    ("cached tokens, %", |report| report.tokens.cached_share.map(|share| share * 100.0)),
    ("TTFT mean, ms", |report| measured(report.latency.ttft.count, report.latency.ttft.mean_ms)),
    ("TTFT p50, ms", |report| measured(report.latency.ttft.count, report.latency.ttft.p50_ms)),
    ("TTFT p90, ms", |report| measured(report.latency.ttft.count, report.latency.ttft.p90_ms)),
    ("TTFT p95, ms", |report| measured(report.latency.ttft.count, report.latency.ttft.p95_ms)),
    ("TTFT p99, ms", |report| measured(report.latency.ttft.count, report.latency.ttft.p99_ms)),
    ("ITL mean, ms", |report| measured(report.latency.itl.count, report.latency.itl.mean_ms)),
    ("ITL p50, ms", |report| measured(report.latency.itl.count, report.latency.itl.p50_ms)),
    ("ITL p99, ms", |report| measured(report.latency.itl.count, report.latency.itl.p99_ms)),
    ("end to end mean, ms", |report| {
        measured(report.latency.e2e.count, report.latency.e2e.mean_ms)
    }),
    ("end to end p50, ms", |report| measured(report.latency.e2e.count, report.latency.e2e.p50_ms)),
    ("end to end p99, ms", |report| measured(report.latency.e2e.count, report.latency.e2e.p99_ms)),
    ("send lag p99, ms", |report| {
        measured(u64::from(report.open_loop), report.latency.send_lag.p99_ms)
    }),
    ("CPU, µs/request", |report| total(report, |process| process.cpu_us_per_request)),
    ("CPU, µs/output token", |report| total(report, |process| process.cpu_us_per_output_token)),
    ("RSS after, MB", |report| {
        total(report, |process| Some(process.cost.rss_after_bytes? as f64 / 1e6))
    }),
    ("RSS peak, MB", |report| {
        total(report, |process| Some(process.cost.rss_peak_bytes? as f64 / 1e6))
    }),
    ("client CPU, ms", |report| Some(report.machine?.client_cpu_ms)),
    ("other work, % of CPUs", |report| Some(report.machine?.other_share * 100.0)),
];

fn measured(count: u64, value: f64) -> Option<f64> {
    (count > 0).then_some(value)
}

/// The sum over the measured processes, where there are any and all have the figure.
fn total(report: &Report, figure: impl Fn(&super::Process) -> Option<f64>) -> Option<f64> {
    let figures = report.processes.iter().map(figure).collect::<Option<Vec<f64>>>()?;
    (!figures.is_empty()).then(|| figures.iter().sum())
}

/// A comparison: a column for each label, a row for each figure that a report has.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(reports: &[Report]) -> Self {
        let groups = group(reports);
        let title = |(label, runs): &(&str, Vec<&Report>)| match runs.len() {
            1 => (*label).to_owned(),
            n => format!("{label} (median of {n})"),
        };
        let head = std::iter::once(String::new()).chain(groups.iter().map(title)).collect();
        let row = |(name, figure): &Figure| {
            let values: Vec<Vec<f64>> =
                groups.iter().map(|(_, runs)| sorted(runs, *figure)).collect();
            let base = values.first().and_then(|values| median(values));
            let cells = values
                .iter()
                .enumerate()
                .map(|(column, values)| cell(values, base.filter(|_| column > 0)));
            let known = values.iter().any(|values| !values.is_empty());
            known.then(|| std::iter::once((*name).to_owned()).chain(cells).collect())
        };
        Self { head, rows: FIGURES.iter().filter_map(row).collect() }
    }

    fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.head.len()).map(|column| self.width(column)).collect();
        let line = |cells: &Vec<String>| {
            let cells =
                cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                });
            cells.collect::<String>() + "\n"
        };
        std::iter::once(&self.head).chain(&self.rows).map(line).collect()
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|---|{}\n", "---:|".repeat(self.head.len() - 1));
        line(&self.head) + &rule + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }

    fn width(&self, column: usize) -> usize {
        let cells =
            std::iter::once(&self.head).chain(&self.rows).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    }
}

/// Reports of equal label together, in the order in which labels come first.
fn group(reports: &[Report]) -> Vec<(&str, Vec<&Report>)> {
    let mut groups: Vec<(&str, Vec<&Report>)> = Vec::new();
    for report in reports {
        match groups.iter_mut().find(|(label, _)| *label == report.label) {
            Some((_, runs)) => runs.push(report),
            None => groups.push((&report.label, vec![report])),
        }
    }
    groups
}

fn sorted(runs: &[&Report], figure: fn(&Report) -> Option<f64>) -> Vec<f64> {
    let mut values: Vec<f64> = runs.iter().filter_map(|report| figure(report)).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

/// The median, the range of repetitions, and the change against `base`.
fn cell(sorted: &[f64], base: Option<f64>) -> String {
    let Some(middle) = median(sorted) else {
        return "-".to_owned();
    };
    let mut text = count_or_short(middle);
    if let [first, .., last] = sorted {
        text += &format!(" ({}–{})", count_or_short(*first), count_or_short(*last));
    }
    if let Some(base) = base.filter(|base| *base != 0.0) {
        text += &format!(" {:+.0} %", (middle / base - 1.0) * 100.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    fn table() -> Table {
        let reports = [("rr", 2.0), ("kv", 0.5), ("rr", 1.0), ("kv", 1.0), ("rr", 3.0)];
        Table::new(&reports.map(|(label, factor)| sample(label, 20, factor)))
    }

    #[test]
    fn repetitions_become_a_median_and_a_range() {
        let table = table();
        assert_eq!(table.head, ["", "rr (median of 3)", "kv (median of 2)"]);
        let ttft = table.rows.iter().find(|row| row[0] == "TTFT p50, ms").unwrap();
        assert_eq!(ttft[1..], ["21.8 (10.9–32.7)", "8.18 (5.46–10.9) -63 %"]);
    }

    #[test]
    fn markdown_has_the_same_cells() {
        let markdown = table().markdown();
        assert!(
            markdown.starts_with("|  | rr (median of 3) | kv (median of 2) |\n|---|---:|---:|\n"),
            "{markdown}"
        );
        assert!(
            markdown.contains("| cached tokens, % | 60 (60–60) | 60 (60–60) +0 % |\n"),
            "{markdown}"
        );
    }

    #[test]
    fn columns_line_up() {
        let text = table().text();
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }

    #[test]
    fn files_are_read_and_markdown_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("a.json");
        json::write(&report, &sample("a", 3, 1.0)).unwrap();
        let markdown = folder.path().join("t.md");
        run(&CompareArgs { reports: vec![report], markdown: Some(markdown.clone()) }).unwrap();
        assert!(fs::read_to_string(markdown).unwrap().contains("| requests succeeded | 3 |"));
        let missing = vec![folder.path().join("none.json")];
        assert!(run(&CompareArgs { reports: missing, markdown: None }).is_err());
    }
}
