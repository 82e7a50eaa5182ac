//! The units of Kubernetes and Go: quantities such as `10Gi`, durations such as `1m30s`.

use std::time::Duration;

/// Factors of quantity suffixes, as numerator and denominator.
///
/// Source: Kubernetes resource quantities.
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("", 1, 1),
];

/// A decimal number: its digits without the point, and how many of them stand behind it.
struct Decimal {
    digits: u128,
    places: u32,
}

/// Parses a quantity; a part of one counts as one, as in Kubernetes.
///
/// # Errors
///
/// Says what is wrong with it, as the end of a sentence that begins with a path.
pub fn parse_quantity(text: &str) -> Result<u64, String> {
    let (unsigned, negative) = match text.strip_prefix('-') {
        Some(rest) => (rest, true),
        None => (text.strip_prefix('+').unwrap_or(text), false),
    };
    match quantity(unsigned) {
        None => Err(format!("{text:?} is not a quantity such as 100, 1k, 512M or 10Gi")),
        Some(1..) if negative => Err(format!("{text} is less than 0")),
        Some(value) => i64::try_from(value)
            .map(i64::unsigned_abs)
            .map_err(|_| format!("{text} is more than {}", i64::MAX)),
    }
}

/// Parses a duration as Go writes it, such as `1m30s`.
///
/// # Errors
///
/// The text is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    stator_protos::duration::parse(text)
        .ok_or_else(|| format!("{text:?} is not a duration such as 200ms, 60s or 1m30s"))
}

/// A duration as Go would write it.
pub(crate) fn format_duration(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (0, 0) => "0s".to_owned(),
        (0, nanos) if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        (0, nanos) if nanos % 1_000 == 0 => format!("{}us", nanos / 1_000),
        (0, nanos) => format!("{nanos}ns"),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, nanos) => {
            format!("{seconds}.{}s", format!("{nanos:09}").trim_end_matches('0'))
        }
    }
}

/// A quantity without a sign, rounded up. What is too large to compute is the largest number.
fn quantity(text: &str) -> Option<u128> {
    let (number, rest) = decimal(text)?;
    let (numerator, denominator) = match exponent(rest) {
        Some(exponent) if exponent >= 0 => (10u128.pow(exponent.unsigned_abs()), 1),
        Some(exponent) => (1, 10u128.pow(exponent.unsigned_abs())),
        None => {
            let known = SUFFIXES.iter().find(|(suffix, ..)| *suffix == rest)?;
            (known.1, known.2)
        }
    };
    let value = number.digits.saturating_mul(numerator);
    Some(value.div_ceil(denominator * 10u128.pow(number.places)))
}

/// The number at the start of a text, and what follows it. At most 20 digits, so that nothing
/// that is computed from them is too large.
fn decimal(text: &str) -> Option<(Decimal, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{part}");
    if digits.is_empty() || digits.len() > 20 || part.contains('.') {
        return None;
    }
    let places = u32::try_from(part.len()).ok()?;
    Some((Decimal { digits: digits.parse().ok()?, places }, rest))
}

/// The exponent of `e3` or `E-2`; at most 18, so that its power fits.
fn exponent(text: &str) -> Option<i32> {
    let number = text.strip_prefix(['e', 'E'])?;
    number.parse().ok().filter(|exponent| (-18..=18).contains(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: Result<u64, &str>) {
        assert_eq!(parse_quantity(text), expected.map_err(str::to_owned));
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        check("0", Ok(0));
        check("-0", Ok(0));
        check("500", Ok(500));
        check("1k", Ok(1_000));
        check("512M", Ok(512_000_000));
        check("10Gi", Ok(10 << 30));
        check("1.5Ki", Ok(1_536));
        check("1500m", Ok(2));
        check("2e3", Ok(2_000));
        check("2E", Ok(2_000_000_000_000_000_000));
        check("+7", Ok(7));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        check("", Err("\"\" is not a quantity such as 100, 1k, 512M or 10Gi"));
        check("10 Gi", Err("\"10 Gi\" is not a quantity such as 100, 1k, 512M or 10Gi"));
        check("10gb", Err("\"10gb\" is not a quantity such as 100, 1k, 512M or 10Gi"));
        check("1.2.3", Err("\"1.2.3\" is not a quantity such as 100, 1k, 512M or 10Gi"));
        check("--1", Err("\"--1\" is not a quantity such as 100, 1k, 512M or 10Gi"));
        check("-5", Err("-5 is less than 0"));
        check("10E", Err("10E is more than 9223372036854775807"));
        check(
            "99999999999999999999Ei",
            Err("99999999999999999999Ei is more than 9223372036854775807"),
        );
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_as_itself(ms in 0..=1_000_000_000_u64) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn whole_numbers_are_quantities(value in 0..=i64::MAX.unsigned_abs()) {
            prop_assert_eq!(parse_quantity(&value.to_string()), Ok(value));
        }

        #[test]
        fn no_text_is_too_odd_for_a_quantity(text in "\\PC{0,12}", digits in "[-+0-9.eEkimuGhsn]{0,40}") {
            for text in [text, digits] {
                let _ = parse_quantity(&text);
            }
        }
    }
}
