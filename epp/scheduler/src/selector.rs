//! Kubernetes label selectors.

use std::fmt::{Display, Formatter, Result as FmtResult};

/// Selection of pods or endpoints: all requirements must hold. An empty selector selects all.
///
/// Source: label selectors of the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(pub Vec<Requirement>);

/// Test of one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Name of the label.
    pub label: String,
    /// Condition on the label's value.
    pub test: LabelTest,
}

/// Condition on a label's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelTest {
    /// The label has one of these values.
    In(Vec<String>),
    /// The label has none of these values. Holds without the label, too.
    NotIn(Vec<String>),
    /// The label exists.
    Exists,
    /// The label does not exist.
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

    /// Whether what has these labels is meant; `label` finds one by its name.
    pub fn selects<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(label(&requirement.label)))
    }
}

impl FromIterator<(String, String)> for LabelSelector {
    /// A selector that requires all of these labels.
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        let equal = |(label, value)| Requirement { label, test: LabelTest::In(vec![value]) };
        Self(labels.into_iter().map(equal).collect())
    }
}

/// The text form, which parses to the same selector.
impl Display for LabelSelector {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        for (at, Requirement { label, test }) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match test {
                LabelTest::In(values) if values.len() == 1 => {
                    write!(f, "{comma}{label}={}", values[0])
                }
                LabelTest::In(values) => write!(f, "{comma}{label} in ({})", values.join(",")),
                LabelTest::NotIn(values) => {
                    write!(f, "{comma}{label} notin ({})", values.join(","))
                }
                LabelTest::Exists => write!(f, "{comma}{label}"),
                LabelTest::DoesNotExist => write!(f, "{comma}!{label}"),
            }?;
        }
        Ok(())
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| value.is_some_and(|v| values.iter().any(|o| o == v));
        match &self.test {
            LabelTest::In(values) => among(values),
            LabelTest::NotIn(values) => !among(values),
            LabelTest::Exists => value.is_some(),
            LabelTest::DoesNotExist => value.is_none(),
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
        return named(label, LabelTest::DoesNotExist);
    }
    if let Some((label, values)) = part.split_once(" notin ") {
        return named(label, LabelTest::NotIn(listed(values)?));
    }
    if let Some((label, values)) = part.split_once(" in ") {
        return named(label, LabelTest::In(listed(values)?));
    }
    if let Some((label, value)) = part.split_once("!=") {
        return named(label, LabelTest::NotIn(vec![plain(value)?]));
    }
    if let Some((label, value)) = part.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return named(label, LabelTest::In(vec![plain(value)?]));
    }
    named(part, LabelTest::Exists)
}

fn named(label: &str, test: LabelTest) -> Option<Requirement> {
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

    #[track_caller]
    fn check(selector: &str, wanted: &[usize]) {
        let labelled: [&[(&str, &str)]; 3] = [
            &[("tier", "gold"), ("llm-d.ai/zone", "a")],
            &[("tier", "iron"), ("llm-d.ai/zone", "b")],
            &[("llm-d.ai/zone", "a")],
        ];
        let selector = LabelSelector::parse(selector).expect("it is a selector");
        let label = |labels: &[(&'static str, &'static str)], name: &str| {
            labels.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        };
        let is_meant = |at: &usize| selector.selects(|name| label(labelled[*at], name));
        assert_eq!((0..3).filter(is_meant).collect::<Vec<_>>(), wanted);
        assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
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
