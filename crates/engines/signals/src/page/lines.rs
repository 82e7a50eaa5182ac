//! Search for the few lines of a metrics page that matter, without reading the others.
//!
//! Source: the Prometheus text format 0.0.4 and OpenMetrics 1.0; in both the series of one metric
//! stand together.

use super::spec::Spec;
use std::borrow::Cow;

/// Distance before a metric's last position at which the search restarts: labels and values before
/// it may have become shorter.
const DRIFT_BYTES: usize = 512;

/// One series: the text between its braces, and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Series<'a> {
    pub(crate) labels: Labels<'a>,
    pub(crate) value: f64,
}

/// Position of a metric on the last page; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hint(usize);

/// Calls `each` for every series of the page that `spec` selects. Unreadable lines are skipped.
pub(super) fn each_series<'a>(
    page: &'a [u8],
    spec: &Spec,
    hint: &mut Hint,
    mut each: impl FnMut(Series<'a>),
) {
    let Some(start) = find(page, spec, *hint) else { return };
    *hint = Hint(start);
    let mut rest = &page[start..];
    while let Some(after) = named(rest, spec) {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = &rest[rest.len() - after.len()..end];
        if let Some(series) = series(line).filter(|series| fits(series, spec)) {
            each(series);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
}

/// Every line of the page that may be a series: its metric's name, and the rest for [`series`] to
/// read.
pub(crate) fn all_lines(page: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = page.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#"));
    lines.filter_map(|line| {
        let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'))?;
        Some(line.split_at(end))
    })
}

/// The text behind the metric's name, if the line is one of its series.
fn named<'a>(line: &'a [u8], spec: &Spec) -> Option<&'a [u8]> {
    let after = line.strip_prefix(spec.name_bytes())?;
    matches!(after.first(), Some(b'{' | b' ' | b'\t')).then_some(after)
}

/// Position of the metric's first series.
fn find(page: &[u8], spec: &Spec, hint: Hint) -> Option<usize> {
    if starts_at(page, spec, hint.0) {
        return Some(hint.0);
    }
    let from = hint.0.saturating_sub(DRIFT_BYTES);
    if from > 0 && from < page.len() {
        let near = find_from(page, spec, from);
        // Where the line before is the metric's too, the search began in the middle of it.
        if let Some(start) = near.filter(|start| named(line_before(page, *start), spec).is_none()) {
            return Some(start);
        }
    }
    match named(page, spec) {
        Some(_) => Some(0),
        None => find_from(page, spec, 0),
    }
}

/// Whether the metric's first series starts at `at`.
fn starts_at(page: &[u8], spec: &Spec, at: usize) -> bool {
    let newline = at.checked_sub(1).and_then(|before| page.get(before));
    newline == Some(&b'\n')
        && named(&page[at..], spec).is_some()
        && named(line_before(page, at), spec).is_none()
}

fn find_from(page: &[u8], spec: &Spec, mut from: usize) -> Option<usize> {
    while let Some(found) = spec.line().find(&page[from..]) {
        let start = from + found + 1;
        if named(&page[start..], spec).is_some() {
            return Some(start);
        }
        // A longer name that begins alike.
        from = start;
    }
    None
}

/// The line that ends right before `start`.
fn line_before(page: &[u8], start: usize) -> &[u8] {
    let Some(end) = start.checked_sub(1) else { return b"" };
    let begin = memchr::memrchr(b'\n', &page[..end]).map_or(0, |newline| newline + 1);
    &page[begin..end]
}

/// Reads the text behind a name: `{labels} value [timestamp]` or ` value [timestamp]`.
pub(crate) fn series(line: &[u8]) -> Option<Series<'_>> {
    let (labels, rest) = match line.strip_prefix(b"{") {
        Some(inner) => {
            let end = labels_end(inner)?;
            (&inner[..end], &inner[end + 1..])
        }
        None => (&b""[..], line),
    };
    let value = rest.trim_ascii_start();
    let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
    let value = std::str::from_utf8(&value[..end]).ok()?.parse().ok()?;
    Some(Series { labels: Labels(labels), value })
}

/// Position of the closing brace: the first one outside quotes.
fn labels_end(inner: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'}', &inner[at..])?;
        if inner[at] == b'}' {
            return Some(at);
        }
        at += 1 + quote_end(&inner[at + 1..])? + 1;
    }
}

/// Length of the quoted text at the start of `text`, whose opening quote comes before.
fn quote_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

fn fits(series: &Series<'_>, spec: &Spec) -> bool {
    spec.labels().all(|(label, wanted)| {
        series.labels.get(label).map_or(wanted.is_empty(), |value| *unescape(value) == *wanted)
    })
}

/// The labels of a series, as raw text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Labels<'a>(&'a [u8]);

impl<'a> Labels<'a> {
    /// The raw value of a label, with its escapes.
    pub(crate) fn get(self, wanted: &[u8]) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            rest = rest.trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
            let equals = memchr::memchr(b'=', rest)?;
            let name = rest[..equals].trim_ascii();
            let value = rest[equals + 1..].trim_ascii_start().strip_prefix(b"\"")?;
            let end = quote_end(value)?;
            if name == wanted {
                return Some(&value[..end]);
            }
            rest = &value[end + 1..];
        }
    }
}

/// A label's value without its escapes.
pub(crate) fn unescape(value: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', value).is_none() {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(&byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => b'\n',
                Some(&other) => other,
                None => b'\\',
            },
            other => other,
        });
    }
    Cow::Owned(out)
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
