//! Cuts of a model's answer change no thought, text or call, in any family.
//!
//! An input is an answer, then a zero byte, the family's number, and the sizes of the pieces.

use crate::split;
use stator_markup::families::{REASONING, TOOLS};
use stator_markup::tools::KnownTools;
use stator_markup::{OutputEvent, OutputParser};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (answer, rest) = split(input);
    let (family, sizes) = rest.split_first().map_or((0, rest), |(first, rest)| (*first, rest));
    let answer = String::from_utf8_lossy(answer);
    let whole = told(usize::from(family), &[&answer]);
    assert_eq!(told(usize::from(family), &pieces(&answer, sizes)), whole);
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
fn told(family: usize, pieces: &[&str]) -> (String, String, Vec<(String, String)>) {
    let calls = &TOOLS[family % TOOLS.len()];
    let thoughts = &REASONING[family % REASONING.len()];
    let inside = family.is_multiple_of(2);
    let mut parser = OutputParser::new(Some(thoughts), Some(calls), KnownTools::default(), inside);
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
