//! Forms of an answer for engines that have no word for them.

/// The schema of any object, for engines that have no word of their own for it.
pub(crate) const ANY_OBJECT: &str = r#"{"type":"object"}"#;

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
