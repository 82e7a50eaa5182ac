//! Numbers that the parser has rounded, taken from the text again: integers beyond 64 bits, which it
//! reads as floats, and floats of many digits, which it may read as a neighbour of the nearest one.

use super::Json;
use std::borrow::Cow;

impl<'a> Json<'a> {
    /// Reads a text. Integers keep their digits, however many there are, and floats are the nearest
    /// ones. A value that is read as part of another type has rounded numbers until
    /// [`restore_numbers`].
    ///
    /// # Errors
    ///
    /// The fault of a text that is no JSON value.
    pub fn read(text: &'a str) -> Result<Self, serde_json::Error> {
        let mut json = serde_json::from_str(text)?;
        restore_numbers(&mut json, text);
        Ok(json)
    }
}

/// Gives numbers in `json` back what they are in `text`, from which `json` was read. A value without
/// floats costs a walk over it, and its text is not looked at.
pub fn restore_numbers<'a>(json: &mut Json<'a>, text: &'a str) {
    if may_be_rounded(json) {
        restore(json, &mut Numbers { text });
    }
}

/// Whether a value has a number that may be rounded.
pub(crate) fn may_be_rounded(json: &Json<'_>) -> bool {
    match json {
        Json::Float(_) => true,
        Json::Array(items) => items.iter().any(may_be_rounded),
        Json::Object(members) => members.iter().any(|(_, value)| may_be_rounded(value)),
        _ => false,
    }
}

/// The numbers of a value stand in its text in the order of the value.
fn restore<'a>(json: &mut Json<'a>, numbers: &mut Numbers<'a>) {
    match json {
        Json::Int(_) | Json::Uint(_) => drop(numbers.next()),
        Json::Float(number) => match numbers.next() {
            // An integer, which Python reads without its sign.
            Some("-0") => *json = Json::Uint(0),
            Some(digits) if !digits.contains(['.', 'e', 'E']) => {
                *json = Json::LongInteger(Cow::Borrowed(digits));
            }
            Some(digits) => *number = digits.parse().unwrap_or(*number),
            None => {}
        },
        Json::Array(items) => items.iter_mut().for_each(|item| restore(item, numbers)),
        Json::Object(members) => {
            members.iter_mut().for_each(|(_, value)| restore(value, numbers));
        }
        Json::Null | Json::Bool(_) | Json::LongInteger(_) | Json::Str(_) => {}
    }
}

/// The numbers in a sound text.
struct Numbers<'a> {
    text: &'a str,
}

impl<'a> Iterator for Numbers<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let start = self.text.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
            let rest = &self.text[start..];
            if let Some(string) = rest.strip_prefix('"') {
                self.text = after_string(string);
                continue;
            }
            let is_of_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
            let end = rest.find(|c| !is_of_number(c)).unwrap_or(rest.len());
            let (number, rest) = rest.split_at(end);
            self.text = rest;
            return Some(number);
        }
    }
}

/// The text after the end of a string whose beginning was taken.
fn after_string(string: &str) -> &str {
    let mut escaped = false;
    let end = string.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or("", |end| &string[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_keep_their_digits() {
        for text in [
            "18446744073709551616",
            "-9223372036854775809",
            "115792089237316195423570985008687907853269984665640564039457584007913129639935",
            r#"{"1\"2":["-3","\\",-4,18446744073709551615,18446744073709551616,{"5":true}],"6":7}"#,
            r#"{"a":100000000000000000000,"a":200000000000000000000,"b":0.5}"#,
        ] {
            let json = Json::read(text).expect("JSON");
            assert_eq!(serde_json::to_string(&json).expect("JSON"), text);
        }
        assert_eq!(Json::read("-0").ok(), Some(Json::Uint(0)));
    }

    #[test]
    fn floats_are_the_nearest_ones() {
        for (text, number) in [
            ("-0.0", -0.0_f64),
            ("1e20", 1e20),
            ("1E-5", 1e-5),
            ("123456789012345678901.0", 123456789012345678901.0),
        ] {
            let read = Json::read(text).ok();
            assert!(
                matches!(read, Some(Json::Float(read)) if read.to_bits() == number.to_bits()),
                "{read:?}"
            );
        }
    }

    #[test]
    fn integers_of_64_bits_are_not_looked_at_again() {
        let text = r#"{"a": [1, -1, "0.5", 18446744073709551615, -9223372036854775808]}"#;
        let json: Json<'_> = serde_json::from_str(text).expect("JSON");
        assert!(!may_be_rounded(&json));
    }

    proptest! {
        #[test]
        fn all_numbers_of_a_text_are_written_as_they_were_read(
            digits in prop::collection::vec("-?[1-9][0-9]{0,80}", 0..6),
            floats in prop::collection::vec(any::<f64>(), 6),
            words in prop::collection::vec(".{0,8}", 6),
        ) {
            let word = |at: usize| serde_json::to_string(&words[at]).expect("a string");
            let member = |(at, digits): (usize, &String)| {
                let float = serde_json::to_string(&floats[at]).expect("a number");
                format!("{}:[{},{digits},{float},{{\"\":{digits}}}]", word(at), word(at))
            };
            let members: Vec<_> = digits.iter().enumerate().map(member).collect();
            let text = format!("{{{}}}", members.join(","));
            let json = Json::read(&text).expect("JSON");
            prop_assert_eq!(serde_json::to_string(&json).expect("JSON"), text);
        }
    }
}
