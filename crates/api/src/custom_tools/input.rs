//! The input of a custom tool's call, read out of a function's arguments as they come.
//!
//! To a model a custom tool is a function of the one string `input`. A model that writes other
//! arguments meant those: they are the input, as they stand.

use crate::json::Json;
use crate::tree::object;
use std::borrow::Cow;

/// The one parameter of the function that a custom tool is to a model.
pub(super) const INPUT: &str = "input";
/// Text before the input, where blanks may stand between any two of its words.
const HEAD: [&str; 4] = ["{", "\"input\"", ":", "\""];
/// Longest text before the input that is waited for, in bytes.
const HEAD_MAX_BYTES: usize = 256;

/// The arguments of the function call that stands for a custom tool's.
pub fn arguments_of(input: Cow<'_, str>) -> String {
    let arguments = object([(INPUT, Json::Str(input))]);
    serde_json::to_string(&arguments).expect("JSON that was read can be written")
}

/// Reads the input of one call. However the arguments are cut into pieces, the input is the same.
#[derive(Clone, Debug, Default)]
pub struct InputReader {
    state: InputState,
    /// Text that may still be the head, or an escape that is not whole.
    held: String,
    /// The first half of a character beyond 16 bits.
    half: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InputState {
    /// Before the input.
    #[default]
    Head,
    /// In the string of the input.
    Text,
    /// Behind the input: the end of the arguments.
    Tail,
    /// In arguments that are of another form.
    Raw,
}

impl InputReader {
    /// Takes the next piece of arguments; appends the input in it to `input`.
    pub fn push(&mut self, piece: &str, input: &mut String) {
        for c in piece.chars() {
            self.take(c, input);
        }
    }

    /// Appends what was held back: no more arguments come.
    pub fn finish(&mut self, input: &mut String) {
        if self.half.take().is_some() {
            input.push(char::REPLACEMENT_CHARACTER);
        }
        // A cut escape is no character; a cut head is all that there is.
        if self.state == InputState::Head {
            input.push_str(&self.held);
        }
        self.held.clear();
        self.state = InputState::Tail;
    }

    fn take(&mut self, c: char, input: &mut String) {
        match self.state {
            InputState::Head => {
                self.held.push(c);
                match head(&self.held) {
                    Some(true) => {
                        self.held.clear();
                        self.state = InputState::Text;
                    }
                    Some(false) if self.held.len() <= HEAD_MAX_BYTES => {}
                    _ => {
                        input.push_str(&self.held);
                        self.held.clear();
                        self.state = InputState::Raw;
                    }
                }
            }
            InputState::Text if !self.held.is_empty() => self.escape(c, input),
            InputState::Text => match c {
                '\\' => self.held.push(c),
                '"' => {
                    self.end_half(input);
                    self.state = InputState::Tail;
                }
                c => {
                    self.end_half(input);
                    input.push(c);
                }
            },
            InputState::Tail => {}
            InputState::Raw => input.push(c),
        }
    }

    /// Takes a character of an escape, of which the sign is held at least.
    fn escape(&mut self, c: char, input: &mut String) {
        self.held.push(c);
        if self.held.starts_with("\\u") && self.held.len() < "\\u0000".len() && c.is_ascii() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let code = held.strip_prefix("\\u").and_then(|code| u32::from_str_radix(code, 16).ok());
        match (self.half.take(), code) {
            (None, Some(high @ 0xd800..=0xdbff)) => self.half = Some(high),
            (Some(high), Some(low @ 0xdc00..=0xdfff)) => {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                input.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (half, code) => {
                if half.is_some() {
                    input.push(char::REPLACEMENT_CHARACTER);
                }
                match code {
                    Some(high @ 0xd800..=0xdbff) => self.half = Some(high),
                    Some(code) => {
                        input.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    None => push_escaped(&held, input),
                }
            }
        }
    }

    /// Half of a character, of which the other half did not come, is none.
    fn end_half(&mut self, input: &mut String) {
        if self.half.take().is_some() {
            input.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends the character of a short escape; one that is none stands for itself.
fn push_escaped(escape: &str, input: &mut String) {
    input.push(match escape {
        "\\n" => '\n',
        "\\r" => '\r',
        "\\t" => '\t',
        "\\b" => '\u{8}',
        "\\f" => '\u{c}',
        "\\\"" => '"',
        "\\\\" => '\\',
        "\\/" => '/',
        other => return input.push_str(other),
    });
}

/// Whether a text is the whole head (true), the beginning of it (false), or neither.
fn head(text: &str) -> Option<bool> {
    let mut rest = text;
    for word in HEAD {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        match rest.strip_prefix(word) {
            Some(behind) => rest = behind,
            None => return word.starts_with(rest).then_some(false),
        }
    }
    Some(rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&str]) -> String {
        let (mut reader, mut input) = (InputReader::default(), String::new());
        pieces.iter().for_each(|piece| reader.push(piece, &mut input));
        reader.finish(&mut input);
        input
    }

    #[test]
    fn an_input_is_what_its_arguments_hold() {
        for input in ["", "*** Begin\n\"x\" \\ é", "{}", "\u{0}\u{1f}\u{7f}😀\t/"] {
            assert_eq!(read(&[&arguments_of(input.into())]), input);
        }
        assert_eq!(read(&[r#" { "input" : "a\ud83d\ude00\/\u00e9\q" , "b": "c" }"#]), "a😀/é\\q");
        assert_eq!(read(&[r#"{"input":"\ud83dx\udc00\ud83d"#]), "\u{fffd}x\u{fffd}\u{fffd}");
    }

    #[test]
    fn other_arguments_are_the_input() {
        let blanks = " ".repeat(400);
        for other in ["", "plain", "[1]", r#"{"patch":"x"}"#, r#"{"input":7}"#, "{\"inp", &blanks] {
            assert_eq!(read(&[other]), other);
        }
        assert_eq!(read(&["{\"input\":\"x"]), "x", "what came of a cut input");
    }

    proptest! {
        /// However arguments are cut, the input is the same; and that of written arguments is what was
        /// written.
        #[test]
        fn cutting_changes_nothing(
            input in "(?s)[a\\n\"\\\\{}😀\u{0}é]{0,12}",
            raw in r#"\{ ?"input" ?: ?"([ab]|\\u(d83d|de00|00e9)|\\[nq"\\]){0,6}("\})?|[{"inp:7}]{0,8}"#,
            cuts in prop::collection::vec(0.0..1.0, 0..4),
        ) {
            let written = arguments_of(input.clone().into());
            for arguments in [&written, &raw] {
                let mut places: Vec<usize> = cuts.iter()
                    .map(|cut| arguments.floor_char_boundary((cut * arguments.len() as f64) as usize))
                    .chain([0, arguments.len()])
                    .collect();
                places.sort_unstable();
                let pieces: Vec<_> =
                    places.windows(2).map(|ends| &arguments[ends[0]..ends[1]]).collect();
                prop_assert_eq!(read(&pieces), read(&[arguments]), "{:?}", pieces);
            }
            prop_assert_eq!(read(&[&written]), input);
        }
    }
}
