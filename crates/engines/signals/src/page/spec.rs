//! Selectors for series of a metrics page: `name{label=value,...}`.

use memchr::memmem::Finder;
use std::str::FromStr;

/// Longest specification, in bytes.
const SPEC_BYTES_MAX: usize = 1024;

/// A metric's name, and the label values that its series must have.
///
/// Quotes around values are optional. As in a Prometheus selector, a series that lacks a label
/// has it empty, so that `name{priority=}` means the series without a priority.
#[derive(Clone, Debug)]
pub struct Spec {
    name: Vec<u8>,
    labels: Vec<(Vec<u8>, Vec<u8>)>,
    /// Finds the name at the start of a line.
    line: Finder<'static>,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.labels) == (&other.name, &other.labels)
    }
}

/// Reason why a specification cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name is missing, or has characters that no name has.
    #[error("{spec:?} does not start with a metric's name")]
    Name {
        /// The specification.
        spec: String,
    },
    /// The labels are not `{label=value,...}`.
    #[error("{spec:?} does not end with {{label=value,...}}")]
    Labels {
        /// The specification.
        spec: String,
    },
    /// The text is longer than any metric's name and labels.
    #[error("a metric's specification has {size} bytes, limit {limit}")]
    TooLong {
        /// The length of the text.
        size: usize,
        /// The limit.
        limit: usize,
    },
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.len() > SPEC_BYTES_MAX {
            return Err(SpecError::TooLong { size: text.len(), limit: SPEC_BYTES_MAX });
        }
        let spec = text.trim();
        let (name, labels) = spec.split_at(spec.find('{').unwrap_or(spec.len()));
        let name = name.trim_end();
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b':';
        if name.is_empty() || name.as_bytes()[0].is_ascii_digit() || !name.bytes().all(fits) {
            return Err(SpecError::Name { spec: text.into() });
        }
        let labels = parse_labels(labels).ok_or_else(|| SpecError::Labels { spec: text.into() })?;
        let line = Finder::new(&format!("\n{name}")).into_owned();
        Ok(Self { name: name.as_bytes().to_vec(), labels, line })
    }
}

/// `{a=b,c="d"}` or nothing; `None` where it is neither.
fn parse_labels(text: &str) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let inner = text.strip_prefix('{')?.strip_suffix('}')?.trim();
    let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (label, value) = part.split_once('=')?;
            let (label, value) = (label.trim(), value.trim());
            let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let value = quoted.unwrap_or(value);
            let plain = !value.contains(['"', '{', '}', '\\']);
            let named =
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            (plain && named).then(|| (label.as_bytes().to_vec(), value.as_bytes().to_vec()))
        })
        .collect()
}

impl Spec {
    /// The metric's name.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.name).expect("a name is ASCII")
    }

    pub(super) fn name_bytes(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn line(&self) -> &Finder<'static> {
        &self.line
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.labels.iter().map(|(label, value)| (&label[..], &value[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, name: &str, labels: &[(&str, &str)]) {
        let spec: Spec = text.parse().expect("a specification");
        let found: Vec<_> = spec.labels().collect();
        let expected: Vec<_> =
            labels.iter().map(|(label, value)| (label.as_bytes(), value.as_bytes())).collect();
        assert_eq!((spec.name(), found), (name, expected));
    }

    #[test]
    fn names_and_labels_are_read() {
        check("vllm:num_requests_running", "vllm:num_requests_running", &[]);
        check("a{b=c}", "a", &[("b", "c")]);
        check(" a { b = \"c d\" , e=f, } ", "a", &[("b", "c d"), ("e", "f")]);
        check("a{}", "a", &[]);
        check("a{b=}", "a", &[("b", "")]);
    }

    #[test]
    fn what_is_no_specification_is_refused() {
        for text in ["", "{a=b}", "1a", "a b", "a{b", "a{b}", "a{=c}", "a{b=\"c}", "a}"] {
            assert!(text.parse::<Spec>().is_err(), "{text}");
        }
        let long = "a".repeat(1025);
        let expected = SpecError::TooLong { size: 1025, limit: 1024 };
        assert_eq!(long.parse::<Spec>(), Err(expected));
    }
}
