//! Calls as objects with bare keys, whose strings stand between markers: `call:f{a:<|"|>x<|"|>}`.

use crate::coerce::{ValueTypes, escaped, quoted};
use crate::event::{EventSink, OutputEvent, arguments};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::{ReaderProgress, ReaderStep, StagedReader, leading_space};
use crate::tools::KnownTools;

/// Text in front of a name; models forget the word.
const CALL: [&str; 2] = ["call:", ":"];

/// The markup of a family that writes bare keys.
#[derive(Clone, Copy, Debug)]
pub struct BareMarkup {
    /// Marker on both sides of a string.
    pub quote: &'static str,
    /// Markers behind a call.
    pub closers: &'static [&'static str],
}

/// Reads the call of one marker.
#[derive(Debug)]
pub(crate) struct BareCalls {
    tools: KnownTools,
    /// The string's marker, or the call's end.
    quotes: MarkerSet,
    closers: MarkerSet,
    /// The end of a call's head: its brace, or the call's end.
    head_end: MarkerSet,
    /// The end of a key, of its object, or of the call.
    key_end: MarkerSet,
    /// The end of a value: a comma, or the end of what holds it.
    value_end: MarkerSet,
    stage: Stage,
    name: String,
    /// Types of the outermost value that is being read.
    types: ValueTypes,
    /// Text since the opener, a key or a bare value, until it is complete.
    word: String,
    /// Open brackets, the outermost first.
    open: Vec<Bracket>,
    begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// `call:` and the name, up to the brace.
    Head,
    /// In front of a key, or of the object's end.
    Key,
    /// In front of a value, or of the list's end.
    Value,
    /// In a string.
    String,
    /// In a string whose value is none, by its schema.
    Quoted,
    /// In a bare value.
    Literal,
    /// Behind a value.
    Behind,
    /// Behind the call.
    Tail,
}

/// A bracket that is open.
#[derive(Clone, Copy, Debug)]
struct Bracket {
    is_list: bool,
    is_empty: bool,
}

type Step = ReaderStep;

impl BareCalls {
    pub(crate) fn new(markup: &'static BareMarkup, tools: KnownTools) -> Self {
        let closers = || markup.closers.iter().copied();
        Self {
            tools,
            quotes: MarkerSet::new([markup.quote].into_iter().chain(closers())),
            closers: MarkerSet::new(closers()),
            head_end: MarkerSet::new(["{"].into_iter().chain(closers())),
            key_end: MarkerSet::new([":", "}"].into_iter().chain(closers())),
            value_end: MarkerSet::new([",", "}", "]"].into_iter().chain(closers())),
            stage: Stage::Head,
            name: String::new(),
            types: ValueTypes::default(),
            word: String::new(),
            open: Vec::new(),
            begun: false,
        }
    }

    fn head(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.head_end.find(text, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        self.word.push_str(&text[..safe]);
        let MarkerSearch::Found { number, end, .. } = found else {
            return (safe, Some(ReaderProgress::open(safe)));
        };
        let head = self.word.trim();
        let name = CALL.iter().find_map(|call| head.strip_prefix(call)).map(str::trim);
        match name.filter(|name| !name.is_empty() && !name.contains(char::is_whitespace)) {
            Some(name) => name.clone_into(&mut self.name),
            None => {
                let raw = std::mem::take(&mut self.word);
                let read = if number == 0 { safe } else { end };
                return (read, Some(ReaderProgress::refused(read, raw)));
            }
        }
        sink.take(OutputEvent::CallStart { name: &self.name, id: None });
        self.begun = true;
        if number > 0 {
            arguments(sink, "{}");
            sink.take(OutputEvent::CallEnd);
            return (end, Some(ReaderProgress::closed(end)));
        }
        self.enter(false, sink);
        (end, None)
    }

    fn enter(&mut self, is_list: bool, sink: &mut dyn EventSink) {
        arguments(sink, if is_list { "[" } else { "{" });
        self.open.push(Bracket { is_list, is_empty: true });
        self.stage = if is_list { Stage::Value } else { Stage::Key };
        self.word.clear();
    }

    /// Leaves the innermost bracket, whichever sign the model wrote.
    fn leave(&mut self, sink: &mut dyn EventSink) {
        self.word.clear();
        if let Some(bracket) = self.open.pop() {
            arguments(sink, if bracket.is_list { "]" } else { "}" });
        }
        self.stage = if self.open.is_empty() { Stage::Tail } else { Stage::Behind };
        if self.open.is_empty() {
            sink.take(OutputEvent::CallEnd);
        }
    }

    /// Tells the comma in front of all but the first of a list or an object.
    fn separate(&mut self, sink: &mut dyn EventSink) {
        if let Some(bracket) = self.open.last_mut()
            && !std::mem::take(&mut bracket.is_empty)
        {
            arguments(sink, ", ");
        }
    }

    fn key(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.key_end.find(text, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        self.word.push_str(&text[..safe]);
        let MarkerSearch::Found { number, end, .. } = found else {
            return (safe, Some(ReaderProgress::open(safe)));
        };
        match number {
            0 => self.begin_value(sink),
            1 => self.leave(sink),
            _ => return self.cut(end, sink),
        }
        (end, None)
    }

    /// Tells the key that has been read.
    fn begin_value(&mut self, sink: &mut dyn EventSink) {
        let word = std::mem::take(&mut self.word);
        let quote = self.quotes.marker(0);
        let key = word.trim().trim_start_matches(quote).trim_end_matches(quote);
        self.separate(sink);
        arguments(sink, &format!("{}: ", quoted(key)));
        if self.open.len() == 1 {
            let schema = self.tools.parameter(&self.name, key);
            self.types = schema
                .map_or_else(ValueTypes::default, |(root, schema)| ValueTypes::of(schema, root));
        }
        self.stage = Stage::Value;
    }

    fn value(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let at = leading_space(text);
        let Some(first) = text[at..].chars().next() else {
            return (at, Some(ReaderProgress::open(at)));
        };
        let in_list = self.open.last().is_some_and(|bracket| bracket.is_list);
        if in_list && first == ']' {
            self.leave(sink);
            return (at + 1, None);
        }
        let quote = self.quotes.at(text, at, last);
        match quote {
            MarkerSearch::Nothing(held) if held == at => {
                return (at, Some(ReaderProgress::open(at)));
            }
            MarkerSearch::Found { number: 1.., end, .. } => {
                // A key without a value has none.
                arguments(sink, if in_list { "" } else { "null" });
                return self.cut(end, sink);
            }
            _ => {}
        }
        if in_list {
            self.separate(sink);
        }
        match (quote, first) {
            (MarkerSearch::Found { end, .. }, _)
                if self.open.len() == 1 && self.types.forbids_strings() =>
            {
                self.stage = Stage::Quoted;
                (end, None)
            }
            (MarkerSearch::Found { end, .. }, _) => {
                arguments(sink, "\"");
                self.stage = Stage::String;
                (end, None)
            }
            (_, '{' | '[') => {
                self.enter(first == '[', sink);
                (at + 1, None)
            }
            _ => {
                self.stage = Stage::Literal;
                (at, None)
            }
        }
    }

    /// Reads a string, which is told as it comes, or kept where its schema says that it is none.
    fn string(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.quotes.find(text, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        match self.stage {
            Stage::Quoted => self.word.push_str(&text[..safe]),
            _ => arguments(sink, &escaped(&text[..safe])),
        }
        let MarkerSearch::Found { number, end, .. } = found else {
            return (safe, Some(ReaderProgress::open(safe)));
        };
        if number > 0 {
            return self.cut(end, sink);
        }
        self.end_value(sink);
        self.stage = Stage::Behind;
        (end, None)
    }

    /// Reads a bare value, and up to what stands behind any value.
    fn behind(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.value_end.find(text, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        if self.stage == Stage::Literal {
            self.word.push_str(&text[..safe]);
        }
        let MarkerSearch::Found { number, end, .. } = found else {
            return (safe, Some(ReaderProgress::open(safe)));
        };
        if number > 2 {
            return self.cut(end, sink);
        }
        self.end_value(sink);
        match self.open.last() {
            Some(bracket) if number == 0 => {
                self.stage = if bracket.is_list { Stage::Value } else { Stage::Key };
            }
            _ => self.leave(sink),
        }
        (end, None)
    }

    /// Tells the end of a value.
    fn end_value(&mut self, sink: &mut dyn EventSink) {
        match self.stage {
            Stage::String => arguments(sink, "\""),
            Stage::Quoted => arguments(sink, &self.types.coerce(&std::mem::take(&mut self.word))),
            Stage::Literal => self.tell_literal(sink),
            _ => {}
        }
    }

    /// Ends a call whose brackets are still open.
    fn cut(&mut self, at: usize, sink: &mut dyn EventSink) -> Step {
        self.end_value(sink);
        while !self.open.is_empty() {
            self.leave(sink);
        }
        (at, Some(ReaderProgress::closed(at)))
    }

    /// Tells a bare value by its schema; without one JSON as it is, and any other word as a string.
    fn tell_literal(&mut self, sink: &mut dyn EventSink) {
        let word = std::mem::take(&mut self.word);
        let types = match self.open.len() {
            1 => self.types,
            _ => ValueTypes::default(),
        };
        let told = match word.trim() {
            word if types != ValueTypes::default() => types.coerce(word),
            "null" | "None" => "null".to_owned(),
            word @ ("True" | "False") => word.to_lowercase(),
            word => types.coerce(word),
        };
        arguments(sink, &told);
    }

    fn tail(&mut self, text: &str, last: bool) -> Step {
        let at = leading_space(text);
        if at == text.len() {
            return (at, Some(ReaderProgress::open(at)));
        }
        match self.closers.at(text, at, last) {
            MarkerSearch::Found { end, .. } => (end, Some(ReaderProgress::closed(end))),
            MarkerSearch::Nothing(held) if held == at => (at, Some(ReaderProgress::open(at))),
            MarkerSearch::Nothing(_) => (at, Some(ReaderProgress::closed(at))),
        }
    }
}

impl StagedReader for BareCalls {
    fn open(&mut self, _: usize) {
        self.stage = Stage::Head;
        self.word.clear();
        self.open.clear();
        self.begun = false;
    }

    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.stage {
            Stage::Head => self.head(rest, last, sink),
            Stage::Key => self.key(rest, last, sink),
            Stage::Value => self.value(rest, last, sink),
            Stage::String | Stage::Quoted => self.string(rest, last, sink),
            Stage::Literal | Stage::Behind => self.behind(rest, last, sink),
            Stage::Tail => self.tail(rest, last),
        }
    }

    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress {
        match self.stage {
            Stage::Tail => return ReaderProgress::closed(at),
            _ if !self.begun => return ReaderProgress::refused(at, std::mem::take(&mut self.word)),
            Stage::Literal | Stage::Quoted => arguments(sink, self.word.trim()),
            _ => {}
        }
        sink.take(OutputEvent::CallEnd);
        ReaderProgress::closed(at)
    }
}
