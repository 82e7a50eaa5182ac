//! A strict reader for one series of a page.

use std::fmt::Write;

/// A series and its value. Its timestamp is dropped, for the page is republished later.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    /// Names and values of labels; values keep their escapes.
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

impl<'a> Sample<'a> {
    /// Reads `name{labels} value [timestamp] [# exemplar]`; `None` for anything else.
    pub(super) fn read(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' ', '\t'])?;
        let (name, rest) = line.split_at(end);
        if !is_name(name) {
            return None;
        }
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inner) => labels(inner)?,
            None => (Vec::new(), rest),
        };
        let value = rest.strip_prefix([' ', '\t'])?.split_ascii_whitespace().next()?;
        Some(Self { name, labels, value: value.parse().ok()? })
    }

    /// The series with one more label, up to its value; `None` where two labels have the same name.
    pub(super) fn key(&self, (name, value): (&str, &str)) -> Option<String> {
        let mut key = format!("{}{{{name}=\"{value}\"", self.name);
        let exported = format!("exported_{name}");
        let mut names = vec![name];
        for (label, value) in &self.labels {
            let label = if *label == name { exported.as_str() } else { label };
            if names.contains(&label) {
                return None;
            }
            names.push(label);
            // Writing to a string cannot fail.
            let _ = write!(key, ",{label}=\"{value}\"");
        }
        key.push('}');
        Some(key)
    }

    /// The value as OpenMetrics writes it.
    pub(super) fn value(&self) -> String {
        match self.value {
            value if value.is_nan() => "NaN".into(),
            f64::INFINITY => "+Inf".into(),
            f64::NEG_INFINITY => "-Inf".into(),
            value => format!("{value:?}"),
        }
    }
}

/// Whether a metric can have this name: `[a-zA-Z_:][a-zA-Z0-9_:]*`.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    name.bytes().all(plain) && name.starts_with(|c: char| !c.is_ascii_digit())
}

/// Reads the labels behind an opening brace; also returns the text behind the closing one.
fn labels(mut rest: &str) -> Option<(Vec<(&str, &str)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        if !labels.is_empty() {
            rest = rest.strip_prefix(',')?.trim_ascii_start();
            // The last one may have a comma too.
            if let Some(after) = rest.strip_prefix('}') {
                return Some((labels, after));
            }
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_ascii();
        if !is_name(name) || name.contains(':') {
            return None;
        }
        let value = after.trim_ascii_start().strip_prefix('"')?;
        let end = quoted(value)?;
        labels.push((name, &value[..end]));
        rest = &value[end + 1..];
    }
}

/// Length of the quoted text at the start of `text`, whose opening quote comes before; `None`
/// without an end, or with an unknown escape.
fn quoted(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at),
            b'\\' => {
                bytes.next().filter(|(_, byte)| matches!(byte, b'n' | b'"' | b'\\'))?;
            }
            byte if byte.is_ascii_control() => return None,
            _ => {}
        }
    }
    None
}
