//! Lengths of time as headers and configurations write them.

use std::time::Duration;

/// A length of time as Go writes it: numbers with units `ns`, `us`, `ms`, `s`, `m`, `h`, one
/// after the other; `"0"` needs none. `None` if it is not one, or is negative.
///
/// Source: `time.ParseDuration` of Go.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let length = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..length] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[length..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok())?
}

/// A length of time as a number of milliseconds above 0, with or without a fraction. `None` if it is
/// not one.
pub fn milliseconds(text: &str) -> Option<Duration> {
    let ms = text.trim().parse::<f64>().ok().filter(|ms| *ms > 0.0)?;
    Duration::try_from_secs_f64(ms / 1000.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let check = |text, wanted| assert_eq!(parse(text), wanted, "{text:?}");
        check("1m30s", Some(Duration::from_secs(90)));
        check("1.5h", Some(Duration::from_secs(5400)));
        check("200ms", Some(Duration::from_millis(200)));
        check("0", Some(Duration::ZERO));
        for text in ["", "5", "s", "5x", "-1s", "1..2s", "é"] {
            check(text, None);
        }
    }
}
