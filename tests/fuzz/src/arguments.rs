//! The arguments of a call are an object, whatever their text is. Of the text of an object that was cut
//! anywhere, no member before the last is lost, and the last only within a word or a number.

use stator_api::json::Json;
use stator_api::partial_json::{arguments, is_object};

/// Most places at which a text is cut.
const CUTS_MAX: usize = 128;
/// Deepest nesting whose end is found.
const DEPTH_MAX: usize = 64;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let whole = members(text);
    let written = serde_json::to_string(&Json::Object(whole.clone())).expect("JSON can be written");
    assert!(is_object(&written), "{written}");
    if !is_object(text) {
        return;
    }
    assert_eq!(Json::read(text).ok(), Some(Json::Object(whole.clone())));
    let step = text.len() / CUTS_MAX + 1;
    let cuts = (1..text.len()).step_by(step).filter(|cut| text.is_char_boundary(*cut));
    for begun in cuts.map(|cut| &text[..cut]).filter(|begun| !begun.trim().is_empty()) {
        let found = members(begun);
        let stands_whole = matches!(&found[..], [(_, Json::Str(kept))] if kept == begun);
        if stands_whole {
            assert!(
                ends_in_a_word(begun) || Json::Object(whole.clone()).depth() >= DEPTH_MAX,
                "{begun}"
            );
            continue;
        }
        let kept = found.len().saturating_sub(1);
        assert_eq!(found[..kept], whole[..kept], "{begun}");
    }
}

fn members(text: &str) -> Vec<(std::borrow::Cow<'_, str>, Json<'_>)> {
    match arguments(text) {
        Json::Object(members) => members,
        other => panic!("arguments are an object: {other:?}"),
    }
}

/// Whether the text of an object was cut within a number or a word like `true`.
fn ends_in_a_word(begun: &str) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    for byte in begun.bytes() {
        (in_string, escaped) = match (in_string, escaped, byte) {
            (true, false, b'\\') => (true, true),
            (_, false, b'"') => (!in_string, false),
            _ => (in_string, false),
        };
    }
    let is_of_a_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    !in_string && begun.as_bytes().last().is_some_and(is_of_a_word)
}
