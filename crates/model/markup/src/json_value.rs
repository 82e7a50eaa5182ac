//! The end of a JSON value in text that comes in pieces.

/// Follows one JSON value, byte by byte. Nothing of it is checked but where it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JsonValueScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
    scalar: bool,
}

/// The part of a value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonValueEnd {
    /// The value goes on behind the text.
    Open,
    /// The value ends before this byte.
    At(usize),
    /// The byte here cannot stand in JSON.
    Broken(usize),
}

impl JsonValueScan {
    /// Reads on. The first byte of the first text is the value's first.
    pub(crate) fn read(&mut self, text: &str) -> JsonValueEnd {
        for (at, byte) in text.bytes().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return JsonValueEnd::At(at + 1);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            if self.scalar && matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n') {
                return JsonValueEnd::At(at);
            }
            match byte {
                b'"' if !self.scalar => self.in_string = true,
                b'{' | b'[' if !self.scalar => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return JsonValueEnd::At(at + 1);
                    }
                }
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if self.depth > 0 => {}
                b'+' | b'-' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                    self.scalar |= !self.begun;
                }
                _ => return JsonValueEnd::Broken(at),
            }
            self.begun = true;
        }
        JsonValueEnd::Open
    }
}

/// The text of a JSON string without its quotes, as written; the same where it is not sound.
pub(crate) fn unescaped(raw: &str) -> String {
    if !raw.contains('\\') {
        return raw.to_owned();
    }
    serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: JsonValueEnd) {
        assert_eq!(JsonValueScan::default().read(text), expected, "{text}");
        let mut scan = JsonValueScan::default();
        let pieces = text.char_indices().map(|(at, c)| (at, &text[at..at + c.len_utf8()]));
        let end = pieces.map(|(at, piece)| (at, scan.read(piece)));
        let end = end.into_iter().find(|(_, end)| *end != JsonValueEnd::Open);
        let end = match end {
            Some((from, JsonValueEnd::At(at))) => JsonValueEnd::At(from + at),
            Some((from, JsonValueEnd::Broken(at))) => JsonValueEnd::Broken(from + at),
            _ => JsonValueEnd::Open,
        };
        assert_eq!(end, expected, "{text} in pieces");
    }

    #[test]
    fn a_value_ends_where_json_says() {
        check(r#"{"a":"}\"","b":[1]} x"#, JsonValueEnd::At(19));
        check(r#""a\\" x"#, JsonValueEnd::At(5));
        check("12.5e3}", JsonValueEnd::At(6));
        check("null,", JsonValueEnd::At(4));
        check(r#"{"a":"é"#, JsonValueEnd::Open);
        check(r#"{"a":<"#, JsonValueEnd::Broken(5));
        check("<", JsonValueEnd::Broken(0));
    }
}
