//! Memory of one rendering.
//!
//! A template pays for what it makes before it is made: [`spend`] takes from the budget, and what a
//! value once cost is not given back when the value dies. So the sum of all that a rendering makes
//! is bounded, and with it what it holds at any time, without asking the allocator.
//!
//! The budget belongs to the thread, because a rendering never leaves its thread and because the
//! code that makes values (filters, methods, printing) is called in many ways.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::cell::Cell;

/// Memory that any rendering may take, in bytes: 64 MiB. A conversation of a thousand messages
/// takes about a tenth of it.
pub const BUDGET_BYTES: usize = 64 << 20;
/// Further memory for each byte of the request: templates join, trim and print what they are given,
/// some of them several times.
pub const BUDGET_PER_INPUT_BYTE: usize = 32;
/// Price of an object beyond what it holds.
pub(super) const OBJECT_BYTES: usize = 64;
/// Price of a place in a list.
pub(super) const ITEM_BYTES: usize = 32;
/// Price of a pair in a dictionary.
pub(super) const PAIR_BYTES: usize = 96;
/// Price of looking at a part of a value, as if it were made: values that share parts are larger in
/// print than in memory, and a walk over them takes its time.
const LOOK_BYTES: usize = 64;
/// Deepest nesting of values. A request's JSON is at most 128 deep.
const DEPTH_MAX: usize = 160;

#[derive(Clone, Copy)]
struct Budget {
    limit: usize,
    left: usize,
}

thread_local! {
    static BUDGET: Cell<Budget> = const { Cell::new(Budget { limit: BUDGET_BYTES, left: BUDGET_BYTES }) };
}

/// Gives the thread its former budget back.
struct Restore(Budget);

impl Drop for Restore {
    fn drop(&mut self) {
        BUDGET.set(self.0);
    }
}

/// Renders with a budget for a request of `input` bytes.
pub(crate) fn for_input<T>(input: usize, render: impl FnOnce() -> T) -> T {
    let limit = BUDGET_BYTES.saturating_add(input.saturating_mul(BUDGET_PER_INPUT_BYTE));
    let _restore = Restore(BUDGET.replace(Budget { limit, left: limit }));
    render()
}

/// Takes `bytes` from the budget.
///
/// # Errors
///
/// Where so much is not left.
pub(crate) fn spend(bytes: usize) -> Result<(), Error> {
    room(bytes)?;
    let budget = BUDGET.get();
    BUDGET.set(Budget { left: budget.left - bytes, ..budget });
    Ok(())
}

/// Checks that `bytes` are left, before something is made whose exact size shows later.
///
/// # Errors
///
/// Where so much is not left.
pub(crate) fn room(bytes: usize) -> Result<(), Error> {
    let Budget { limit, left } = BUDGET.get();
    if bytes <= left {
        return Ok(());
    }
    Err(refusal(format!("the chat template needs more than its {limit} bytes of memory")))
}

pub(super) fn refusal(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Whether a value may become part of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// A list, a tuple or a dictionary.
    Container,
    /// A namespace. It cannot hold a namespace: a ring of them would never be freed.
    Namespace,
}

/// Checks that a value is not nested too deeply: printing, comparing and freeing it recurses.
///
/// # Errors
///
/// For a value that is nested too deeply, that is not for this holder, or whose parts are too many
/// to look at.
pub(super) fn check_nesting(value: &Value, holder: Holder, depth: usize) -> Result<(), Error> {
    let Some(object) = value.as_object() else { return Ok(()) };
    spend(LOOK_BYTES)?;
    if depth >= DEPTH_MAX {
        return Err(refusal(format!("values are nested deeper than {DEPTH_MAX}")));
    }
    // The engine's own objects have no public types.
    let engine_type = object.type_name().strip_prefix("minijinja::").unwrap_or_default();
    if engine_type.ends_with("::Loop") {
        return Err(refusal("a loop cannot be kept"));
    }
    if holder == Holder::Namespace && engine_type.ends_with("::Namespace") {
        return Err(refusal("a namespace cannot be kept in a namespace"));
    }
    if let Some(items) = object.downcast_ref::<Vec<Value>>() {
        return items.iter().try_for_each(|item| check_nesting(item, holder, depth + 1));
    }
    match value.kind() {
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            check_nesting(&value.get_item(&key)?, holder, depth + 1)?;
            check_nesting(&key, holder, depth + 1)
        }),
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_for_each(|item| check_nesting(&item, holder, depth + 1))
        }
        _ => Ok(()),
    }
}

/// Most bytes that a value takes in print, with or without quotes.
///
/// # Errors
///
/// Where its parts are too many to look at.
pub(super) fn printed_bytes(value: &Value) -> Result<usize, Error> {
    // A control character of one byte becomes `\u{7f}`; a number has at most 40 digits, or 309 in an
    // object: JSON has none beyond the largest float.
    const ESCAPED_BYTES: usize = 6;
    const OTHER_BYTES: usize = 48;
    const PLAIN_BYTES: usize = 320;
    if let Some(text) = value.as_str() {
        return Ok(text.len().saturating_mul(ESCAPED_BYTES).saturating_add(2));
    }
    if value.as_object().is_none() {
        return Ok(OTHER_BYTES + value.as_bytes().map_or(0, |bytes| bytes.len() * ESCAPED_BYTES));
    }
    spend(LOOK_BYTES)?;
    let mut sum = if value.kind() == ValueKind::Plain { PLAIN_BYTES } else { OTHER_BYTES };
    let pairs = value.kind() == ValueKind::Map;
    if pairs || matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        for item in value.try_iter()? {
            if pairs {
                sum = sum.saturating_add(printed_bytes(&value.get_item(&item)?)?);
            }
            sum = sum.saturating_add(printed_bytes(&item)?).saturating_add(4);
            room(sum)?;
        }
    }
    Ok(sum)
}

/// Most bytes that a value takes in print by itself: a text has no quotes then.
pub(super) fn text_bytes(value: &Value) -> Result<usize, Error> {
    value.as_str().map_or_else(|| printed_bytes(value), |text| Ok(text.len()))
}
