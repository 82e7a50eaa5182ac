//! Values of arguments: how they are read, and how reports show them.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A time in reports: a number of seconds.
pub(super) fn seconds<S: Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

/// A file in reports: its name alone, since reports travel further than folders do.
pub(super) fn file_name<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let name = path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    name.serialize(serializer)
}

/// A number or a fraction such as `1/32`, within limits.
pub(super) fn number(text: &str, limits: RangeInclusive<f64>) -> Result<f64, String> {
    let value = match text.split_once('/') {
        Some((over, under)) => parse(over)? / parse(under)?,
        None => parse(text)?,
    };
    if limits.contains(&value) {
        return Ok(value);
    }
    Err(format!("{value} is not in {}..={}", limits.start(), limits.end()))
}

fn parse(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a number"))
}

/// A time with a unit, or a number of seconds; 1 ms to 7 days.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (value, factor) = found.unwrap_or((text, 1.0));
    let seconds = parse(value)? * factor;
    if (0.001..=604_800.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("{seconds} s is not in 0.001..=604800 s"))
}

/// The fields of a JSON object, without its braces.
pub(super) fn json_object(text: &str) -> Result<String, String> {
    let fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
    let owned = [
        "model",
        "prompt",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
    ];
    if let Some(name) = owned.iter().find(|name| fields.contains_key(**name)) {
        return Err(format!("{name:?} is set by other flags"));
    }
    Ok(serde_json::Value::Object(fields).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions_are_understood() {
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(number("1/32", 0.0..=1.0), Ok(0.03125));
        assert!(number("NaN", 0.0..=1.0).is_err());
    }
}
