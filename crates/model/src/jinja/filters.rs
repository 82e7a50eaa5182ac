//! The filters and tests of Jinja that templates may use, each filter within the budget.
//!
//! The list is closed: a filter that the engine learns later is not there until somebody has looked
//! at how much it makes.

use super::budget::{self, Holder, OBJECT_BYTES, check_nesting, room, spend, text_bytes};
use crate::python;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, filters, tests};

/// Price of an item that a filter puts into a new list: it may be a list of its own.
const ITEM_BYTES: usize = 160;

/// Bound on the size of a filter's result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Growth {
    /// A part of what it was given, or a number.
    None,
    /// A text, at most so many times as long as what it was given.
    Text(usize),
    /// A list of what it was given: items or pieces of text.
    Items,
    /// Every part of the input, in as many places as the second argument says.
    Rows,
}

type Sizes = fn(&[Value]) -> Result<usize, Error>;

/// Gives the filters to the engine.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    macro_rules! add {
        ($growth:expr => $($name:ident)*) => {
            $(bounded(environment, stringify!($name), $growth, Value::from_function(filters::$name));)*
        };
    }
    add!(Growth::None => abs attr bool default first float int last length max min round sum);
    // An upper case letter may take three times the room, an escaped one six times.
    add!(Growth::Text(3) => capitalize lower safe title trim upper);
    add!(Growth::Text(6) => escape);
    add!(Growth::Items => dictsort groupby items lines list map reject rejectattr reverse select);
    add!(Growth::Items => selectattr sort split unique);
    add!(Growth::Rows => batch slice);
    bounded(environment, "count", Growth::None, Value::from_function(filters::length));
    bounded(environment, "d", Growth::None, Value::from_function(filters::default));
    bounded(environment, "e", Growth::Text(6), Value::from_function(filters::escape));

    sized(environment, "format", format_bytes, Value::from_function(filters::format));
    sized(environment, "indent", indent_bytes, Value::from_function(filters::indent));
    sized(environment, "join", join_bytes, Value::from_function(filters::join));
    sized(environment, "replace", replace_bytes, Value::from_function(filters::replace));
    environment.add_filter("pprint", |value: &Value| python::str(value));
    environment.add_filter("string", |value: &Value| python::str(value));
    add_tests(environment);
}

fn bounded(environment: &mut Environment<'_>, name: &'static str, growth: Growth, filter: Value) {
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            make(growth, &args, |args| filter.call(state, args))
        },
    );
}

fn sized(environment: &mut Environment<'_>, name: &'static str, bytes: Sizes, filter: Value) {
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            make_sized(bytes(&args)?, || filter.call(state, &args))
        },
    );
}

/// Makes a text of at most `bytes`.
pub(super) fn make_sized(
    bytes: usize,
    make: impl FnOnce() -> Result<Value, Error>,
) -> Result<Value, Error> {
    room(bytes)?;
    let made = make()?;
    spend(OBJECT_BYTES + made.as_str().map_or(0, str::len))?;
    Ok(made)
}

/// Makes a value of `args` whose size follows `growth`.
pub(super) fn make(
    growth: Growth,
    args: &[Value],
    make: impl FnOnce(&[Value]) -> Result<Value, Error>,
) -> Result<Value, Error> {
    // The budget is charged first: a value that does not fit must never exist.
    match growth {
        Growth::None => make(args),
        Growth::Text(factor) => {
            let mut bytes = 0_usize;
            for arg in args {
                bytes = bytes.saturating_add(text_bytes(arg)?);
            }
            make_sized(bytes.saturating_mul(factor), || make(args))
        }
        Growth::Items | Growth::Rows => {
            let rows = match growth {
                Growth::Rows => args.get(1).and_then(Value::as_usize).unwrap_or_default(),
                _ => 0,
            };
            let text: usize = args.iter().filter_map(|arg| arg.as_str()).map(str::len).sum();
            let items: usize = args.iter().map(|arg| arg.len().unwrap_or_default()).sum();
            room(items.saturating_add(rows).saturating_mul(ITEM_BYTES).saturating_add(text))?;
            spend(text)?;
            listed(make(args)?)
        }
    }
}

/// A list in place of what is computed anew each time that somebody looks at it.
fn listed(made: Value) -> Result<Value, Error> {
    spend(OBJECT_BYTES + made.len().unwrap_or_default().saturating_mul(ITEM_BYTES))?;
    let listed = match made.kind() {
        ValueKind::Iterable => Value::from(made.try_iter()?.collect::<Vec<_>>()),
        ValueKind::Seq
            if !made.is_tuple() && made.downcast_object_ref::<Vec<Value>>().is_none() =>
        {
            Value::from(made.try_iter()?.collect::<Vec<_>>())
        }
        _ => made,
    };
    check_nesting(&listed, Holder::Container, 0)?;
    Ok(listed)
}

/// An argument by its place or by its name.
fn argument(args: &[Value], at: usize, name: &str) -> Option<Value> {
    let last = args.last()?;
    if last.is_kwargs() {
        let named = last.get_attr(name).ok().filter(|value| !value.is_undefined());
        return named.or_else(|| args[..args.len() - 1].get(at).cloned());
    }
    args.get(at).cloned()
}

/// `text | indent(width)`: each line may get the width.
fn indent_bytes(args: &[Value]) -> Result<usize, Error> {
    const WIDTH: usize = 4;
    let bytes = args.first().map_or(Ok(0), text_bytes)?;
    let lines = args
        .first()
        .and_then(|text| text.as_str())
        .map_or(1, |text| 1 + text.bytes().filter(|byte| *byte == b'\n').count());
    let width = argument(args, 1, "width").and_then(|width| width.as_usize()).unwrap_or(WIDTH);
    Ok(width.saturating_mul(lines + 1).saturating_add(bytes))
}

/// `list | join(separator)`
pub(super) fn join_bytes(args: &[Value]) -> Result<usize, Error> {
    let separator = argument(args, 1, "d").map_or(Ok(0), |separator| text_bytes(&separator))?;
    let Some(list) = args.first().filter(|list| !list.is_undefined() && !list.is_none()) else {
        return Ok(0);
    };
    let mut bytes = 0_usize;
    if let Some(text) = list.as_str() {
        bytes = text.len().saturating_mul(separator.saturating_add(1));
    } else {
        for item in list.try_iter()? {
            bytes = bytes.saturating_add(text_bytes(&item)?).saturating_add(separator);
            room(bytes)?;
        }
    }
    Ok(bytes)
}

/// `text | replace(old, new)`, and the method of this name.
pub(super) fn replace_bytes(args: &[Value]) -> Result<usize, Error> {
    let [text, old, new, ..] = args else { return Ok(0) };
    let (Some(source), Some(old)) = (text.as_str(), old.as_str()) else {
        // Printed first, and then every place may be one to replace.
        let bytes = text_bytes(text)?;
        return Ok(bytes.saturating_add(1).saturating_mul(text_bytes(new)?.saturating_add(1)));
    };
    let found = source.matches(old).count();
    Ok(found.saturating_mul(text_bytes(new)?).saturating_add(source.len()))
}

/// `format | format(values)`, and the method of this name: any value may stand at any place, and
/// each number in the format may be a width.
pub(super) fn format_bytes(args: &[Value]) -> Result<usize, Error> {
    // A float of 64 bits has up to 309 digits before the point.
    const NUMBER_BYTES: usize = 400;
    let Some((format, values)) = args.split_first() else { return Ok(0) };
    let Some(format) = format.as_str() else {
        return Err(budget::refusal("a format is a text"));
    };
    let widths = format
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .fold(0_usize, |sum, digits| sum.saturating_add(digits.parse().unwrap_or(usize::MAX)));
    let stars = format.contains('*');
    let (mut largest, mut dynamic) = (NUMBER_BYTES, 0_usize);
    for value in values {
        largest = largest.max(budget::printed_bytes(value)?);
        if stars {
            dynamic = dynamic.max(value.as_usize().unwrap_or_default());
        }
    }
    let places = format.bytes().filter(|byte| matches!(byte, b'%' | b'{')).count();
    let each = largest.saturating_add(dynamic);
    // Grouped digits have a separator each.
    Ok(places
        .saturating_mul(each)
        .saturating_add(widths.saturating_mul(2))
        .saturating_add(format.len()))
}

fn add_tests(environment: &mut Environment<'_>) {
    macro_rules! add {
        ($($name:literal: $test:ident)*) => { $(environment.add_test($name, tests::$test);)* };
    }
    add!(
        "boolean": is_boolean "defined": is_defined
        "endingwith": is_endingwith "escaped": is_safe "even": is_even "false": is_false
        "filter": is_filter "float": is_float "in": is_in "int": is_integer
        "integer": is_integer "lower": is_lower "mapping": is_mapping "none": is_none
        "number": is_number "odd": is_odd "safe": is_safe "sameas": is_sameas
        "sequence": is_sequence "startingwith": is_startingwith "string": is_string
        "test": is_test "true": is_true "undefined": is_undefined "upper": is_upper
        "eq": is_eq "equalto": is_eq "==": is_eq "ne": is_ne "!=": is_ne
        "lt": is_lt "lessthan": is_lt "<": is_lt "le": is_le "<=": is_le
        "gt": is_gt "greaterthan": is_gt ">": is_gt "ge": is_ge ">=": is_ge
    );
    // The engine takes `none` for an empty list.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("divisibleby", is_divisible);
}

/// Jinja's test `divisibleby`. The engine's own panics for zero, and Python raises an error.
fn is_divisible(value: &Value, by: &Value) -> Result<bool, Error> {
    let whole = |value: &Value| i128::try_from(value.clone()).ok();
    let real = |value: &Value| f64::try_from(value.clone()).ok();
    let (is_zero, is_divisible) = match (whole(value), whole(by)) {
        // The smallest number has no quotient by -1, but no rest either.
        (Some(value), Some(by)) => (by == 0, by != 0 && value.wrapping_rem(by) == 0),
        _ => match (real(value), real(by)) {
            (Some(value), Some(by)) => (by == 0.0, value % by == 0.0),
            _ => (false, false),
        },
    };
    if is_zero { Err(budget::refusal("divided by zero")) } else { Ok(is_divisible) }
}

/// The functions `range`, `dict` and `namespace`.
pub(super) fn add_functions(environment: &mut Environment<'_>) {
    environment.add_function("range", range);
    environment.add_function("dict", |value: Option<Value>, pairs: Kwargs| {
        let given = value.as_ref().and_then(Value::len).unwrap_or_default();
        spend(OBJECT_BYTES + (given + pairs.args().count()) * budget::PAIR_BYTES)?;
        let made = minijinja::functions::dict(value, pairs)?;
        check_nesting(&made, Holder::Container, 0)?;
        Ok::<_, Error>(made)
    });
    environment.add_function(
        "namespace",
        |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            let pairs: usize = args.iter().map(|arg| arg.len().unwrap_or_default()).sum();
            spend(OBJECT_BYTES + NAMESPACE_BYTES + pairs * budget::PAIR_BYTES)?;
            for arg in args.iter() {
                check_nesting(arg, Holder::Namespace, 0)?;
            }
            Value::from_function(minijinja::functions::namespace).call(state, &args)
        },
    );
}

/// Price of a namespace, which begins with room for eleven names.
const NAMESPACE_BYTES: usize = 512;

/// Python's `range`, of numbers that are counted when they are used.
fn range(first: i64, second: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    const ITEMS_MAX: i128 = 100_000;
    let (start, stop) = second.map_or((0, first), |stop| (first, stop));
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step.unwrap_or(1)));
    if step == 0 {
        return Err(budget::refusal("cannot create range with step of 0"));
    }
    let distance = if step > 0 { stop - start } else { start - stop };
    let items = (distance.max(0) + step.abs() - 1) / step.abs();
    if items > ITEMS_MAX {
        return Err(budget::refusal(format!("a range of {items} numbers, at most {ITEMS_MAX}")));
    }
    spend(OBJECT_BYTES)?;
    let items = usize::try_from(items).expect("at most a hundred thousand");
    Ok(Value::make_iterable(move || {
        // Every number lies between two of 64 bits.
        (0..items).map(move |at| (start + at as i128 * step) as i64)
    }))
}
