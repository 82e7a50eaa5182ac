//! What an answer must look like: one vocabulary for the engines' several.

/// The form of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guide {
    /// JSON that conforms to this JSON Schema, as JSON text.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts; at least one, none of them empty.
    Choices(Vec<String>),
    /// Text of a context-free grammar, in the engine's own notation (EBNF).
    Grammar(String),
    /// Free text with parts of a form: a `response_format` of the type `structural_tag`, as JSON
    /// text.
    StructuralTag(String),
}

/// The schema of any object, for engines that have no word of its own for it.
pub(crate) const ANY_OBJECT: &str = r#"{"type":"object"}"#;

impl Guide {
    /// What it is called in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::JsonObject => "json_object",
            Self::Regex(_) => "regex",
            Self::Choices(_) => "choices",
            Self::Grammar(_) => "grammar",
            Self::StructuralTag(_) => "structural_tag",
        }
    }
}

/// A regular expression that matches one of these texts, for engines that know no choices.
pub(crate) fn one_of(texts: &[String]) -> String {
    let mut regex = String::from("(");
    for (place, text) in texts.iter().enumerate() {
        if place > 0 {
            regex.push('|');
        }
        for character in text.chars() {
            match character {
                '\n' => regex.push_str("\\n"),
                '\r' => regex.push_str("\\r"),
                '\t' => regex.push_str("\\t"),
                '\\' | '.' | '^' | '$' | '*' | '+' | '?' | '{' | '}' | '[' | ']' | '(' | ')'
                | '|' => regex.extend(['\\', character]),
                plain => regex.push(plain),
            }
        }
    }
    regex.push(')');
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&str], expected: &str) {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(one_of(&texts), expected);
    }

    #[test]
    fn choices_are_an_alternative_of_plain_texts() {
        check(&["yes"], "(yes)");
        check(&["yes", "no"], "(yes|no)");
        check(&["1+1=2?", "(a|b)", "c:\\d", "[x]{2}", "é.^$*"], {
            r"(1\+1=2\?|\(a\|b\)|c:\\d|\[x\]\{2\}|é\.\^\$\*)"
        });
        check(&["two\nlines\tand more\r"], r"(two\nlines\tand more\r)");
    }
}
