//! Cuts of a model's answer change no thought, text or call, in any family.
//!
//! An input is an answer, then a zero byte, the numbers of the families of calls and of thoughts, and
//! the sizes of the pieces. The highest bit of the second number says that the prompt opened thoughts,
//! and the next one that it began the message before the answer's first new line.

use crate::split;
use stator_api::json::Json;
use stator_api::tools::Function;
use stator_markup::families::{REASONING, TOOLS};
use stator_markup::tools::KnownTools;
use stator_markup::{OutputEvent, OutputParser};

/// The schema of the functions `f` and `g`: every type, references and nested values.
const SCHEMA: &str = r##"{"properties": {"n": {"type": "integer"}, "s": {"type": "string"},
    "o": {"type": "object", "properties": {"k": {"type": "array", "items": {"type": "number"}}}},
    "l": {"type": "array", "items": {"$ref": "#/properties/o"}}, "b": {"type": ["boolean", "null"]},
    "a": {"anyOf": [{"$ref": "#"}, {"type": "string"}]}}}"##;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (answer, rest) = split(input);
    let (families, sizes) =
        rest.split_first_chunk().map_or(([0, 0], rest), |(it, rest)| (*it, rest));
    let answer = String::from_utf8_lossy(answer);
    let (begun, answer) = match answer.split_once('\n') {
        Some((begun, answer)) if families[1] & 0x40 != 0 => (Some(begun), answer),
        _ => (None, &*answer),
    };
    let whole = told(families, begun, &[answer]);
    assert_eq!(told(families, begun, &pieces(answer, sizes)), whole);
}

/// The text in pieces of so many characters plus one, over and over; without sizes, in single ones.
fn pieces<'a>(text: &'a str, sizes: &[u8]) -> Vec<&'a str> {
    let sizes = if sizes.is_empty() { &[0] } else { sizes };
    let mut rest = text;
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let end = rest.char_indices().nth(usize::from(*size) + 1).map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Sum of the pieces' events: calls in the order of their beginnings.
fn told(
    [calls, thoughts]: [u8; 2],
    begun: Option<&str>,
    pieces: &[&str],
) -> (String, String, Vec<(String, String)>) {
    let inside = thoughts & 0x80 != 0;
    let thoughts = &REASONING[usize::from(thoughts & 0x3f) % REASONING.len()];
    let calls = &TOOLS[usize::from(calls) % TOOLS.len()];
    let schema: Json<'_> = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let parameters = Some(schema.into_owned());
    let function = |name: &'static str| Function {
        name: name.into(),
        parameters: parameters.clone(),
        strict: false,
        custom: None,
    };
    let known = KnownTools::new(vec![function("f"), function("g")]);
    let parser = OutputParser::new(Some(thoughts), Some(calls), known, inside);
    let mut parser = parser.going_on(begun);
    let (mut reasoning, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    let mut open = 0usize;
    let mut sink = |event: OutputEvent<'_>| match event {
        OutputEvent::Reasoning(piece) => reasoning.push_str(piece),
        OutputEvent::Text(piece) => text.push_str(piece),
        OutputEvent::CallStart { name, .. } => {
            assert!(!name.is_empty() && open == 0);
            open += 1;
            calls.push((name.to_owned(), String::new()));
        }
        OutputEvent::Arguments(piece) => {
            assert_eq!(open, 1);
            calls.last_mut().expect("a call is open").1.push_str(piece);
        }
        OutputEvent::CallEnd => {
            assert_eq!(open, 1);
            open -= 1;
        }
    };
    pieces.iter().for_each(|piece| parser.push(piece, &mut sink));
    parser.finish(&mut sink);
    assert_eq!(open, 0, "every call ends");
    (reasoning, text, calls)
}
