//! Numbers as people read them: three significant digits, thousands apart.

/// A number with about three significant digits.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    grouped(&format!("{value:.digits$}"))
}

/// A number with about three significant digits, without decimals where it is a whole one.
pub fn count_or_short(value: f64) -> String {
    if value.fract() == 0.0 { grouped(&format!("{value:.0}")) } else { short(value) }
}

/// A whole number.
pub fn whole(value: u64) -> String {
    grouped(&value.to_string())
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A size in megabytes.
pub fn megabytes(bytes: u64) -> String {
    format!("{} MB", short(bytes as f64 / 1e6))
}

/// Puts commas between the thousands before the decimal point.
fn grouped(number: &str) -> String {
    let (sign, rest) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (before, after) =
        rest.split_once('.').map_or((rest, None), |(before, after)| (before, Some(after)));
    let mut text = sign.to_owned();
    for (index, digit) in before.chars().enumerate() {
        if index > 0 && (before.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(after) = after {
        text.push('.');
        text.push_str(after);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let texts = [0.0, 0.01234, 1.2345, 12.345, 123.45, 1_234_567.8, -4_321.0].map(short);
        assert_eq!(texts, ["0", "0.012", "1.23", "12.3", "123", "1,234,568", "-4,321"]);
        assert_eq!(
            (whole(1_000), percent(0.1234), megabytes(52_400_000)),
            ("1,000".into(), "12.3 %".into(), "52.4 MB".into())
        );
    }
}
