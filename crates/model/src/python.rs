//! Template values as Python prints them: `str`, `repr` and `json.dumps`.
//!
//! Chat templates are written for Jinja in Python, so `{{ none }}` is `None` and a float is printed
//! as Python prints it.

use crate::jinja::budget;
use minijinja::value::{Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::{self, Write};
use std::sync::Arc;

/// Layout of `tojson`'s text; the defaults are those of `transformers`.
#[derive(Debug)]
pub(crate) struct JsonStyle {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ascii: bool,
    sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self {
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            ascii: false,
            sort_keys: false,
        }
    }
}

impl JsonStyle {
    /// Reads the arguments of the filter: `ensure_ascii`, `indent`, `separators`, `sort_keys`.
    pub(crate) fn from_kwargs(kwargs: &Kwargs) -> Result<Self, Error> {
        let indent: Option<Value> = kwargs.get("indent")?;
        let indent = match indent.filter(|indent| !indent.is_none()) {
            Some(indent) => Some(usize::try_from(indent)?.min(16)),
            None => None,
        };
        let separators: Option<Value> = kwargs.get("separators")?;
        let (item_separator, key_separator) =
            match separators.filter(|separators| !separators.is_none()) {
                Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
                None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
                None => (", ".to_owned(), ": ".to_owned()),
            };
        let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
        let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
        kwargs.assert_all_used()?;
        Ok(Self { indent, item_separator, key_separator, ascii, sort_keys })
    }
}

fn text_at(pair: &Value, at: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(at)?;
    item.as_str().map(str::to_owned).ok_or_else(|| invalid("separators must be two strings"))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `json.dumps`.
///
/// # Errors
///
/// For what JSON cannot hold, such as an undefined value, and for what the rendering has no memory
/// for.
pub(crate) fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    push_json(&mut out, value, style, 0)?;
    budget::spend(out.len())?;
    Ok(out)
}

fn push_json(
    out: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    // The budget is checked before anything is written: a small value can make a lot of text.
    room_for(out, value)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => push_number(out, value),
        ValueKind::String => push_json_text(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            push_container(out, ('[', ']'), style, depth, items, |out, item| {
                push_json(out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            push_container(out, ('{', '}'), style, depth, keys.into_iter(), |out, key| {
                match key.as_str() {
                    Some(text) => push_json_text(out, text, style.ascii),
                    None => push_json_text(out, &str(&key)?, style.ascii),
                }
                out.push_str(&style.key_separator);
                push_json(out, &value.get_item(&key)?, style, depth + 1)
            })?;
        }
        _ if value.downcast_object_ref::<LongInteger>().is_some() => {
            let _ = write!(out, "{value}");
        }
        kind => return Err(invalid(format!("a value of type {kind} is not JSON serializable"))),
    }
    Ok(())
}

fn push_container<T>(
    out: &mut String,
    (open, close): (char, char),
    style: &JsonStyle,
    depth: usize,
    items: impl Iterator<Item = T>,
    mut push: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    let mut empty = true;
    for item in items {
        if !std::mem::take(&mut empty) {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        push(out, item)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn push_json_text(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Checks that there is memory for a text with a value added: the text itself, not what a container
/// holds, which is checked in its turn.
fn room_for(out: &str, value: &Value) -> Result<(), Error> {
    /// Bytes of one escaped character, at most, as in `\u00e9`.
    const ESCAPED_BYTES: usize = 6;
    let bytes = value.as_str().map_or(0, |text| text.len().saturating_mul(ESCAPED_BYTES));
    budget::room(out.len().saturating_add(bytes))
}

/// `str(value)`; an undefined value is empty, as Jinja prints it.
///
/// # Errors
///
/// Where the rendering has no memory for it.
pub(crate) fn str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            budget::spend(text.len())?;
            Ok(text.to_owned())
        }
        _ => {
            let mut out = String::new();
            push_repr(&mut out, value)?;
            budget::spend(out.len())?;
            Ok(out)
        }
    }
}

fn push_repr(out: &mut String, value: &Value) -> Result<(), Error> {
    // The budget is checked first, as in `push_json`. The words are Python's, because models were
    // trained on them.
    room_for(out, value)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => push_number(out, value),
        ValueKind::String => push_text_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                push_repr(out, &item)?;
                count += 1;
            }
            if count == 1 && value.is_tuple() {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                push_repr(out, &key)?;
                out.push_str(": ");
                push_repr(out, &value.get_item(&key)?)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn push_text_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn push_number(out: &mut String, value: &Value) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    push_float(out, number);
}

/// An integer with more digits than the engine's own have: it is printed, and no more.
#[derive(Debug)]
struct LongInteger(String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of an integer's digits.
pub(crate) fn long_integer(digits: &str) -> Value {
    match digits.parse::<i128>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from_object(LongInteger(digits.to_owned())),
    }
}

/// `repr(float)`: the shortest digits that read back, in scientific notation below 1e-4 and from
/// 1e16.
fn push_float(out: &mut String, number: f64) {
    if number.is_nan() {
        return out.push_str("nan");
    }
    if number.is_infinite() {
        return out.push_str(if number > 0.0 { "inf" } else { "-inf" });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the e format has an exponent");
    let exponent: i32 = exponent.parse().expect("the e format has a decimal exponent");
    let _ = match exponent {
        -4..16 => {
            let plain = number.to_string();
            let point = if plain.contains('.') { "" } else { ".0" };
            write!(out, "{plain}{point}")
        }
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(out, "{digits}e{sign}{:02}", exponent.abs())
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_str(value: Value, expected: &str) {
        assert_eq!(str(&value).unwrap(), expected);
    }

    #[test]
    fn values_print_as_in_python() {
        check_str(Value::from(()), "None");
        check_str(Value::from(true), "True");
        check_str(Value::UNDEFINED, "");
        check_str(Value::from(1e16), "1e+16");
        check_str(Value::from(1.5e-7), "1.5e-07");
        check_str(Value::from(1e15), "1000000000000000.0");
        check_str(Value::from(0.0001), "0.0001");
        check_str(Value::from(0.1), "0.1");
        check_str(Value::from(-3), "-3");
        check_str(Value::from(vec!["it's", "a\n"]), "[\"it's\", 'a\\n']");
        check_str(
            Value::from_pairs([("k", Value::from(vec![Value::from(()), Value::from(2.0)]))]),
            "{'k': [None, 2.0]}",
        );
    }

    #[test]
    fn long_integers_are_printed_with_all_digits() {
        for digits in ["18446744073709551616", "-9223372036854775809", &"7".repeat(78)] {
            let value = Value::from(vec![long_integer(digits)]);
            check_str(value.clone(), &format!("[{digits}]"));
            let json = to_json(&value, &JsonStyle::default()).unwrap();
            assert_eq!(json, format!("[{digits}]"));
        }
    }
}
