//! The grammar of a custom tool becomes a form of its calls' inputs, or a fault with its place. The form
//! holds what the built-in engine reads out of the grammar itself, and the input is read out of a call
//! wherever its arguments are cut.
//!
//! An input is a grammar, a zero byte, its kind, and bytes that choose an input of it.

use crate::grammars::{ANSWER_MAX, END, FACTORY, allowed};
use crate::{cut, split};
use serde_json::{Value, json};
use stator_api::custom_tools::{InputReader, arguments_of};
use stator_api::openai::chat;
use stator_api::tools::CustomInput;
use stator_guide::Guide;
use stator_protos::worker::guide::Form;

/// Longest character in UTF-8, in bytes.
const CHAR_MAX_BYTES: usize = 4;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (definition, steering) = split(input);
    let (kind, choices) = steering.split_first().unwrap_or((&0, &[]));
    let definition = String::from_utf8_lossy(definition).into_owned();
    read_in_pieces(&definition, choices);
    let (syntax, own) = match kind % 2 {
        // The engine would take it for a grammar in EBNF.
        0 if definition.contains("::=") => return,
        0 => ("lark", Form::Grammar(definition.clone())),
        _ => ("regex", Form::Regex(definition.clone())),
    };
    let Some(held) = held(syntax, &definition) else { return };
    let [Ok(held), Ok(own)] = [&Form::Grammar(held), &own].map(|form| FACTORY.compile(form)) else {
        return;
    };
    follow(own, held, choices);
}

/// The form that a call's input gets; none for a grammar that is refused.
fn held(syntax: &str, definition: &str) -> Option<String> {
    let grammar =
        json!({"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}});
    let tool = json!({"type": "custom", "custom": {"name": "f", "format": grammar}});
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = json!({"model": "m", "messages": messages, "tools": [tool]}).to_string();
    match chat::read(body.as_bytes()) {
        Ok(request) => match request.tools?.functions.pop()?.custom? {
            CustomInput::Grammar(ebnf) => Some(ebnf),
            CustomInput::Text => panic!("the tool has a grammar"),
        },
        Err(error) => {
            let param = "tools[0].custom.format.grammar.definition";
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
            assert!(error.message.starts_with(&format!("{param}: line ")), "{error}");
            None
        }
    }
}

/// Takes an input that the engine's own reading allows; the form allows it in its JSON string.
fn follow(mut own: Guide, mut held: Guide, choices: &[u8]) {
    let mut character = Vec::new();
    for choice in choices.iter().take(ANSWER_MAX) {
        let tokens: Vec<u32> = allowed(&own).filter(|id| *id <= END).collect();
        let Some(token) = tokens.get(usize::from(*choice) % tokens.len().max(1)) else { return };
        own.advance(*token);
        if *token == END {
            let next: Vec<u32> = allowed(&held).collect();
            assert!(next.is_empty() || next.contains(&END), "the input may end");
            return;
        }
        character.push(*token as u8);
        let Ok(text) = std::str::from_utf8(&character) else {
            // Bytes that are no text stand in no JSON.
            if character.len() >= CHAR_MAX_BYTES {
                return;
            }
            continue;
        };
        let escaped = Value::from(text).to_string();
        for byte in escaped[1..escaped.len() - 1].bytes() {
            let next: Vec<u32> = allowed(&held).collect();
            // A grammar near its limits ends its answer.
            if next.is_empty() {
                return;
            }
            assert!(next.contains(&byte.into()), "{text:?} goes on with an input");
            held.advance(byte.into());
        }
        character.clear();
    }
}

/// Any text is read out of the arguments of its call, however they are cut; other arguments alike.
fn read_in_pieces(text: &str, sizes: &[u8]) {
    let arguments = arguments_of(text.into());
    assert_eq!(read([&*arguments]), text);
    for arguments in [&*arguments, text] {
        let pieces: Vec<_> = cut(arguments.as_bytes(), sizes);
        let mut ends = pieces.iter().scan(0, |end, piece| {
            *end += piece.len();
            Some(*end)
        });
        let mut begin = 0;
        let pieces = std::iter::from_fn(|| {
            let end = ends.find(|end| arguments.is_char_boundary(*end))?;
            Some(&arguments[std::mem::replace(&mut begin, end)..end])
        });
        assert_eq!(read(pieces), read([arguments]));
    }
}

fn read<'p>(pieces: impl IntoIterator<Item = &'p str>) -> String {
    let (mut reader, mut input) = (InputReader::default(), String::new());
    pieces.into_iter().for_each(|piece| reader.push(piece, &mut input));
    reader.finish(&mut input);
    input
}
