//! Harmony, the format of gpt-oss: messages with channels and recipients.
//!
//! Source: OpenAI's "Harmony response format".

use crate::event::{EventSink, OutputEvent, OutputPlace, arguments, text};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::read_piece;

const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";

/// All special tokens of the format.
pub(crate) const MARKERS: [&str; 7] =
    [START, CHANNEL, MESSAGE, "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"];

/// Longest head of a message, in bytes; what is longer is text without a head.
const HEAD_MAX_BYTES: usize = 512;

/// An answer in Harmony. It begins in the head of a message whose start is in the prompt.
#[derive(Debug)]
pub(crate) struct Harmony {
    stage: Stage,
    head_end: MarkerSet,
    body_end: MarkerSet,
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Reasoning,
    Text,
    Call,
}

impl Default for Harmony {
    fn default() -> Self {
        Self {
            stage: Stage::Head,
            head_end: MarkerSet::new([MESSAGE, "<|end|>", "<|return|>", "<|call|>"]),
            body_end: MarkerSet::new(["<|end|>", "<|call|>", "<|return|>", START, CHANNEL]),
            held: String::new(),
        }
    }
}

impl Harmony {
    pub(crate) fn place(&self) -> OutputPlace {
        match self.stage {
            _ if !self.held.is_empty() => OutputPlace::Markup,
            Stage::Head | Stage::Call => OutputPlace::Markup,
            Stage::Reasoning => OutputPlace::Reasoning,
            Stage::Text => OutputPlace::Text,
        }
    }

    pub(crate) fn push(&mut self, piece: &str, sink: &mut dyn EventSink) {
        let held = std::mem::take(&mut self.held);
        self.held = read_piece(held, piece, |text| self.read(text, false, sink));
    }

    pub(crate) fn finish(&mut self, sink: &mut dyn EventSink) {
        let held = std::mem::take(&mut self.held);
        let read = self.read(&held, true, sink);
        let rest = &held[read..];
        match self.stage {
            // A head without a message is what the model said, unless it is nothing but a head.
            Stage::Head if !rest.contains("<|") && rest.trim() != "assistant" => text(sink, rest),
            Stage::Call => sink.take(OutputEvent::CallEnd),
            _ => {}
        }
        self.stage = Stage::Head;
    }

    fn read(&mut self, input: &str, last: bool, sink: &mut dyn EventSink) -> usize {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.stage {
                Stage::Head => match self.head_end.find(rest, last) {
                    MarkerSearch::Found { number: 0, start, end } if start <= HEAD_MAX_BYTES => {
                        self.begin(&rest[..start], sink);
                        at += end;
                    }
                    MarkerSearch::Found { number, end, .. } if number > 0 => at += end,
                    MarkerSearch::Nothing(safe) if safe <= HEAD_MAX_BYTES => return at,
                    _ => self.stage = Stage::Text,
                },
                _ => {
                    let found = self.body_end.find(rest, last);
                    let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) =
                        found;
                    self.tell(&rest[..safe], sink);
                    let MarkerSearch::Found { number, start, end } = found else {
                        return at + safe;
                    };
                    if self.stage == Stage::Call {
                        sink.take(OutputEvent::CallEnd);
                    }
                    self.stage = Stage::Head;
                    // A channel without a start belongs to the next head.
                    at += if self.body_end.marker(number) == CHANNEL { start } else { end };
                }
            }
        }
    }

    fn tell(&self, piece: &str, sink: &mut dyn EventSink) {
        match self.stage {
            _ if piece.is_empty() => {}
            Stage::Reasoning => sink.take(OutputEvent::Reasoning(piece)),
            Stage::Call => arguments(sink, piece),
            Stage::Head | Stage::Text => text(sink, piece),
        }
    }

    /// Begins the message of a head such as `assistant<|channel|>commentary to=functions.f `.
    fn begin(&mut self, head: &str, sink: &mut dyn EventSink) {
        let channel = head.split_once(CHANNEL).map_or("", |(_, rest)| word(rest));
        let recipient = head.split_once("to=").map(|(_, rest)| word(rest));
        let name = recipient.map(|to| to.strip_prefix("functions.").unwrap_or(to));
        self.stage = match (name.filter(|name| !name.is_empty()), channel) {
            (Some("assistant" | "user") | None, "analysis") => Stage::Reasoning,
            (Some("assistant" | "user") | None, _) => Stage::Text,
            (Some(name), _) => {
                sink.take(OutputEvent::CallStart { name, id: None });
                Stage::Call
            }
        };
    }
}

/// The letters and digits that a text begins with. Models put markers right behind names.
fn word(text: &str) -> &str {
    let text = text.trim_start();
    let of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    &text[..text.find(|c| !of_word(c)).unwrap_or(text.len())]
}
