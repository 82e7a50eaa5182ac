//! From what is counted to what is read: rows of one metric, and of its deprecated twin.

use crate::family::Child;
use crate::histogram::Reading;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::{self, Write};
use std::sync::Arc;

/// A metric's name and meaning.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Its name; that of a counter without `_total`, which the format adds.
    pub name: &'static str,
    /// Stability of the metric, with a space behind; empty for our own.
    pub stage: &'static str,
    /// Meaning of the metric.
    pub help: &'static str,
    /// The name and labels that it had before.
    pub twin: Option<Twin>,
}

/// A deprecated name of a metric. Its rows are sums over all labels that it lacks.
#[derive(Debug)]
pub(crate) struct Twin {
    /// Its name, a counter's without `_total`.
    pub name: &'static str,
    /// The labels it keeps, each with the name it has there.
    pub labels: &'static [(&'static str, &'static str)],
}

/// Names and values of labels.
pub(crate) type SeriesLabels<'a> = Vec<(&'static str, &'a str)>;

/// One series.
pub(crate) type Row<'a> = (SeriesLabels<'a>, SeriesValue);

/// A series' present value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SeriesValue {
    Counter(u64),
    Gauge(f64),
    Histogram(Reading),
}

impl SeriesValue {
    /// A counter; `None` before it counted, as if nobody had ever named it.
    pub(crate) fn count(count: u64) -> Option<Self> {
        (count > 0).then_some(Self::Counter(count))
    }

    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Counter(sum), Self::Counter(more)) => *sum += more,
            (Self::Gauge(sum), Self::Gauge(more)) => *sum += more,
            (Self::Histogram(sum), Self::Histogram(more)) => sum.add(more),
            _ => debug_assert!(false, "the rows of a metric are of one type"),
        }
    }

    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(count) => encoder.encode_counter::<NoLabelSet, u64, f64>(count, None),
            Self::Gauge(level) => encoder.encode_gauge(level),
            Self::Histogram(Reading { buckets, sum }) => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

/// The rows of a family: one per metric for which `value` gives a value.
pub(crate) fn rows<'a, const N: usize, M>(
    children: &'a [Arc<Child<N, M>>],
    names: &[&'static str; N],
    value: impl Fn(&'a Child<N, M>) -> Option<SeriesValue>,
) -> Vec<Row<'a>> {
    let row = |child: &'a Arc<Child<N, M>>| {
        let labels = names.iter().zip(&child.labels).map(|(name, label)| (*name, &**label));
        value(child).map(|value| (labels.collect(), value))
    };
    children.iter().filter_map(row).collect()
}

/// The rows of a family, as [`rows`] makes them, with one label more.
pub(crate) fn labelled<'a, const N: usize, M>(
    children: &'a [Arc<Child<N, M>>],
    names: &[&'static str; N],
    label: (&'static str, &'static str),
    value: impl Fn(&'a Child<N, M>) -> Option<SeriesValue>,
) -> Vec<Row<'a>> {
    let mut rows = rows(children, names, value);
    rows.iter_mut().for_each(|(labels, _)| labels.push(label));
    rows
}

/// The one row of a metric without labels.
pub(crate) fn single(value: Option<SeriesValue>) -> Vec<Row<'static>> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

/// Writes a metric and its twin. A metric without rows is left out.
pub(crate) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric,
    rows: &[Row<'_>],
) -> fmt::Result {
    let Some((_, first)) = rows.first() else { return Ok(()) };
    let Metric { name, stage, help, twin } = metric;
    write_one(encoder, name, &format!("{stage}{help}"), rows)?;
    let Some(twin) = twin else { return Ok(()) };
    let mut twin_help = format!("{stage}[Deprecated: Use {name}");
    if matches!(first, SeriesValue::Counter(_)) {
        twin_help.push_str("_total");
    }
    write!(twin_help, "] {help}")?;
    write_one(encoder, twin.name, &twin_help, &summed(rows, twin.labels))
}

fn write_one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: &[Row<'_>],
) -> fmt::Result {
    let Some((_, first)) = rows.first() else { return Ok(()) };
    let mut family = encoder.encode_descriptor(name, help, None, first.kind())?;
    for (labels, value) in rows {
        // A family without labels would be written with empty braces.
        if labels.is_empty() {
            return value.encode(family);
        }
        value.encode(family.encode_family(&labels.as_slice())?)?;
    }
    Ok(())
}

/// The rows by some of their labels, renamed; rows that differ in others only become their sum.
fn summed<'a>(rows: &[Row<'a>], keep: &'static [(&'static str, &'static str)]) -> Vec<Row<'a>> {
    merged(rows.iter().map(|(labels, value)| {
        let kept = keep.iter().filter_map(|(name, twin_name)| {
            let (_, label) = labels.iter().find(|(known, _)| known == name)?;
            Some((*twin_name, *label))
        });
        (kept.collect(), value.clone())
    }))
}

/// The rows in order of their labels, those of equal labels as one.
pub(crate) fn merged<'a>(rows: impl IntoIterator<Item = Row<'a>>) -> Vec<Row<'a>> {
    let mut sums = BTreeMap::<SeriesLabels<'a>, SeriesValue>::new();
    for (labels, value) in rows {
        match sums.entry(labels) {
            Entry::Occupied(mut sum) => sum.get_mut().add(&value),
            Entry::Vacant(sum) => {
                sum.insert(value);
            }
        }
    }
    sums.into_iter().collect()
}
