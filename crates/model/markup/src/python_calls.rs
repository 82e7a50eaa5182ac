//! Calls as Python writes them: `[f(a=1), g()]`.

use crate::coerce::quoted;
use crate::event::{EventSink, OutputEvent, arguments};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::python_literal::to_json;
use crate::reader::{ReaderProgress, ReaderStep, StagedReader, leading_space};

/// The markup of a family that writes calls in Python.
#[derive(Clone, Copy, Debug)]
pub struct PythonMarkup {
    /// Markers behind the calls; none where the list's bracket ends them.
    pub closers: &'static [&'static str],
    /// Whether the opener is the list's bracket, which is text if no call follows.
    pub bare: bool,
}

/// Reads the calls of one marker.
#[derive(Debug)]
pub(crate) struct PythonCalls {
    markup: &'static PythonMarkup,
    closers: MarkerSet,
    stage: Stage,
    in_list: bool,
    /// Text since the opener or the last call, until a call begins.
    raw: String,
    name: String,
    word: String,
    value: LiteralScan,
    begun: bool,
    arguments: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Between,
    Name,
    Key,
    Value,
}

/// Finds the end of a literal, a comma or bracket outside of strings and brackets.
#[derive(Debug, Default)]
struct LiteralScan {
    text: String,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
}

impl LiteralScan {
    /// Reads on; the place of the comma or bracket behind the literal.
    fn read(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            match (self.quote, c) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), '\\') => self.escaped = true,
                (Some(quote), c) if c == quote => self.quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => self.quote = Some(c),
                (None, '[' | '(' | '{') => self.depth += 1,
                (None, ',' | ')') if self.depth == 0 => {
                    self.text.push_str(&text[..at]);
                    return Some(at);
                }
                (None, ']' | ')' | '}') => self.depth = self.depth.saturating_sub(1),
                (None, _) => {}
            }
        }
        self.text.push_str(text);
        None
    }
}

fn of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

impl PythonCalls {
    pub(crate) fn new(markup: &'static PythonMarkup) -> Self {
        Self {
            markup,
            closers: MarkerSet::new(markup.closers.iter().copied()),
            stage: Stage::Between,
            in_list: false,
            raw: String::new(),
            name: String::new(),
            word: String::new(),
            value: LiteralScan::default(),
            begun: false,
            arguments: 0,
        }
    }

    fn refuse(&mut self, at: usize) -> ReaderStep {
        let raw = std::mem::take(&mut self.raw);
        (at, Some(ReaderProgress::refused(at, raw)))
    }

    /// Reads brackets, commas and closers up to a name.
    fn between(&mut self, text: &str, last: bool) -> ReaderStep {
        let at = leading_space(text);
        self.raw.push_str(&text[..at]);
        let Some(c) = text[at..].chars().next() else {
            return (at, Some(ReaderProgress::open(at)));
        };
        match c {
            '[' if !self.in_list && self.raw.trim().is_empty() => {
                self.in_list = true;
                self.raw.push('[');
                (at + 1, None)
            }
            ',' | ';' if self.begun => (at + 1, None),
            ']' if self.in_list && self.begun => {
                self.in_list = false;
                let end = self.markup.closers.is_empty();
                (at + 1, end.then(|| ReaderProgress::closed(at + 1)))
            }
            c if of_name(c) && (self.in_list || !self.markup.closers.is_empty()) => {
                self.stage = Stage::Name;
                self.name.clear();
                (at, None)
            }
            _ => match self.closers.at(text, at, last) {
                MarkerSearch::Found { end, .. } if self.begun => {
                    (end, Some(ReaderProgress::closed(end)))
                }
                MarkerSearch::Found { end, .. } => self.refuse(end),
                MarkerSearch::Nothing(held) if held == at && !last => {
                    (at, Some(ReaderProgress::open(at)))
                }
                MarkerSearch::Nothing(_) if self.begun => (at, Some(ReaderProgress::closed(at))),
                MarkerSearch::Nothing(_) => self.refuse(at),
            },
        }
    }

    fn name(&mut self, text: &str) -> ReaderStep {
        let end = text.find(|c| !of_name(c)).unwrap_or(text.len());
        self.name.push_str(&text[..end]);
        self.raw.push_str(&text[..end]);
        match text[end..].chars().next() {
            None => (end, Some(ReaderProgress::open(end))),
            Some('(') => {
                self.raw.push('(');
                self.stage = Stage::Key;
                self.word.clear();
                self.arguments = 0;
                (end + 1, None)
            }
            Some(_) => self.refuse(end),
        }
    }

    /// Reads up to the equals sign of an argument, or to the call's end.
    fn key(&mut self, text: &str, sink: &mut dyn EventSink) -> ReaderStep {
        let of_key = |c: char| c.is_alphanumeric() || c == '_' || c.is_whitespace();
        let end = text.find(|c| !of_key(c)).unwrap_or(text.len());
        self.word.push_str(&text[..end]);
        self.note(&text[..end]);
        let key = self.word.trim();
        match text[end..].chars().next() {
            None => (end, Some(ReaderProgress::open(end))),
            Some('=') if !key.is_empty() => {
                let key = quoted(key);
                self.begin(sink);
                let begin = if self.arguments == 0 { "{" } else { ", " };
                arguments(sink, &format!("{begin}{key}: "));
                self.arguments += 1;
                self.value = LiteralScan::default();
                self.stage = Stage::Value;
                (end + 1, None)
            }
            Some(',') if key.is_empty() && self.arguments > 0 => (end + 1, None),
            Some(')') if key.is_empty() => {
                self.begin(sink);
                arguments(sink, if self.arguments == 0 { "{}" } else { "}" });
                self.end(sink);
                (end + 1, None)
            }
            Some(_) if !self.begun_this() => self.refuse(end),
            // No argument has such a name: the character belongs to it all the same.
            Some(c) => {
                self.word.push(c);
                (end + c.len_utf8(), None)
            }
        }
    }

    fn value(&mut self, text: &str, sink: &mut dyn EventSink) -> ReaderStep {
        let Some(end) = self.value.read(text) else {
            return (text.len(), Some(ReaderProgress::open(text.len())));
        };
        let literal = std::mem::take(&mut self.value.text);
        // What is no literal stays the text that it is.
        arguments(sink, &to_json(&literal).unwrap_or_else(|| quoted(literal.trim())));
        self.word.clear();
        self.stage = Stage::Key;
        (end, None)
    }

    fn begun_this(&self) -> bool {
        self.stage == Stage::Key && self.arguments > 0
    }

    /// Keeps text that may prove to be no call.
    fn note(&mut self, text: &str) {
        if !self.begun_this() {
            self.raw.push_str(text);
        }
    }

    fn begin(&mut self, sink: &mut dyn EventSink) {
        if self.arguments == 0 {
            sink.take(OutputEvent::CallStart { name: &self.name, id: None });
            self.begun = true;
            self.raw.clear();
        }
    }

    fn end(&mut self, sink: &mut dyn EventSink) {
        sink.take(OutputEvent::CallEnd);
        self.stage = Stage::Between;
    }
}

impl StagedReader for PythonCalls {
    fn open(&mut self, _: usize) {
        self.stage = Stage::Between;
        self.begun = false;
        self.in_list = self.markup.bare;
        self.raw.clear();
        self.raw.push_str(if self.markup.bare { "[" } else { "" });
    }

    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.stage {
            Stage::Between => self.between(rest, last),
            Stage::Name => self.name(rest),
            Stage::Key => self.key(rest, sink),
            Stage::Value => self.value(rest, sink),
        }
    }

    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress {
        match self.stage {
            Stage::Between if self.begun => {}
            Stage::Value => {
                arguments(sink, &std::mem::take(&mut self.value.text));
                self.end(sink);
            }
            Stage::Key if self.arguments > 0 => self.end(sink),
            Stage::Between | Stage::Name | Stage::Key => {
                return ReaderProgress::refused(at, std::mem::take(&mut self.raw));
            }
        }
        ReaderProgress::closed(at)
    }
}
