//! Answers as messages, each with a head that says what its body is.
//!
//! Source: OpenAI's "Harmony response format"; the parsers of vLLM 0.32 for Muse Glimmer and Inkling.

use crate::event::{EventSink, OutputEvent, OutputPlace, arguments, text};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::notation::CallMarkup;
use crate::reader::{BoxedReader, ReaderOutcome, leading_space, read_piece};
use crate::tools::KnownTools;

/// The marker before the channel in a head of Harmony.
const CHANNEL: &str = "<|channel|>";
/// Text before the recipient in a head.
const RECIPIENT: &str = "to=";
/// A recipient in the middle of a body, where a model forgot the body's end.
const BARE_HEAD: &str = " to=";
/// Longest head of a message, in bytes; what is longer is text without a head.
const HEAD_MAX_BYTES: usize = 512;

/// The markup of a family that writes messages.
#[derive(Debug)]
pub struct ChannelMarkup {
    /// The marker that begins messages, at the end of a prompt among others.
    pub start: &'static str,
    /// Markers between a head and its body, each with what the body is.
    pub bodies: &'static [(&'static str, BodyKind)],
    /// Markers behind a body; one that a head may begin with is read again with the head.
    pub ends: &'static [&'static str],
    /// Other special tokens of heads.
    pub in_heads: &'static [&'static str],
    /// Notation of the calls in bodies; none where a head names the function and the body is its
    /// arguments.
    pub calls: Option<CallMarkup>,
    /// Whether a head may stand in a body whose end is missing.
    pub bare_heads: bool,
}

/// The meaning of a message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// Thoughts, text or a call, by the channel and the recipient in the head.
    ByHead,
    /// The answer's text.
    Text,
    /// Thoughts.
    Reasoning,
    /// Calls.
    Calls,
}

impl ChannelMarkup {
    /// All texts that its reader looks for.
    pub(crate) fn markers(&self) -> Vec<&'static str> {
        let bodies = self.bodies.iter().map(|(marker, _)| *marker);
        let own = bodies.chain(self.ends.iter().copied()).chain(self.in_heads.iter().copied());
        own.chain(self.calls.iter().flat_map(CallMarkup::markers)).collect()
    }

    /// The message that a prompt which ends with this text has begun, without the marker that
    /// begins it; none if the marker is not there.
    pub fn begun<'p>(&self, prompt_end: &'p str) -> Option<&'p str> {
        prompt_end.rfind(self.start).map(|at| &prompt_end[at + self.start.len()..])
    }

    /// Whether a marker behind a body belongs to the next message.
    fn begins_head(&self, marker: &str) -> bool {
        self.in_heads.contains(&marker)
            || marker == BARE_HEAD
            || self.bodies.iter().any(|(body, _)| *body == marker)
    }
}

/// An answer of messages. It begins in the head of a message whose start is in the prompt.
#[derive(Debug)]
pub(crate) struct ChannelOutput {
    markup: &'static ChannelMarkup,
    stage: Stage,
    head_end: MarkerSet,
    body_end: MarkerSet,
    calls: Option<BoxedReader>,
    held: String,
    /// Bytes of the head in `held` that stand in the prompt, and are no part of the answer.
    begun_bytes: usize,
    /// Text of a body of calls that its reader has not decided about.
    undecided: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Reasoning,
    Text,
    /// The arguments of the call in the head.
    Arguments,
    /// Calls in the family's notation.
    Calls,
}

impl ChannelOutput {
    /// A reader of this markup; `inside` says that the prompt has opened thoughts.
    pub(crate) fn new(markup: &'static ChannelMarkup, tools: KnownTools, inside: bool) -> Self {
        let bodies = || markup.bodies.iter().map(|(marker, _)| *marker);
        let ends = || markup.ends.iter().copied();
        let bare_head = markup.bare_heads.then_some(BARE_HEAD);
        Self {
            markup,
            stage: if inside { Stage::Reasoning } else { Stage::Head },
            head_end: MarkerSet::new(bodies().chain(ends().filter(|end| !markup.begins_head(end)))),
            body_end: MarkerSet::new(ends().chain(bodies()).chain(bare_head)),
            calls: markup.calls.as_ref().map(|calls| calls.reader(&[], tools)),
            held: String::new(),
            begun_bytes: 0,
            undecided: String::new(),
        }
    }

    /// Goes on with the message that the prompt has begun. A call that it has begun is text: its
    /// name is not in the answer.
    pub(crate) fn go_on(&mut self, message: &str) {
        self.stage = Stage::Head;
        self.push(message, &mut |_: OutputEvent<'_>| {});
        match self.stage {
            Stage::Head => self.begun_bytes = self.held.len(),
            Stage::Reasoning | Stage::Text => self.held.clear(),
            Stage::Arguments | Stage::Calls => {
                self.stage = Stage::Text;
                self.held.clear();
                self.undecided.clear();
            }
        }
    }

    pub(crate) fn place(&self) -> OutputPlace {
        match self.stage {
            _ if !self.held.is_empty() => OutputPlace::Markup,
            Stage::Head | Stage::Arguments | Stage::Calls => OutputPlace::Markup,
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
        match self.stage {
            Stage::Head => headless(&held[read + std::mem::take(&mut self.begun_bytes)..], sink),
            _ => self.end_body(sink),
        }
        self.stage = Stage::Head;
    }

    fn read(&mut self, input: &str, last: bool, sink: &mut dyn EventSink) -> usize {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            if self.stage == Stage::Head {
                let begun = std::mem::take(&mut self.begun_bytes);
                match self.head_end.find(rest, last) {
                    MarkerSearch::Found { number, start, end } if start <= HEAD_MAX_BYTES => {
                        match self.markup.bodies.get(number) {
                            Some((_, kind)) => self.begin(*kind, &rest[..start], sink),
                            None => headless(&rest[begun.min(start)..start], sink),
                        }
                        at += end;
                    }
                    MarkerSearch::Nothing(safe) if safe <= HEAD_MAX_BYTES => {
                        self.begun_bytes = begun;
                        return at;
                    }
                    _ => {
                        // The head is text. A marker at its start is left out: it would begin
                        // the same head again.
                        let marked = match self.body_end.at(rest, 0, true) {
                            MarkerSearch::Found { end, .. } => end,
                            MarkerSearch::Nothing(_) => 0,
                        };
                        self.stage = Stage::Text;
                        at += begun.max(marked);
                    }
                }
                continue;
            }
            let found = self.body_end.find(rest, last);
            let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
            self.tell(&rest[..safe], sink);
            let MarkerSearch::Found { number, start, end } = found else { return at + safe };
            let marker = self.body_end.marker(number);
            if marker == BARE_HEAD {
                match self.bare_head(&rest[start..], last) {
                    Some(true) => {}
                    Some(false) => {
                        self.tell(&rest[start..end], sink);
                        at += end;
                        continue;
                    }
                    None => return at + start,
                }
            }
            self.end_body(sink);
            self.stage = Stage::Head;
            at += if self.markup.begins_head(marker) { start } else { end };
        }
    }

    /// Whether a text that begins with [`BARE_HEAD`] is a head; none where more must come.
    fn bare_head(&self, rest: &str, last: bool) -> Option<bool> {
        let behind = &rest[BARE_HEAD.len()..];
        let behind = &behind[word(behind).len()..];
        let mut markers = self.markup.bodies.iter().map(|(marker, _)| *marker);
        match markers.clone().any(|marker| behind.starts_with(marker)) {
            true => Some(true),
            false if !last && markers.any(|marker| marker.starts_with(behind)) => None,
            false => Some(false),
        }
    }

    fn tell(&mut self, piece: &str, sink: &mut dyn EventSink) {
        match self.stage {
            _ if piece.is_empty() => {}
            Stage::Reasoning => sink.take(OutputEvent::Reasoning(piece)),
            Stage::Arguments => arguments(sink, piece),
            Stage::Head | Stage::Text => text(sink, piece),
            Stage::Calls => {
                let undecided = std::mem::take(&mut self.undecided);
                self.undecided = read_piece(undecided, piece, |text| self.calls(text, false, sink));
            }
        }
    }

    /// Ends the body that is being read.
    fn end_body(&mut self, sink: &mut dyn EventSink) {
        match self.stage {
            Stage::Arguments => sink.take(OutputEvent::CallEnd),
            Stage::Calls => {
                let undecided = std::mem::take(&mut self.undecided);
                self.calls(&undecided, true, sink);
            }
            Stage::Head | Stage::Reasoning | Stage::Text => {}
        }
    }

    /// Reads a body of calls; returns the bytes read. What is no call is text.
    fn calls(&mut self, input: &str, last: bool, sink: &mut dyn EventSink) -> usize {
        let mut at = 0;
        while let Some(calls) = &mut self.calls {
            let progress = calls.read(&input[at..], last, sink);
            at += progress.consumed;
            match progress.outcome {
                ReaderOutcome::Open => return at,
                ReaderOutcome::Closed if progress.consumed > 0 => calls.open(0),
                ReaderOutcome::Closed => break,
                ReaderOutcome::Refused(raw) => {
                    if !raw.trim().is_empty() {
                        text(sink, &raw);
                    }
                    break;
                }
            }
        }
        let rest = &input[at..];
        if leading_space(rest) < rest.len() {
            text(sink, rest);
        }
        self.stage = Stage::Text;
        input.len()
    }

    /// Begins the body of a head such as `assistant<|channel|>commentary to=functions.f `.
    fn begin(&mut self, kind: BodyKind, head: &str, sink: &mut dyn EventSink) {
        self.stage = match kind {
            BodyKind::Text => Stage::Text,
            BodyKind::Reasoning => Stage::Reasoning,
            BodyKind::Calls => Stage::Calls,
            BodyKind::ByHead => self.by_head(head, sink),
        };
        if let (Stage::Calls, Some(calls)) = (self.stage, &mut self.calls) {
            calls.open(0);
        }
    }

    fn by_head(&self, head: &str, sink: &mut dyn EventSink) -> Stage {
        let channel = head.split_once(CHANNEL).map_or("", |(_, rest)| word(rest));
        let recipient = head.split_once(RECIPIENT).map(|(_, rest)| word(rest));
        let name = recipient.map(|to| to.strip_prefix("functions.").unwrap_or(to));
        match (name.filter(|name| !name.is_empty()), channel) {
            (Some("self"), "") | (Some("assistant" | "user") | None, "analysis") => {
                Stage::Reasoning
            }
            (Some("assistant" | "user") | None, _) => Stage::Text,
            (Some(_), _) if self.calls.is_some() => Stage::Calls,
            (Some(name), _) => {
                sink.take(OutputEvent::CallStart { name, id: None });
                Stage::Arguments
            }
        }
    }
}

/// Tells a head without a message, which is what the model said unless it is nothing but a head.
fn headless(head: &str, sink: &mut dyn EventSink) {
    let said = head.trim();
    let is_head =
        said.contains("<|") || said.starts_with(RECIPIENT) || said.starts_with("assistant");
    if !is_head && !said.is_empty() {
        text(sink, head);
    }
}

/// The letters and digits that a text begins with. Models put markers right behind names.
fn word(text: &str) -> &str {
    let text = text.trim_start();
    let of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    &text[..text.find(|c| !of_word(c)).unwrap_or(text.len())]
}
