//! YAML whose cost is bounded before it is decoded.
//!
//! The decoder reads a whole document before it looks at its depth, and for every token it looks at
//! every bracket that is open: 100,000 brackets took a picker seconds. So a streaming parser counts
//! first, and stops where the document is too deep.

use granit_parser::{Event, Parser};
use serde::de::DeserializeOwned;

/// Deepest nesting of a document. The decoder has the same limit.
pub const DEPTH_MAX: usize = 128;
/// Most directives (`%TAG`) of a document: each is compared with all before it.
const DIRECTIVES_MAX: usize = 16;

/// Decodes a document.
///
/// # Errors
///
/// For a text that is no YAML, that does not fit the type, or that is nested too deeply.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    check(text)?;
    serde_yaml_ng::from_str(text).map_err(|error| error.to_string())
}

/// Decodes a document from bytes.
///
/// # Errors
///
/// As [`from_str`], and for bytes that are not UTF-8.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    from_str(std::str::from_utf8(bytes).map_err(|error| error.to_string())?)
}

fn check(text: &str) -> Result<(), String> {
    let directives = text.split(['\n', '\r']).filter(|line| line.starts_with('%')).count();
    if directives > DIRECTIVES_MAX {
        return Err(format!("{directives} lines begin with %, at most {DIRECTIVES_MAX}"));
    }
    // Nearly every document has fewer brackets than levels that it may have.
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).take(DEPTH_MAX + 1);
    if brackets.count() <= DEPTH_MAX {
        return Ok(());
    }
    let mut depth = 0_usize;
    for event in Parser::new_from_str(text) {
        let (event, place) = event.map_err(|error| error.to_string())?;
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            let line = place.start.line();
            return Err(format!("nested deeper than {DEPTH_MAX} at line {line}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_yaml_ng::Value;

    #[test]
    fn a_document_that_is_too_deep_is_refused_before_it_is_decoded() {
        for text in [
            "[".repeat(100_000),
            "{a: ".repeat(100_000),
            format!("{}{}", "[".repeat(50_000), "]".repeat(50_000)),
            "[x ', ']', ".repeat(20_000),
            "[ # ]\n".repeat(20_000),
        ] {
            let error = check(&text).expect_err("it is too deep");
            let known = error.contains("nested deeper than 128") || error.contains("limit");
            assert!(known, "{error}");
            assert!(from_str::<Value>(&text).is_err());
        }
    }

    #[test]
    fn many_directives_are_refused() {
        let text: String = (0..20_000).map(|at| format!("%TAG !a{at}! b\n")).collect();
        let error = from_str::<Value>(&(text + "--- a")).expect_err("there are too many");
        assert!(error.contains("20000 lines"), "{error}");
    }

    #[test]
    fn a_flat_document_may_have_any_number_of_brackets() {
        let text: String = (0..1000)
            .map(|at| format!("- {{name: \"it's [{at}\", ports: [1, 2], note: isn't it}} # {{[\n"))
            .collect();
        let list: Vec<Value> = from_str(&text).expect("it is flat");
        assert_eq!(list.len(), 1000);
        let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
        assert!(from_slice::<Value>(deep.as_bytes()).is_ok());
        assert!(from_slice::<Value>(b"\xff").is_err());
    }
}
