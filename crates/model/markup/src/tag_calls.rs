//! Calls whose parameters are tags, each with its value as plain text.

use crate::attributes::{attribute, named};
use crate::call_object::{CallObject, CallObjectForm, ObjectEnd};
use crate::coerce::{JSON_TYPE, ValueTypes, escaped, quoted};
use crate::event::{EventSink, OutputEvent, arguments};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::{ReaderProgress, ReaderStep, StagedReader, leading_space};
use crate::tools::KnownTools;
use std::borrow::Cow;

/// The markup of a family that writes parameters as tags.
#[derive(Clone, Copy, Debug)]
pub struct TagMarkup {
    /// Markers in front of each call, up to its name; none where the name stands behind the opener.
    pub call_openers: &'static [&'static str],
    /// Openers that stand in front of a name themselves, by their number among the openers.
    pub named_openers: &'static [usize],
    /// Text behind a name; empty where the name ends with its line. The next marker ends it, too.
    pub name_end: &'static str,
    /// Markers behind each call, and others that may stand between two calls.
    pub call_closers: &'static [&'static str],
    /// Markers behind all calls.
    pub closers: &'static [&'static str],
    /// Marker in front of a parameter's name.
    pub parameter: &'static str,
    /// Text behind a parameter's name.
    pub key_end: &'static str,
    /// Texts around the type of a value, in front of the value; empty where types have no tag.
    pub type_tag: (&'static str, &'static str),
    /// Marker in front of a value; empty where the value follows the name.
    pub value: &'static str,
    /// Markers behind a value, with the new line in front that is the markup's.
    pub value_closers: &'static [&'static str],
    /// Whether a new line in front of a value is the markup's.
    pub lines: bool,
    /// Whether a value is a string, verbatim, where no schema says what it is.
    pub strings: bool,
    /// Whether a call may be a JSON object instead.
    pub objects: bool,
}

impl TagMarkup {
    fn has_type_tag(&self) -> bool {
        !self.type_tag.0.is_empty()
    }
}

/// Reads the calls of one marker.
#[derive(Debug)]
pub(crate) struct TagCalls {
    markup: &'static TagMarkup,
    tools: KnownTools,
    call_openers: MarkerSet,
    ends: MarkerSet,
    name_ends: MarkerSet,
    /// In a call: the next parameter, the call's end, the end of all.
    inside: MarkerSet,
    /// In a value: its end, and what ends it where that is missing.
    value_ends: MarkerSet,
    stage: Stage,
    name: String,
    key: String,
    keys: Vec<String>,
    /// The type that the model wrote.
    value_type: Option<String>,
    types: ValueTypes,
    /// A value that is told when it is complete.
    value: String,
    object: CallObject,
    repeated: bool,
    /// Whether nothing of the value has been read.
    value_begins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Between,
    Name,
    Inside,
    Key,
    Type,
    BeforeValue,
    Value,
    Object,
}

impl TagCalls {
    pub(crate) fn new(markup: &'static TagMarkup, tools: KnownTools) -> Self {
        let ends = || markup.call_closers.iter().chain(markup.closers).copied();
        let name_end = if markup.name_end.is_empty() { "\n" } else { markup.name_end };
        let missing = || [markup.parameter].into_iter().chain(ends());
        Self {
            markup,
            tools,
            call_openers: MarkerSet::new(markup.call_openers.iter().copied()),
            ends: MarkerSet::new(ends()),
            name_ends: MarkerSet::new([name_end].into_iter().chain(missing())),
            inside: MarkerSet::new(missing()),
            value_ends: MarkerSet::new(markup.value_closers.iter().copied().chain(missing())),
            stage: Stage::Between,
            name: String::new(),
            key: String::new(),
            keys: Vec::new(),
            value_type: None,
            types: ValueTypes::default(),
            value: String::new(),
            object: CallObject::default(),
            repeated: false,
            value_begins: false,
        }
    }

    fn begin_name(&mut self) {
        self.stage = Stage::Name;
        self.name.clear();
        self.keys.clear();
    }

    /// Whether the end of this number, of [`Self::ends`], is that of all calls.
    fn ends_all(&self, number: usize) -> bool {
        number >= self.markup.call_closers.len()
    }

    fn between(&mut self, text: &str, last: bool) -> ReaderStep {
        let at = leading_space(text);
        if at == text.len() {
            return (at, Some(ReaderProgress::open(at)));
        }
        let opener = self.call_openers.at(text, at, last);
        if let MarkerSearch::Found { end, .. } = opener {
            self.begin_name();
            return (end, None);
        }
        let end = self.ends.at(text, at, last);
        if let MarkerSearch::Found { number, end, .. } = end {
            return (end, self.ends_all(number).then(|| ReaderProgress::closed(end)));
        }
        match opener == MarkerSearch::Nothing(at) || end == MarkerSearch::Nothing(at) {
            true => (at, Some(ReaderProgress::open(at))),
            false => (at, Some(ReaderProgress::closed(at))),
        }
    }

    fn name(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        // White space in front of a name that ends with its line is no end.
        let skipped = if self.name.is_empty() { leading_space(text) } else { 0 };
        if self.markup.objects && self.name.is_empty() && text[skipped..].starts_with('{') {
            self.object = CallObject::new(CallObjectForm::Members, false);
            self.stage = Stage::Object;
            return (skipped + 1, None);
        }
        match self.name_ends.find(&text[skipped..], last) {
            MarkerSearch::Nothing(safe) => {
                self.name.push_str(&text[skipped..skipped + safe]);
                (skipped + safe, Some(ReaderProgress::open(skipped + safe)))
            }
            MarkerSearch::Found { number, start, end } => {
                self.name.push_str(&text[skipped..skipped + start]);
                let name = attribute(&self.name);
                let name = self.tools.own_name(&name).to_owned();
                let (start, end) = (skipped + start, skipped + end);
                if name.is_empty() || name.contains(['<', '{', '\n']) {
                    let raw = std::mem::take(&mut self.name);
                    return (start, Some(ReaderProgress::refused(start, raw)));
                }
                sink.take(OutputEvent::CallStart { name: &name, id: None });
                self.name = name;
                self.stage = Stage::Inside;
                // A marker that ended the name is read again for what it is.
                (if number == 0 { end } else { start }, None)
            }
        }
    }

    fn inside(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.inside.find(text, last) {
            MarkerSearch::Nothing(safe) => (safe, Some(ReaderProgress::open(safe))),
            MarkerSearch::Found { number: 0, end, .. } => {
                self.stage = Stage::Key;
                self.key.clear();
                (end, None)
            }
            MarkerSearch::Found { number, end, .. } => {
                arguments(sink, if self.keys.is_empty() { "{}" } else { "}" });
                sink.take(OutputEvent::CallEnd);
                self.stage = Stage::Between;
                let all = self.ends_all(number - 1);
                (end, all.then(|| ReaderProgress::closed(end)))
            }
        }
    }

    fn key(&mut self, text: &str, sink: &mut dyn EventSink) -> ReaderStep {
        let whole = std::mem::take(&mut self.key) + text;
        let Some(end) = whole.find(self.markup.key_end) else {
            self.key = whole;
            return (text.len(), Some(ReaderProgress::open(text.len())));
        };
        let read = text.len() - (whole.len() - end - self.markup.key_end.len());
        let head = &whole[..end];
        self.value_type = match named(head, "string").as_deref() {
            Some("true") => Some("string".to_owned()),
            Some(_) => Some(JSON_TYPE.to_owned()),
            None => named(head, "type").map(Cow::into_owned),
        };
        self.key = attribute(head).into_owned();
        match self.markup.value {
            "" => self.begin_value(sink),
            _ => self.stage = Stage::BeforeValue,
        }
        (read, None)
    }

    /// Tells a value's name, and reads on in the value.
    fn begin_value(&mut self, sink: &mut dyn EventSink) {
        let of_schema = self
            .tools
            .parameter(&self.name, &self.key)
            .map_or_else(ValueTypes::default, |(root, schema)| ValueTypes::of(schema, root));
        self.types = match (self.markup.strings, &self.value_type) {
            (true, _) if of_schema == ValueTypes::default() => ValueTypes::string(),
            // In a tag of its own the type says which of the schema's it is.
            (_, Some(written)) if self.markup.has_type_tag() => of_schema.narrowed(written),
            (_, Some(written)) if written == "string" => ValueTypes::string(),
            (_, Some(_)) => ValueTypes::json(),
            (_, None) => of_schema,
        };
        // What was told cannot be taken back, so the first of two counts.
        self.repeated = self.keys.contains(&self.key);
        if !self.repeated {
            let begin = if self.keys.is_empty() { "{" } else { ", " };
            arguments(sink, &format!("{begin}{}: ", quoted(&self.key)));
            if self.types.is_string() {
                arguments(sink, "\"");
            }
            self.keys.push(std::mem::take(&mut self.key));
        }
        self.value.clear();
        self.value_begins = true;
        self.stage = Stage::Value;
    }

    /// Reads a type up to the end of its tag.
    fn value_type(&mut self, text: &str) -> ReaderStep {
        let closer = self.markup.type_tag.1;
        let whole = self.value_type.take().unwrap_or_default() + text;
        let Some(end) = whole.find(closer) else {
            self.value_type = Some(whole);
            return (text.len(), Some(ReaderProgress::open(text.len())));
        };
        let read = text.len() - (whole.len() - end - closer.len());
        self.value_type = Some(whole[..end].trim().to_owned());
        self.stage = Stage::BeforeValue;
        (read, None)
    }

    fn before_value(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        let at = leading_space(text);
        let rest = &text[at..];
        let tags = [self.markup.value, self.markup.type_tag.0];
        if rest.starts_with(tags[0]) {
            self.begin_value(sink);
            return (at + tags[0].len(), None);
        }
        if self.markup.has_type_tag() && rest.starts_with(tags[1]) {
            self.stage = Stage::Type;
            return (at + tags[1].len(), None);
        }
        if !last && tags.iter().any(|tag| tag.starts_with(rest)) {
            return (0, Some(ReaderProgress::open(0)));
        }
        // The marker was forgotten.
        self.begin_value(sink);
        (0, None)
    }

    /// Reads a call that is a JSON object.
    fn object(&mut self, text: &str, sink: &mut dyn EventSink) -> ReaderStep {
        let tools = &self.tools;
        match self.object.read(text, &|name| tools.contains(name), sink) {
            ObjectEnd::Open => (text.len(), Some(ReaderProgress::open(text.len()))),
            ObjectEnd::At(at) => {
                self.stage = Stage::Between;
                (at, None)
            }
            // Text behind a fault in a call that was told is left to the next marker.
            ObjectEnd::Broken(at) if self.object.begun() => {
                self.object.finish(sink);
                sink.take(OutputEvent::CallEnd);
                (at, Some(ReaderProgress::closed(at)))
            }
            ObjectEnd::Broken(at) => {
                let raw = format!("{{{}", self.object.take_raw());
                (at, Some(ReaderProgress::refused(at, raw)))
            }
        }
    }

    fn value(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        let begins = std::mem::take(&mut self.value_begins);
        if begins && text.is_empty() {
            self.value_begins = true;
            return (0, Some(ReaderProgress::open(0)));
        }
        let from = usize::from(begins && self.markup.lines && text.starts_with('\n'));
        let found = self.value_ends.find(&text[from..], last);
        let piece = match found {
            MarkerSearch::Found { start, .. } => &text[from..from + start],
            MarkerSearch::Nothing(safe) => &text[from..from + safe],
        };
        match (self.repeated, self.types.is_string()) {
            (true, _) => {}
            (false, true) => arguments(sink, &escaped(piece)),
            (false, false) => self.value.push_str(piece),
        }
        let MarkerSearch::Found { number, end, .. } = found else {
            let read = from + piece.len();
            return (read, Some(ReaderProgress::open(read)));
        };
        match (self.repeated, self.types.is_string()) {
            (true, _) => {}
            (false, true) => arguments(sink, "\""),
            (false, false) => arguments(sink, &self.types.coerce(&self.value)),
        }
        self.stage = Stage::Inside;
        // What stands where the closer is missing is read again for what it is.
        let closers = self.markup.value_closers.len();
        let read = if number < closers { end } else { piece.len() };
        (from + read, None)
    }
}

impl StagedReader for TagCalls {
    fn open(&mut self, opener: usize) {
        self.stage = Stage::Between;
        if self.markup.named_openers.contains(&opener) {
            self.begin_name();
        }
    }

    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.stage {
            Stage::Between => self.between(rest, last),
            Stage::Name => self.name(rest, last, sink),
            Stage::Inside => self.inside(rest, last, sink),
            Stage::Key => self.key(rest, sink),
            Stage::Type => self.value_type(rest),
            Stage::BeforeValue => self.before_value(rest, last, sink),
            Stage::Value => self.value(rest, last, sink),
            Stage::Object => self.object(rest, sink),
        }
    }

    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress {
        match self.stage {
            Stage::Between => return ReaderProgress::closed(at),
            Stage::Name => return ReaderProgress::refused(at, std::mem::take(&mut self.name)),
            Stage::Value if !self.types.is_string() && !self.repeated => {
                arguments(sink, &std::mem::take(&mut self.value));
            }
            Stage::Object if !self.object.begun() => {
                return ReaderProgress::refused(at, format!("{{{}", self.object.take_raw()));
            }
            Stage::Object => self.object.finish(sink),
            Stage::Inside | Stage::Key | Stage::Type | Stage::BeforeValue | Stage::Value => {}
        }
        sink.take(OutputEvent::CallEnd);
        ReaderProgress::closed(at)
    }
}
