//! Python's literals as JSON.

use crate::coerce::quoted;

/// Deepest nesting of a literal.
const DEPTH_MAX: usize = 64;

/// A literal as JSON: strings, numbers, `True`, `False`, `None` and JSON's words for them, lists,
/// tuples and dictionaries. None where it is anything else: nothing is evaluated.
pub(crate) fn to_json(text: &str) -> Option<String> {
    let mut reader = LiteralReader { rest: text.trim(), out: String::new() };
    reader.value(0)?;
    reader.space();
    reader.rest.is_empty().then_some(reader.out)
}

struct LiteralReader<'a> {
    rest: &'a str,
    out: String,
}

impl LiteralReader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.space();
        match self.rest.bytes().next()? {
            b'"' | b'\'' => self.string(),
            b'[' => self.items(']', depth),
            b'(' => self.items(')', depth),
            b'{' => self.members(depth),
            b'-' | b'+' | b'.' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    /// One string, or several side by side, which are one.
    fn string(&mut self) -> Option<()> {
        let mut text = String::new();
        while let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            self.rest = &self.rest[1..];
            loop {
                let c = self.rest.chars().next()?;
                self.rest = &self.rest[c.len_utf8()..];
                match c {
                    _ if c == quote => break,
                    '\\' => self.escape(&mut text)?,
                    c => text.push(c),
                }
            }
            self.space();
        }
        self.out.push_str(&quoted(&text));
        Some(())
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        let digits = |rest: &mut &str, count: usize| {
            let code = u32::from_str_radix(rest.get(..count)?, 16).ok()?;
            *rest = &rest[count..];
            char::from_u32(code)
        };
        match c {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            '0' => text.push('\0'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'a' => text.push('\u{7}'),
            'v' => text.push('\u{b}'),
            '\n' => {}
            '\\' | '\'' | '"' | '/' => text.push(c),
            'x' => text.push(digits(&mut self.rest, 2)?),
            'u' => text.push(digits(&mut self.rest, 4)?),
            'U' => text.push(digits(&mut self.rest, 8)?),
            // Python keeps the backslash of an escape that it does not know.
            c => text.extend(['\\', c]),
        }
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let of_number = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let end = self.rest.find(|c| !of_number(c)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        let digits = digits.replace('_', "");
        let digits = digits.strip_prefix('+').unwrap_or(&digits);
        let number = serde_json::from_str::<serde_json::Value>(digits).ok();
        // As written, where that is JSON; `.5` and `1.` are no JSON, but numbers.
        match number.is_some_and(|value| value.is_number()) {
            true => self.out.push_str(digits),
            false => {
                let value: f64 = digits.parse().ok().filter(|value: &f64| value.is_finite())?;
                self.out.push_str(&serde_json::Value::from(value).to_string());
            }
        }
        self.rest = rest;
        Some(())
    }

    fn word(&mut self) -> Option<()> {
        const WORDS: [(&str, &str); 6] = [
            ("True", "true"),
            ("False", "false"),
            ("None", "null"),
            ("true", "true"),
            ("false", "false"),
            ("null", "null"),
        ];
        let (word, json) = WORDS.iter().find(|(word, _)| self.rest.starts_with(word))?;
        self.rest = &self.rest[word.len()..];
        let goes_on = self.rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        self.out.push_str(json);
        (!goes_on).then_some(())
    }

    fn items(&mut self, close: char, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('[');
        let mut first = true;
        loop {
            self.space();
            if let Some(rest) = self.rest.strip_prefix(close) {
                self.rest = rest;
                self.out.push(']');
                return Some(());
            }
            if !first {
                self.out.push_str(", ");
            }
            first = false;
            self.value(depth + 1)?;
            self.comma(close)?;
        }
    }

    fn members(&mut self, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('{');
        let mut first = true;
        loop {
            self.space();
            if let Some(rest) = self.rest.strip_prefix('}') {
                self.rest = rest;
                self.out.push('}');
                return Some(());
            }
            if !first {
                self.out.push_str(", ");
            }
            first = false;
            match self.rest.bytes().next()? {
                b'"' | b'\'' => self.string()?,
                _ => {
                    // JSON's keys are strings.
                    let at = self.out.len();
                    self.value(depth + 1)?;
                    let key = quoted(&self.out[at..]);
                    self.out.replace_range(at.., &key);
                }
            }
            self.space();
            self.rest = self.rest.strip_prefix(':')?;
            self.out.push_str(": ");
            self.value(depth + 1)?;
            self.comma('}')?;
        }
    }

    /// A comma, or the closing bracket behind it, which stays.
    fn comma(&mut self, close: char) -> Option<()> {
        self.space();
        match self.rest.strip_prefix(',') {
            Some(rest) => self.rest = rest,
            None if self.rest.starts_with(close) => {}
            None => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::to_json;

    #[test]
    fn literals_become_json() {
        for (literal, json) in [
            ("'a\"b'", r#""a\"b""#),
            (r#""it's" 'x'"#, r#""it'sx""#),
            (r"'\n\x41\u00e9\q'", r#""\nAé\\q""#),
            ("-1.50", "-1.50"),
            ("1_000", "1000"),
            (".5", "0.5"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("[True, None, (1, 2,)]", "[true, null, [1, 2]]"),
            ("{'a': {'b': []}, 1: null}", r#"{"a": {"b": []}, "1": null}"#),
        ] {
            assert_eq!(to_json(literal).as_deref(), Some(json), "{literal}");
        }
        for none in ["f(1)", "a", "1 + 1", "'a", "[1", "__import__('os')", "Nonesuch", ""] {
            assert_eq!(to_json(none), None, "{none}");
        }
        assert_eq!(to_json(&"[".repeat(100_000)), None);
    }
}
