//! The reader of answers, for fuzz targets.

use crate::answer::{AnswerReader, CALLS_MAX, Piece};
use crate::screen::{Screen, Shows};
use serde_json::Value;

/// A stream is the same answer, or none, wherever it is cut. Its parts make up the message that stands
/// in the conversation, and a terminal gets no control characters.
pub fn answer(whole: &[u8], cut: &[&[u8]]) {
    let (in_pieces, shown) = read(cut);
    assert_eq!(read(&[whole]), (in_pieces.clone(), shown.clone()));
    let text: String = shown
        .iter()
        .filter_map(|piece| match piece {
            Piece::Text(text) => Some(&**text),
            Piece::Reasoning(_) => None,
        })
        .collect();
    let mut out = Vec::new();
    let mut screen =
        Screen::new(&mut out, Shows { reasoning: true, colour: false, is_terminal: true });
    shown.iter().for_each(|piece| screen.show(piece).expect("a vector takes all"));
    match in_pieces {
        Ok(message) => {
            let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
            assert!(calls <= CALLS_MAX, "{calls}");
            assert_eq!(message["content"].as_str().unwrap_or_default(), text);
        }
        Err(error) => out.extend_from_slice(error.as_bytes()),
    }
    let out = String::from_utf8(out).expect("text is printed");
    assert!(!out.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')), "{out:?}");
}

/// The message or the error, and the parts that were shown.
fn read(pieces: &[&[u8]]) -> (Result<Value, String>, Vec<Piece>) {
    let (mut reader, mut shown) = (AnswerReader::default(), Vec::new());
    let mut show = |piece| {
        shown.push(piece);
        Ok(())
    };
    let fed = pieces.iter().try_for_each(|piece| reader.feed(piece, &mut show));
    let read = fed.and_then(|()| reader.finish());
    (read.map(|answer| answer.message()).map_err(|error| format!("{error:#}")), shown)
}
