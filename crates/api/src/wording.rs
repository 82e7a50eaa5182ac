//! Faults of JSON in a client's words: the parser's own speak of Rust types.

/// Longest piece of the client's own text that is repeated, in characters.
const FOUND_MAX_CHARS: usize = 80;

/// The fault of the value at `path`, which is empty for the body itself, from the parser's `fault`.
pub(crate) fn fault(path: &str, fault: &str) -> String {
    let fault = without_place(fault);
    let place = if path.is_empty() { "the body" } else { path };
    let mistake = ["invalid type: ", "invalid value: "].into_iter();
    let mistake = mistake.filter_map(|kind| fault.strip_prefix(kind)).next();
    if let Some((found, expected)) = mistake.and_then(|it| it.rsplit_once(", expected ")) {
        return format!("{place} must be {}, not {}", wanted(expected), found_words(found));
    }
    if let Some(name) = fault.strip_prefix("missing field ") {
        return format!("{place} has no {}", name.trim_matches('`'));
    }
    match fault.strip_prefix("unknown variant ").and_then(|it| it.split_once(", expected ")) {
        Some((found, expected)) => {
            let found = cut(found.trim_matches('`'));
            format!("{place} must be {}, not {found:?}", expected.replace('`', "\""))
        }
        None => format!("{place}: {fault}"),
    }
}

/// A fault without line and column, which say less than the path.
fn without_place(fault: &str) -> &str {
    match fault.rsplit_once(" at line ") {
        Some((fault, place)) if place.contains(" column ") => fault,
        _ => fault,
    }
}

fn wanted(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "i64" => "an integer",
        "u32" => "an integer in 0..=4294967295",
        "u64" => "an integer that is not negative",
        "a sequence" => "a list",
        "a map" => "an object",
        other => other,
    }
}

fn found_words(found: &str) -> String {
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the string {}", cut(text));
    }
    let number = ["integer ", "floating point "].into_iter();
    if let Some(number) = number.filter_map(|kind| found.strip_prefix(kind)).next() {
        return format!("the number {}", number.trim_matches('`'));
    }
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        other => cut(other.trim_start_matches("boolean ").trim_matches('`')),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(FOUND_MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_without_rust_types() {
        for (told, expected) in [
            (
                r#"invalid type: string "hot", expected f64 at line 1 column 9"#,
                r#"n must be a number, not the string "hot""#,
            ),
            (
                "invalid type: floating point `1.5`, expected i64",
                "n must be an integer, not the number 1.5",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "n must be an integer in 0..=4294967295, not the number -1",
            ),
            ("invalid type: map, expected a sequence", "n must be a list, not an object"),
            ("invalid type: sequence, expected an object", "n must be an object, not a list"),
            ("invalid type: boolean `true`, expected a string", "n must be a string, not true"),
            ("invalid type: null, expected a string", "n must be a string, not null"),
            ("missing field `type`", "n has no type"),
            (
                "unknown variant `bot`, expected one of `system`, `user`",
                r#"n must be one of "system", "user", not "bot""#,
            ),
            ("content is required for role `user`", "n: content is required for role `user`"),
        ] {
            assert_eq!(fault("n", told), expected);
        }
        assert_eq!(
            fault("", "invalid type: sequence, expected an object"),
            "the body must be an object, not a list"
        );
        let long = format!(r#"invalid type: string "{}", expected i64"#, "é".repeat(500));
        assert!(fault("n", &long).chars().count() < 140);
    }
}
