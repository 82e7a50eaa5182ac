//! Sizes as people write them.

/// Units of a number, each with its bytes; a `b` may follow each.
const UNITS: [(&str, u64); 7] = [
    ("", 1),
    ("k", 1_000),
    ("ki", 1 << 10),
    ("m", 1_000_000),
    ("mi", 1 << 20),
    ("g", 1_000_000_000),
    ("gi", 1 << 30),
];

/// Bytes of a text such as `512MB` or `2 GiB`, in letters of any case; `None` if it is no size.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.parse().ok()?;
    Some((number * *size as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal_or_binary() {
        let check = |text, wanted| assert_eq!(parse_bytes(text), wanted, "{text}");
        check("17", Some(17));
        check("2GiB", Some(2 << 30));
        check("1.5 mb", Some(1_500_000));
        check("4Ki", Some(4096));
        check("8 b", Some(8));
        for text in ["", "GiB", "2 elephants", "2bb", "-1", "1.2.3"] {
            check(text, None);
        }
    }
}
