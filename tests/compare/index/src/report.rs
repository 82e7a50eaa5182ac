//! Records as Markdown tables: medians, and ratios of paired trials.

use crate::record::Record;
use crate::stats::{Ratio, median, paired_ratio};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Ours, which the ratios are of.
const OURS: &str = "stator";
/// Indexes in the order of columns.
const INDEXES: [&str; 3] = [OURS, "crtc", "positional"];

/// Values of one row by index and repetition.
type Row = BTreeMap<String, BTreeMap<u32, f64>>;

/// All records as tables, one for each corpus.
pub fn tables(records: &[Record]) -> String {
    let mut out = String::new();
    let corpora: BTreeSet<&str> = records.iter().map(|record| record.corpus.as_str()).collect();
    for corpus in corpora {
        let records: Vec<&Record> = records.iter().filter(|r| r.corpus == corpus).collect();
        table(&mut out, corpus, &records);
    }
    out
}

fn table(out: &mut String, corpus: &str, records: &[&Record]) {
    let present = |index: &&&str| records.iter().any(|record| record.index == **index);
    let indexes: Vec<&str> = INDEXES.iter().filter(present).copied().collect();
    let peers = || indexes.iter().filter(|index| **index != OURS);
    _ = writeln!(out, "#### {corpus}\n");
    let ratios: String = peers().map(|peer| format!(" {OURS} / {peer} (95 %) |")).collect();
    _ = writeln!(out, "| | {} |{ratios}", indexes.join(" | "));
    _ = writeln!(out, "| --- |{}", " --- |".repeat(indexes.len() + peers().count()));
    for (name, row) in rows(records) {
        let cells: String = indexes.iter().map(|index| cell(row.get(*index))).collect();
        let ratios: String = peers().map(|peer| ratio_cell(&row, peer)).collect();
        _ = writeln!(out, "| {name} |{cells}{ratios}");
    }
    let others: Vec<f64> = records.iter().filter_map(|record| record.others_percent).collect();
    let repetitions: BTreeSet<u32> = records.iter().map(|record| record.repetition).collect();
    let most = others.iter().copied().fold(0.0, f64::max);
    _ = writeln!(
        out,
        "\nMedians of {} repetitions with least and most in brackets. Others took {:.0} % of the machine in the middle, {most:.0} % at most.\n",
        repetitions.len(),
        median(&others)
    );
}

/// Rows in the order in which measurements were first recorded, named with their rates.
fn rows(records: &[&Record]) -> Vec<(String, Row)> {
    let mut rows: Vec<(String, Row)> = Vec::new();
    for record in records {
        for (name, &value) in &record.values {
            let name = match record.rate {
                0.0 => name.clone(),
                rate => format!("{name}, at {} M/s", rate / 1e6),
            };
            let at = rows.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                rows.push((name, Row::new()));
                rows.len() - 1
            });
            let by_repetition = rows[at].1.entry(record.index.clone()).or_default();
            by_repetition.insert(record.repetition, value);
        }
    }
    rows
}

fn cell(values: Option<&BTreeMap<u32, f64>>) -> String {
    let Some(values) = values else { return " |".into() };
    let values: Vec<f64> = values.values().copied().collect();
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(l, m), &v| (l.min(v), m.max(v)));
    let middle = number(median(&values));
    if number(least) == number(most) {
        return format!(" {middle} |");
    }
    format!(" {middle} ({}–{}) |", number(least), number(most))
}

fn ratio_cell(row: &Row, peer: &str) -> String {
    let (Some(ours), Some(theirs)) = (row.get(OURS), row.get(peer)) else { return " |".into() };
    let pairs: Vec<(f64, f64)> =
        ours.iter().filter_map(|(n, &value)| Some((value, *theirs.get(n)?))).collect();
    let Some(Ratio { mean, low, high }) = paired_ratio(&pairs) else { return " |".into() };
    format!(" {} ({}–{}) |", number(mean), number(low), number(high))
}

/// A number with three figures that count.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        below if below < 1_000.0 => 2usize.saturating_sub(below.log10().floor().max(-3.0) as usize),
        _ => 0,
    };
    let small = if value.abs() < 1.0 && value != 0.0 { 3 } else { digits };
    format!("{value:.small$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: &str, repetition: u32, value: f64) -> Record {
        Record {
            index: index.into(),
            corpus: "deep".into(),
            measure: "closed".into(),
            rate: 0.0,
            repetition,
            values: BTreeMap::from([("ingest, M blocks/s".into(), value)]),
            others_percent: Some(3.0),
        }
    }

    #[test]
    fn a_row_has_medians_and_the_ratio_of_pairs() {
        let values = [("stator", 20.0), ("crtc", 5.0)];
        let records: Vec<Record> =
            (0..3).flat_map(|n| values.map(|(index, value)| record(index, n, value))).collect();
        let table = tables(&records);
        let row = "| ingest, M blocks/s | 20.0 | 5.00 | 4.00 (4.00–4.00) |";
        assert!(table.contains(row), "{table}");
    }

    #[test]
    fn what_an_index_lacks_stays_empty() {
        let mut other = record("crtc", 0, 1.0);
        other.values = BTreeMap::from([("other".into(), 1.0)]);
        let table = tables(&[record("stator", 0, 2.0), other]);
        assert!(table.contains("| other | | 1.00 | |"), "{table}");
    }

    #[test]
    fn numbers_keep_three_figures() {
        let expected = [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123")];
        for (value, text) in expected {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(12_345.6), "12346");
        assert_eq!(number(0.0), "0");
    }
}
