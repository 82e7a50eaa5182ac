//! The template engine as `transformers` sets up its own, and Python's methods of text.
//!
//! A template is a program from a stranger. Its steps are bounded by fuel, its memory by
//! [`budget`]: [`rewrite`] replaces the operators that make values by those of [`operators`],
//! [`filters`] has the filters and functions, and [`call_method`] below the methods.

pub(crate) mod budget;
mod compiled;
mod filters;
mod operators;
mod rewrite;

pub(crate) use compiled::CompiledTemplate;

use super::python::{self, JsonStyle};
use filters::Growth;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Most template instructions of one rendering: about a tenth of a second. A conversation of a
/// thousand messages takes a few hundred thousand.
const FUEL: u64 = 5_000_000;
/// Deepest nesting of macros, calls and blocks.
const RECURSION_MAX: usize = 200;
/// A template's own refusal, by `raise_exception`.
#[derive(Debug)]
pub(crate) struct TemplateException(pub(crate) String);

impl std::fmt::Display for TemplateException {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateException {}

/// The engine with everything that `transformers` gives to templates, and without a template: one
/// that includes or extends another fails.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    // Debug information would carry values of a request into errors.
    environment.set_debug(false);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(|out, _, value| {
        let printed = match value.as_str() {
            Some(_) => None,
            None => Some(python::str(value)?),
        };
        let text = printed.as_deref().or(value.as_str()).unwrap_or_default();
        budget::spend(text.len())?;
        out.write_str(text).map_err(Error::from)
    });
    operators::add_to(&mut environment);
    filters::add_to(&mut environment);
    filters::add_functions(&mut environment);
    environment.add_filter("tojson", |value: Value, kwargs: Kwargs| -> Result<Value, Error> {
        let style = JsonStyle::from_kwargs(&kwargs)?;
        Ok(Value::from(python::to_json(&value, &style)?))
    });
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
            .with_source(TemplateException(message)))
    });
    environment
}

/// Python's methods of strings, lists and dictionaries, each within the budget.
fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if value.as_str().is_none() {
        let growth = match method {
            "keys" | "values" | "items" if value.kind() == ValueKind::Map => Growth::Items,
            _ => Growth::None,
        };
        return filters::make(growth, std::slice::from_ref(value), |_| {
            pycompat::unknown_method_callback(state, value, method, args)
        });
    }
    let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
    // Methods whose result can be far larger than their input are sized before they run.
    let bytes = match method {
        "format" => filters::format_bytes(&all)?,
        "join" => filters::join_bytes(&[args.first().cloned().unwrap_or_default(), value.clone()])?,
        "replace" => filters::replace_bytes(&all)?,
        _ => {
            let pieces = ["partition", "rpartition", "rsplit", "split", "splitlines"];
            let growth = if pieces.contains(&method) { Growth::Items } else { Growth::Text(3) };
            return filters::make(growth, &all, |_| text_method(state, value, method, args));
        }
    };
    filters::make_sized(bytes, || text_method(state, value, method, args))
}

/// Methods of text: those that the engine does not have, or else its own.
fn text_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let text = value.as_str().unwrap_or_default();
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
