//! The template engine as `transformers` sets up its own, and Python's methods of text.

use super::python::{self, JsonStyle};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Most template instructions of one rendering: about a tenth of a second. A conversation of a
/// thousand messages takes a few hundred thousand.
const FUEL: u64 = 5_000_000;
/// Deepest nesting of macros, calls and blocks.
const RECURSION_MAX: usize = 200;
/// A template's own refusal, by `raise_exception`.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The engine with everything that `transformers` gives to templates, and without a template.
pub(crate) fn environment() -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| error.to_string())?);
    environment.set_debug(false);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&python::str(value)?).map_err(Error::from),
    });
    environment.add_filter("tojson", |value: Value, kwargs: Kwargs| -> Result<Value, Error> {
        let style = JsonStyle::from_kwargs(&kwargs)?;
        Ok(Value::from(python::to_json(&value, &style)?))
    });
    environment.add_filter("string", |value: Value| python::str(&value));
    // The engine takes `none` for an empty list.
    environment.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    Ok(environment)
}

/// Python's methods of strings, lists and dictionaries that the engine does not have itself.
fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    let parts =
        |parts: Vec<&str>| Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()));
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            let found = if text.contains(separator) { separator } else { "" };
            parts(vec![before, found, after])
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            let found = if text.contains(separator) { separator } else { "" };
            parts(vec![before, found, after])
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most
                .and_then(|most| usize::try_from(most).ok())
                .map_or(usize::MAX, |most| most.saturating_add(1));
            let mut found: Vec<&str> = match separator {
                Some(separator) => text.rsplitn(most, separator).collect(),
                None => text.split_whitespace().rev().collect(),
            };
            found.reverse();
            parts(found)
        }
        "title" => Ok(Value::from(title(text))),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Every letter after something that is no letter in upper case, all others in lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}
