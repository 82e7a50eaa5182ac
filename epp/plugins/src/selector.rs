//! Kubernetes label selectors.

use stator_epp_scheduler::Endpoint;

/// Which endpoints are meant: all requirements must hold. An empty selector means all.
///
/// Source: label selectors of the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(pub(crate) Vec<Requirement>);

/// Something that a label must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) label: String,
    pub(crate) test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    In(Vec<String>),
    /// Holds without the label, too.
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// A selector from its text form, `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    ///
    /// # Errors
    ///
    /// The first part that is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = parts(text).into_iter().map(str::trim).filter(|part| !part.is_empty());
        let read = |part: &str| requirement(part).ok_or_else(|| part.to_owned());
        Ok(Self(parts.map(read).collect::<Result<_, _>>()?))
    }

    /// Whether an endpoint is meant.
    pub fn selects(&self, endpoint: &Endpoint) -> bool {
        self.0.iter().all(|requirement| requirement.holds(endpoint))
    }
}

impl Requirement {
    fn holds(&self, endpoint: &Endpoint) -> bool {
        let value = endpoint.label(&self.label);
        let among = |values: &[String]| value.is_some_and(|v| values.iter().any(|o| o == v));
        match &self.test {
            Test::In(values) => among(values),
            Test::NotIn(values) => !among(values),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
        }
    }
}

/// The text between commas that stand in no parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .collect()
}

fn requirement(part: &str) -> Option<Requirement> {
    if let Some(label) = part.strip_prefix('!') {
        return named(label, Test::DoesNotExist);
    }
    if let Some((label, values)) = part.split_once(" notin ") {
        return named(label, Test::NotIn(listed(values)?));
    }
    if let Some((label, values)) = part.split_once(" in ") {
        return named(label, Test::In(listed(values)?));
    }
    if let Some((label, value)) = part.split_once("!=") {
        return named(label, Test::NotIn(vec![plain(value)?]));
    }
    if let Some((label, value)) = part.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return named(label, Test::In(vec![plain(value)?]));
    }
    named(part, Test::Exists)
}

fn named(label: &str, test: Test) -> Option<Requirement> {
    let label = plain(label).filter(|label| !label.is_empty())?;
    Some(Requirement { label, test })
}

/// The values of `(a,b)`.
fn listed(values: &str) -> Option<Vec<String>> {
    let inner = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    inner.split(',').map(plain).collect()
}

/// A label or a value, which has no letters that mean something here.
fn plain(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    text.chars().all(fits).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fleet;

    #[track_caller]
    fn check(selector: &str, wanted: &[u64]) {
        let fleet = Fleet::labelled(&[
            &[("tier", "gold"), ("llm-d.ai/zone", "a")],
            &[("tier", "iron"), ("llm-d.ai/zone", "b")],
            &[("llm-d.ai/zone", "a")],
        ]);
        let selector = LabelSelector::parse(selector).expect("it is a selector");
        let found = fleet.candidates().into_iter().map(|candidate| candidate.endpoint);
        let found = found.filter(|endpoint| selector.selects(endpoint));
        assert_eq!(found.map(|endpoint| endpoint.worker.worker.0).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn the_text_form_selects_as_in_kubernetes() {
        check("", &[0, 1, 2]);
        check("tier=gold", &[0]);
        check("llm-d.ai/zone == a , tier != gold", &[2]);
        check("tier in (gold, iron),llm-d.ai/zone notin (b)", &[0]);
        check("tier", &[0, 1]);
        check("!tier", &[2]);
    }

    #[test]
    fn what_is_no_selector_is_named() {
        for (text, part) in [("a=b,c in d", "c in d"), ("=b", "=b"), ("a=(b)", "a=(b)"), ("!", "!")]
        {
            assert_eq!(LabelSelector::parse(text), Err(part.to_owned()), "{text}");
        }
    }
}
