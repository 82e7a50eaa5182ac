//! Operators that make values, each within the budget. The rewritten template calls them as
//! filters whose names no template can write.

use super::budget::{self, Holder, ITEM_BYTES, OBJECT_BYTES, PAIR_BYTES, check_nesting, spend};
use crate::python;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error};

/// `a ~ b`
pub(super) const CONCAT: &str = "~";
/// `a + b`
pub(super) const ADD: &str = "+";
/// `a * b`
pub(super) const MULTIPLY: &str = "*";
/// `a[b:c:d]`
pub(super) const SLICE: &str = "[:]";
/// A list, a tuple or a dictionary that was just built.
pub(super) const BUILT: &str = "[]";
/// A value that a namespace is to hold.
pub(super) const KEPT: &str = ".=";
/// Arguments from a list or a dictionary.
pub(super) const SPREAD: &str = "**";
/// A macro that is declared; prints nothing.
pub(super) const DECLARED: &str = "{}";
/// Price of a macro with the variables that it encloses.
const MACRO_BYTES: usize = 2048;

/// Gives the operators to the engine.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter(CONCAT, concat);
    environment.add_filter(ADD, add);
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(SLICE, slice);
    environment.add_filter(BUILT, built);
    environment.add_filter(KEPT, kept);
    environment.add_filter(SPREAD, spread);
    environment.add_filter(DECLARED, |_: Value| spend(MACRO_BYTES).map(|()| ""));
}

fn impossible(operator: &str, left: &Value, right: &Value) -> Error {
    budget::refusal(format!(
        "tried to use {operator} operator on unsupported types {} and {}",
        left.kind(),
        right.kind()
    ))
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    let text = |value: &Value| match value.as_str() {
        Some(_) => Ok(None),
        None => python::str(value).map(Some),
    };
    let (left_text, right_text) = (text(left)?, text(right)?);
    let left = left_text.as_deref().or(left.as_str()).unwrap_or_default();
    let right = right_text.as_deref().or(right.as_str()).unwrap_or_default();
    join(left, right)
}

fn join(left: &str, right: &str) -> Result<Value, Error> {
    spend(OBJECT_BYTES + left.len() + right.len())?;
    Ok(Value::from([left, right].concat()))
}

fn add(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return join(left, right);
    }
    if is_list(left) && is_list(right) && left.is_tuple() == right.is_tuple() {
        let items = left.len().unwrap_or_default() + right.len().unwrap_or_default();
        spend(OBJECT_BYTES + items * ITEM_BYTES)?;
        let items = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(list_like(left, items));
    }
    arithmetic(left, right, i128::checked_add, |left, right| left + right)
        .ok_or_else(|| impossible("+", left, right))
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    // Python repeats none at all for a negative number.
    let times = |value: &Value| {
        let times = whole(value)?;
        usize::try_from(times.max(0)).ok()
    };
    let repeated = |value: &Value, times: usize| {
        if let Some(text) = value.as_str() {
            spend(OBJECT_BYTES.saturating_add(text.len().saturating_mul(times)))?;
            return Ok(Value::from(text.repeat(times)));
        }
        let items = value.len().unwrap_or_default().saturating_mul(times);
        spend(OBJECT_BYTES.saturating_add(items.saturating_mul(ITEM_BYTES)))?;
        let once: Vec<Value> = value.try_iter()?.collect();
        Ok(list_like(value, once.iter().cycle().take(items).cloned().collect()))
    };
    let repeatable = |value: &Value| value.as_str().is_some() || is_list(value);
    match (times(left), times(right)) {
        (None, Some(times)) if repeatable(left) => repeated(left, times),
        (Some(times), None) if repeatable(right) => repeated(right, times),
        _ => arithmetic(left, right, i128::checked_mul, |left, right| left * right)
            .ok_or_else(|| impossible("*", left, right)),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// A tuple where the original is one, or else a list.
fn list_like(original: &Value, items: Vec<Value>) -> Value {
    match original.is_tuple() {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    }
}

/// A whole number; `true` is one, as in Python.
fn whole(value: &Value) -> Option<i128> {
    let whole = value.is_integer() || value.kind() == ValueKind::Bool;
    whole.then(|| i128::try_from(value.clone()).ok()).flatten()
}

fn arithmetic(
    left: &Value,
    right: &Value,
    of_integers: fn(i128, i128) -> Option<i128>,
    of_floats: fn(f64, f64) -> f64,
) -> Option<Value> {
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        let result = of_integers(left, right)?;
        return Some(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from));
    }
    let float = |value: &Value| match whole(value) {
        Some(number) => Some(number as f64),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    };
    Some(Value::from(of_floats(float(left)?, float(right)?)))
}

/// Python's slices, of texts by characters.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(budget::refusal("cannot slice by step size of 0"));
    }
    if let Some(text) = value.as_str() {
        spend(OBJECT_BYTES + text.len())?;
        // The usual slice needs no vector of characters.
        if step == 1 && start.is_none_or(|start| start >= 0) && stop.is_none_or(|stop| stop >= 0) {
            let (start, stop) = (start.unwrap_or(0), stop.unwrap_or(i64::MAX));
            return Ok(Value::from(part(text, start as usize, stop as usize)));
        }
        let chars: Vec<char> = text.chars().collect();
        let picked = indices(chars.len(), (start, stop), step);
        return Ok(Value::from(picked.map(|at| chars[at]).collect::<String>()));
    }
    if value.is_none() || value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(value) {
        let message = format!("value of type {} cannot be sliced", value.kind());
        return Err(budget::refusal(message));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    spend(OBJECT_BYTES + items.len() * ITEM_BYTES)?;
    let picked = indices(items.len(), (start, stop), step);
    Ok(list_like(value, picked.map(|at| items[at].clone()).collect()))
}

/// The characters from `start` to before `stop`.
fn part(text: &str, start: usize, stop: usize) -> &str {
    let at = |text: &str, count| text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    let rest = &text[at(text, start)..];
    &rest[..at(rest, stop.saturating_sub(start))]
}

/// The places that `[start:stop:step]` names in a list of `len` items.
fn indices(
    len: usize,
    (start, stop): (Option<i64>, Option<i64>),
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i128;
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |bound: Option<i64>, default: i128| match bound.map(i128::from) {
        None => default,
        Some(bound) if bound < 0 => (bound + len).clamp(lowest, highest),
        Some(bound) => bound.clamp(lowest, highest),
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (mut at, stop) = (clamp(start, first), clamp(stop, last));
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < stop } else { at > stop };
        let here = at;
        at += i128::from(step);
        inside.then(|| usize::try_from(here).expect("clamped to the list"))
    })
}

fn built(value: Value) -> Result<Value, Error> {
    let price = if value.kind() == ValueKind::Map { PAIR_BYTES } else { ITEM_BYTES };
    spend(OBJECT_BYTES + value.len().unwrap_or_default() * price)?;
    check_nesting(&value, Holder::Container, 0)?;
    Ok(value)
}

fn kept(value: Value) -> Result<Value, Error> {
    spend(OBJECT_BYTES)?;
    check_nesting(&value, Holder::Namespace, 0)?;
    Ok(value)
}

fn spread(value: Value) -> Result<Value, Error> {
    spend(OBJECT_BYTES + value.len().unwrap_or_default() * PAIR_BYTES)?;
    Ok(value)
}
