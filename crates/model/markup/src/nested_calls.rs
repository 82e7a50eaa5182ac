//! Calls whose parameters are tags of their own names, with objects and lists as tags within.

use crate::attributes::attribute;
use crate::coerce::{ValueSchema, ValueTypes, escaped, quoted};
use crate::event::{EventSink, OutputEvent, arguments};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::{ReaderProgress, ReaderStep, StagedReader, leading_space};
use crate::tools::KnownTools;

/// Deepest tag within a value; what is deeper is text.
const DEPTH_MAX: usize = 32;
/// The tag of a list's items.
const ITEM: &str = "item";
/// The key of text beside tags.
const MIXED_TEXT: &str = "$text";

/// The markup of a family that nests tags.
#[derive(Clone, Copy, Debug)]
pub struct NestedMarkup {
    /// Marker in front of each call, up to its name.
    pub call_opener: &'static str,
    /// Marker behind each call.
    pub call_closer: &'static str,
    /// Marker behind all calls.
    pub closer: &'static str,
    /// Text in front of the name of an opening tag.
    pub open: &'static str,
    /// Text in front of the name of a closing tag.
    pub close: &'static str,
}

/// Reads the calls of one marker.
#[derive(Debug)]
pub(crate) struct NestedCalls {
    markup: &'static NestedMarkup,
    tools: KnownTools,
    between: MarkerSet,
    tags: MarkerSet,
    stage: Stage,
    /// Text of a name or a key until its tag ends.
    word: String,
    name: String,
    keys: Vec<String>,
    key: String,
    types: ValueTypes,
    /// A value that is told when it is complete.
    value: String,
    /// Tags that are open in the value.
    depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Between,
    Name,
    Inside,
    Key,
    Value,
}

type Step = ReaderStep;

impl NestedCalls {
    pub(crate) fn new(markup: &'static NestedMarkup, tools: KnownTools) -> Self {
        Self {
            markup,
            tools,
            between: MarkerSet::new([markup.call_opener, markup.call_closer, markup.closer]),
            tags: MarkerSet::new([markup.open, markup.close]),
            stage: Stage::Between,
            word: String::new(),
            name: String::new(),
            keys: Vec::new(),
            key: String::new(),
            types: ValueTypes::default(),
            value: String::new(),
            depth: 0,
        }
    }

    fn between(&mut self, text: &str, last: bool) -> Step {
        let at = leading_space(text);
        if at == text.len() {
            return (at, Some(ReaderProgress::open(at)));
        }
        match self.between.at(text, at, last) {
            MarkerSearch::Found { number: 0, end, .. } => {
                self.stage = Stage::Name;
                self.word.clear();
                (end, None)
            }
            MarkerSearch::Found { number: 1, end, .. } => (end, None),
            MarkerSearch::Found { end, .. } => (end, Some(ReaderProgress::closed(end))),
            MarkerSearch::Nothing(held) if held == at => (at, Some(ReaderProgress::open(at))),
            MarkerSearch::Nothing(_) => (at, Some(ReaderProgress::closed(at))),
        }
    }

    /// Reads on to the end of a tag; none until it has come.
    fn word(&mut self, text: &str) -> Option<usize> {
        let end = text.find('>');
        self.word.push_str(&text[..end.unwrap_or(text.len())]);
        end.map(|end| end + 1)
    }

    fn name(&mut self, text: &str, sink: &mut dyn EventSink) -> Step {
        let Some(read) = self.word(text) else {
            return (text.len(), Some(ReaderProgress::open(text.len())));
        };
        let name = attribute(&self.word).into_owned();
        if name.is_empty() || name.contains(['<', '{', '\n']) {
            let raw = std::mem::take(&mut self.word) + ">";
            return (read, Some(ReaderProgress::refused(read, raw)));
        }
        sink.take(OutputEvent::CallStart { name: &name, id: None });
        self.name = name;
        self.keys.clear();
        self.stage = Stage::Inside;
        (read, None)
    }

    /// Reads up to the next parameter, or to the call's end.
    fn inside(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        match self.tags.find(text, last) {
            MarkerSearch::Nothing(safe) => (safe, Some(ReaderProgress::open(safe))),
            MarkerSearch::Found { number: 0, end, .. } => {
                self.stage = Stage::Key;
                self.word.clear();
                (end, None)
            }
            MarkerSearch::Found { start, end, .. } => match self.ends_call(&text[start..], last) {
                None => (start, Some(ReaderProgress::open(start))),
                Some(false) => (end, None),
                Some(true) => {
                    arguments(sink, if self.keys.is_empty() { "{}" } else { "}" });
                    sink.take(OutputEvent::CallEnd);
                    self.stage = Stage::Between;
                    (start, None)
                }
            },
        }
    }

    /// Whether a closing tag is that of a call or of all; none where more must come.
    fn ends_call(&self, tag: &str, last: bool) -> Option<bool> {
        let ends = [self.markup.call_closer, self.markup.closer];
        match ends.iter().any(|end| tag.starts_with(end)) {
            true => Some(true),
            false if !last && ends.iter().any(|end| end.starts_with(tag)) => None,
            false => Some(false),
        }
    }

    fn key(&mut self, text: &str, sink: &mut dyn EventSink) -> Step {
        let Some(read) = self.word(text) else {
            return (text.len(), Some(ReaderProgress::open(text.len())));
        };
        self.key = self.word.trim().to_owned();
        let schema = self.tools.parameter(&self.name, &self.key);
        self.types =
            schema.map_or_else(ValueTypes::default, |(root, schema)| ValueTypes::of(schema, root));
        // A parameter that was told cannot be taken back, so the first of two counts.
        if !self.keys.contains(&self.key) {
            let begin = if self.keys.is_empty() { "{" } else { ", " };
            arguments(sink, &format!("{begin}{}: ", quoted(&self.key)));
            if self.types.is_string() {
                arguments(sink, "\"");
            }
        }
        self.value.clear();
        self.depth = 0;
        self.stage = Stage::Value;
        (read, None)
    }

    fn value(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.tags.find(text, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        self.tell(&text[..safe], sink);
        let MarkerSearch::Found { number, start, end } = found else {
            return (safe, Some(ReaderProgress::open(safe)));
        };
        if number == 0 {
            self.depth += 1;
            self.tell(&text[start..end], sink);
            return (end, None);
        }
        let Some(ends_call) = self.ends_call(&text[start..], last) else {
            return (start, Some(ReaderProgress::open(start)));
        };
        if self.depth > 0 && !ends_call {
            self.depth -= 1;
            self.tell(&text[start..end], sink);
            return (end, None);
        }
        self.end_value(sink);
        self.stage = Stage::Inside;
        (start, None)
    }

    /// Takes a piece of a value: strings are told at once, other values are kept.
    fn tell(&mut self, piece: &str, sink: &mut dyn EventSink) {
        if self.types.is_string() && !self.keys.contains(&self.key) {
            // Tags in a string are text without the marker in front.
            let tag = [self.markup.close, self.markup.open].into_iter().find(|tag| *tag == piece);
            let piece = tag.map_or(piece, |tag| &tag[tag.rfind('<').unwrap_or(0)..]);
            arguments(sink, &escaped(piece));
        } else {
            self.value.push_str(piece);
        }
    }

    fn end_value(&mut self, sink: &mut dyn EventSink) {
        let value = std::mem::take(&mut self.value);
        if self.keys.contains(&self.key) {
            return;
        }
        if self.types.is_string() {
            arguments(sink, "\"");
        } else {
            let schema = self.tools.parameter(&self.name, &self.key);
            let schema = schema.map(|(root, schema)| ValueSchema { schema, root });
            arguments(sink, &self.markup.json(&value, schema, 0));
        }
        self.keys.push(std::mem::take(&mut self.key));
    }
}

impl NestedMarkup {
    /// A value as JSON: text without tags by its schema, tags as an object or a list.
    fn json(&self, value: &str, schema: Option<ValueSchema<'_>>, depth: usize) -> String {
        let types = schema.map_or_else(ValueTypes::default, ValueSchema::types);
        let (tags, beside) = match depth < DEPTH_MAX {
            true => self.tags(value),
            false => (Vec::new(), value.to_owned()),
        };
        if tags.is_empty() {
            return match value.trim() {
                "" if types.is_list() => "[]".into(),
                "" if types.is_object() => "{}".into(),
                _ => types.coerce(value),
            };
        }
        let beside = Some(beside).filter(|it| !it.trim().is_empty());
        let within = |name: &str| schema.and_then(|schema| schema.property(name));
        if types.is_list() || !types.is_object() && tags.iter().all(|(name, _)| *name == ITEM) {
            let items = schema.and_then(ValueSchema::items);
            let items = tags.iter().map(|(_, inner)| self.json(inner, items, depth + 1));
            return format!("[{}]", items.collect::<Vec<_>>().join(", "));
        }
        // A name that comes again makes a list of its values.
        let mut members: Vec<(&str, Vec<String>)> = Vec::new();
        for (name, inner) in tags {
            let json = self.json(inner, within(name), depth + 1);
            match members.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(json),
                None => members.push((name, vec![json])),
            }
        }
        members.extend(beside.map(|text| (MIXED_TEXT, vec![quoted(&text)])));
        let member = |(name, values): &(&str, Vec<String>)| match &values[..] {
            [value] => format!("{}: {value}", quoted(name)),
            values => format!("{}: [{}]", quoted(name), values.join(", ")),
        };
        format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
    }

    /// The outermost tags of a value with what is in them, and the text beside them.
    fn tags<'a>(&self, value: &'a str) -> (Vec<(&'a str, &'a str)>, String) {
        let (mut tags, mut beside) = (Vec::new(), String::new());
        let mut rest = value;
        while let Some((before, tag)) = rest.split_once(self.open) {
            beside.push_str(before);
            let Some((name, inner)) = tag.split_once('>') else { break };
            let end = self.end_of(inner);
            if !name.starts_with('/') {
                tags.push((name.trim(), &inner[..end]));
            }
            let behind = &inner[end..];
            // Behind the closing tag, whatever its name.
            rest = behind
                .strip_prefix(self.close)
                .map_or(behind, |closing| closing.split_once('>').map_or("", |(_, behind)| behind));
        }
        beside.push_str(rest.split(self.open).next().unwrap_or_default());
        (tags, beside)
    }

    /// The place of the tag that closes the one before the text; the text's end where it is missing.
    fn end_of(&self, text: &str) -> usize {
        let mut open = 1usize;
        for (at, _) in text.match_indices(&self.open[..self.open.len() - 1]) {
            open = match text[at..].starts_with(self.close) {
                true if open == 1 => return at,
                true => open - 1,
                false => open + usize::from(text[at..].starts_with(self.open)),
            };
        }
        text.len()
    }
}

impl StagedReader for NestedCalls {
    fn open(&mut self, _: usize) {
        self.stage = Stage::Between;
    }

    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.stage {
            Stage::Between => self.between(rest, last),
            Stage::Name => self.name(rest, sink),
            Stage::Inside => self.inside(rest, last, sink),
            Stage::Key => self.key(rest, sink),
            Stage::Value => self.value(rest, last, sink),
        }
    }

    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress {
        match self.stage {
            Stage::Between => return ReaderProgress::closed(at),
            Stage::Name => return ReaderProgress::refused(at, std::mem::take(&mut self.word)),
            Stage::Value if !self.keys.contains(&self.key) => {
                let value = std::mem::take(&mut self.value);
                arguments(sink, value.split(self.markup.open).next().unwrap_or_default());
            }
            Stage::Inside | Stage::Key | Stage::Value => {}
        }
        sink.take(OutputEvent::CallEnd);
        ReaderProgress::closed(at)
    }
}
