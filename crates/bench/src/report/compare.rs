//! `stator bench compare`: measurements side by side.

use anyhow::Result;
use stator_report::number::count_or_short;
use stator_report::{TextTable, write_text};

use crate::args::CompareArgs;

use super::{Report, json};

/// Prints the comparison and writes it as Markdown where asked for.
///
/// # Errors
///
/// When a report cannot be read, or the Markdown cannot be written.
pub fn run(args: &CompareArgs) -> Result<()> {
    let reports =
        args.reports.iter().map(|path| json::read(path)).collect::<Result<Vec<Report>>>()?;
    let table = table(&reports);
    print!("{}", table.text());
    if let Some(path) = &args.markdown {
        write_text(path, &table.markdown())?;
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
fn table(reports: &[Report]) -> TextTable {
    let groups = group(reports);
    let title = |(label, runs): &(&str, Vec<&Report>)| match runs.len() {
        1 => (*label).to_owned(),
        n => format!("{label} (median of {n})"),
    };
    let mut table = TextTable::new(std::iter::once(String::new()).chain(groups.iter().map(title)));
    for (name, figure) in FIGURES {
        let values: Vec<_> = groups.iter().map(|(_, runs)| sorted(runs, figure)).collect();
        let base = values.first().and_then(|values| median(values));
        if values.iter().any(|values| !values.is_empty()) {
            let of =
                |(column, values): (usize, &Vec<f64>)| cell(values, base.filter(|_| column > 0));
            table.row(name, values.iter().enumerate().map(of));
        }
    }
    table
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
    use std::fs;

    use super::super::tests::sample;
    use super::*;

    fn sample_table() -> TextTable {
        let reports = [("rr", 2.0), ("kv", 0.5), ("rr", 1.0), ("kv", 1.0), ("rr", 3.0)];
        table(&reports.map(|(label, factor)| sample(label, 20, factor)))
    }

    #[test]
    fn repetitions_become_a_median_and_a_range() {
        let table = sample_table();
        assert_eq!(table.head, ["", "rr (median of 3)", "kv (median of 2)"]);
        let ttft = table.rows.iter().find(|row| row[0] == "TTFT p50, ms").unwrap();
        assert_eq!(ttft[1..], ["21.8 (10.9–32.7)", "8.18 (5.46–10.9) -63 %"]);
    }

    #[test]
    fn markdown_has_the_same_cells() {
        let markdown = sample_table().markdown();
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
    fn files_are_read_and_markdown_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("a.json");
        stator_report::write_json(&report, &sample("a", 3, 1.0)).unwrap();
        let markdown = folder.path().join("t.md");
        run(&CompareArgs { reports: vec![report], markdown: Some(markdown.clone()) }).unwrap();
        assert!(fs::read_to_string(markdown).unwrap().contains("| requests succeeded | 3 |"));
        let missing = vec![folder.path().join("none.json")];
        assert!(run(&CompareArgs { reports: missing, markdown: None }).is_err());
    }
}
