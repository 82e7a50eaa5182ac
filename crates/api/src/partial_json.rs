//! Arguments of calls that are no JSON object: cut by `max_tokens`, or written wrong by the model.

use crate::json::Json;
use std::borrow::Cow;

/// The member that holds a text of which no object can be made.
const WHOLE_TEXT: &str = "arguments";
/// Deepest nesting that is completed.
const DEPTH_MAX: usize = 64;

/// The object that a text of arguments is, or begins. A cut object ends where its text ends; any
/// other text is the one member of an object.
pub fn arguments(text: &str) -> Json<'_> {
    let object = |text: &str| match Json::read(text) {
        Ok(object @ Json::Object(_)) => Some(object.into_owned()),
        _ => None,
    };
    if let Ok(whole @ Json::Object(_)) = Json::read(text) {
        return whole;
    }
    if text.trim().is_empty() {
        return Json::Object(Vec::new());
    }
    completions(text)
        .iter()
        .find_map(|text| object(text))
        .unwrap_or_else(|| Json::Object(vec![(WHOLE_TEXT.into(), Json::Str(Cow::Borrowed(text)))]))
}

/// Whether a text is one JSON object.
pub fn is_object(text: &str) -> bool {
    matches!(serde_json::from_str::<Json<'_>>(text), Ok(Json::Object(_)))
}

/// Ways to complete a text that was cut: as a value, behind a name, or before a further member.
fn completions(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let (mut closers, mut in_string, mut at) = (Vec::new(), false, 0);
    while at < bytes.len() {
        let mut length = 1;
        match (in_string, bytes[at]) {
            (true, b'\\') => length = escape_bytes(&bytes[at..]),
            (_, b'"') => in_string = !in_string,
            (true, _) => {}
            (false, b'{') => closers.push('}'),
            (false, b'[') => closers.push(']'),
            (false, b'}' | b']') => drop(closers.pop()),
            (false, _) => {}
        }
        if closers.len() > DEPTH_MAX {
            return Vec::new();
        }
        // Half an escape is nothing yet.
        if at + length > bytes.len() {
            break;
        }
        at += length;
    }
    let mut begun = text[..at].to_owned();
    if in_string {
        begun.push('"');
    }
    let closers: String = closers.iter().rev().collect();
    let before_comma = begun.trim_end().trim_end_matches(',').to_owned();
    let ends = [(&begun, ""), (&begun, "null"), (&begun, ":null"), (&before_comma, "")];
    ends.map(|(begun, end)| format!("{begun}{end}{closers}")).into()
}

/// Bytes that the escape at the beginning of `rest` has once it is whole: two for a letter, six for a
/// code unit, twelve for the two of one character.
fn escape_bytes(rest: &[u8]) -> usize {
    const UNIT: usize = "\\u0000".len();
    if rest.get(1) != Some(&b'u') {
        return 2;
    }
    let is_half = matches!(rest, [_, _, b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]);
    let goes_on =
        rest.get(UNIT..).is_none_or(|next| b"\\u".starts_with(next) || next.starts_with(b"\\u"));
    if is_half && goes_on { 2 * UNIT } else { UNIT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &str) {
        let found = serde_json::to_string(&arguments(text)).expect("it can be written");
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_cut_object_ends_where_its_text_ends() {
        check(r#"{"path":"a.txt","text":"hel"#, r#"{"path":"a.txt","text":"hel"}"#);
        check(r#"{"a":[1,{"b":tr"#, r#"{"arguments":"{\"a\":[1,{\"b\":tr"}"#);
        check(r#"{"a":[1,{"b":true"#, r#"{"a":[1,{"b":true}]}"#);
        check(r#"{"a":1,"#, r#"{"a":1}"#);
        check(r#"{"a":1,"b"#, r#"{"a":1,"b":null}"#);
        check(r#"{"a":1,"b":"#, r#"{"a":1,"b":null}"#);
        check(r#"{"a":"x\"#, r#"{"a":"x"}"#);
        check(r#"{"a":"x\u00e"#, r#"{"a":"x"}"#);
        check(r#"{"a":"x\u00e9"#, r#"{"a":"xé"}"#);
        check(r#"{"a":"x\ud83d\ude0"#, r#"{"a":"x"}"#);
        check(r#"{"a":"x\ud83d"#, r#"{"a":"x"}"#);
        check(r#"{"a":"x\ud83d\ude00"#, r#"{"a":"x😀"}"#);
        check(r#"{"a":"x\\ud83d"#, r#"{"a":"x\\ud83d"}"#);
        check("{", "{}");
        check(r#"{"a":36893488147419103232,"b""#, r#"{"a":36893488147419103232,"b":null}"#);
    }

    #[test]
    fn any_other_text_stays_as_it_is() {
        check(r#"{"a": 1}"#, r#"{"a":1}"#);
        check("  ", "{}");
        check("look here", r#"{"arguments":"look here"}"#);
        check("[1]", r#"{"arguments":"[1]"}"#);
    }

    proptest! {
        /// Whatever the text: the outcome is an object. Of one that was cut no complete text is lost.
        #[test]
        fn there_is_always_an_object(text in ".{0,40}", value in ".{0,12}", cut: prop::sample::Index) {
            prop_assert!(matches!(arguments(&text), Json::Object(_)));
            let whole = serde_json::json!({"a": value, "b": {"c": [value]}}).to_string();
            let cut = cut.index(whole.len() + 1);
            if let Some(begun) = whole.get(..cut).filter(|begun| !begun.is_empty()) {
                let Json::Object(members) = arguments(begun) else { panic!("an object") };
                prop_assert!(members.iter().all(|(name, _)| name != WHOLE_TEXT), "{}", begun);
            }
        }
    }
}
