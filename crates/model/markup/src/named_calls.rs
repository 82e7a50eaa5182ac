//! Calls as a name in markers and JSON behind it.

use crate::call_object::CallObjectForm;
use crate::event::{EventSink, OutputEvent, arguments};
use crate::json_calls::{JsonCalls, JsonMarkup};
use crate::json_value::{JsonValueEnd, JsonValueScan};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::{CallReader, ReaderProgress, ReaderStep, StagedReader, leading_space};
use crate::tools::KnownTools;

/// The markup of a family that writes the name before the JSON.
#[derive(Clone, Copy, Debug)]
pub struct NamedMarkup {
    /// Markers in front of each call; none where a call stands right behind the opener.
    pub call_openers: &'static [&'static str],
    /// Markers behind each call.
    pub call_closers: &'static [&'static str],
    /// Markers behind all calls.
    pub closers: &'static [&'static str],
    /// Markers between name and JSON, and between other parts of the head.
    pub cuts: &'static [&'static str],
    /// Form of the head, without its markers.
    pub head: HeadForm,
    /// Whether a list of objects may stand there instead.
    pub list: bool,
}

/// The form of what stands before a call's JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadForm {
    /// The name, then perhaps an id: Mistral.
    NameFirst,
    /// The last part that is not empty, up to the end of its line: DeepSeek, where `function` may
    /// come first.
    NameLast,
    /// `functions.NAME:NUMBER`, which is the id: Kimi.
    Numbered,
}

/// Markup of the lists of objects that older models of a family write.
const LIST: JsonMarkup =
    JsonMarkup { closers: &[], form: CallObjectForm::Members, bare: false, separators: b"" };

/// Reads the calls of one marker.
#[derive(Debug)]
pub(crate) struct NamedCalls {
    markup: &'static NamedMarkup,
    call_openers: MarkerSet,
    /// Ends of a call and of all calls.
    ends: MarkerSet,
    stage: Stage,
    scan: JsonValueScan,
    list: JsonCalls,
    head: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Between,
    Head,
    Arguments,
    /// Behind the arguments, up to the call's end.
    Tail,
    Broken,
    List,
}

impl NamedCalls {
    pub(crate) fn new(markup: &'static NamedMarkup, tools: KnownTools) -> Self {
        let ends = markup.call_closers.iter().chain(markup.closers).copied();
        Self {
            markup,
            call_openers: MarkerSet::new(markup.call_openers.iter().copied()),
            ends: MarkerSet::new(ends),
            stage: Stage::Between,
            scan: JsonValueScan::default(),
            list: JsonCalls::new(&LIST, &[], tools),
            head: String::new(),
        }
    }

    /// Whether the end of this number is that of all calls.
    fn ends_all(&self, number: usize) -> bool {
        number >= self.markup.call_closers.len()
    }

    /// A call's end has been read: the stage behind it, and the end of all if this is one.
    fn ended(&mut self, number: usize, at: usize) -> ReaderStep {
        self.stage = Stage::Between;
        (at, self.ends_all(number).then(|| ReaderProgress::closed(at)))
    }

    fn between(&mut self, text: &str, last: bool) -> ReaderStep {
        let at = leading_space(text);
        if at == text.len() {
            return (at, Some(ReaderProgress::open(at)));
        }
        let opener = self.call_openers.at(text, at, last);
        if let MarkerSearch::Found { end, .. } = opener {
            self.stage = Stage::Head;
            self.head.clear();
            return (end, None);
        }
        match (opener, self.ends.at(text, at, last)) {
            (_, MarkerSearch::Found { number, end, .. }) => self.ended(number, end),
            (MarkerSearch::Nothing(held), _) | (_, MarkerSearch::Nothing(held)) if held == at => {
                (at, Some(ReaderProgress::open(at)))
            }
            (_, MarkerSearch::Nothing(held)) if held == at => (at, Some(ReaderProgress::open(at))),
            _ => (at, Some(ReaderProgress::closed(at))),
        }
    }

    /// Reads up to the brace that ends the head, or to the call's end.
    fn head(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        if self.markup.list && self.head.is_empty() {
            match text.trim_start().as_bytes().first() {
                None if !last => return (0, Some(ReaderProgress::open(0))),
                Some(b'[') => {
                    // `[ARGS]` and its like never come first: a name does.
                    self.stage = Stage::List;
                    self.list.begin();
                    return (0, None);
                }
                _ => {}
            }
        }
        let brace = memchr::memchr(b'{', text.as_bytes());
        let before = &text[..brace.unwrap_or(text.len())];
        match self.ends.find(before, last || brace.is_some()) {
            MarkerSearch::Found { number, start, end } => {
                self.head.push_str(&before[..start]);
                match self.begin(sink, true) {
                    true => self.ended(number, end),
                    false => {
                        let raw = std::mem::take(&mut self.head);
                        (end, Some(ReaderProgress::refused(end, raw)))
                    }
                }
            }
            MarkerSearch::Nothing(safe) => {
                self.head.push_str(&before[..safe]);
                if brace.is_none() {
                    return (safe, Some(ReaderProgress::open(safe)));
                }
                match self.begin(sink, false) {
                    true => {
                        self.stage = Stage::Arguments;
                        self.scan = JsonValueScan::default();
                        (safe, None)
                    }
                    false => {
                        let raw = std::mem::take(&mut self.head);
                        (safe, Some(ReaderProgress::refused(safe, raw)))
                    }
                }
            }
        }
    }

    /// Tells that a call begins, from its head; with `whole` it ends there, too. False if the head
    /// has no name.
    fn begin(&mut self, sink: &mut dyn EventSink, whole: bool) -> bool {
        let mut parts = vec![self.head.as_str()];
        for cut in self.markup.cuts {
            parts = parts.iter().flat_map(|part| part.split(cut)).collect();
        }
        let parts: Vec<_> = parts.into_iter().map(str::trim).collect();
        let (first, rest) = parts.split_first().expect("a text has one part at least");
        let line = |part: &str| part.lines().next().unwrap_or_default().trim().to_owned();
        let (name, id) = match self.markup.head {
            HeadForm::NameFirst => {
                (line(first), rest.iter().find(|part| !part.is_empty()).map(|id| line(id)))
            }
            HeadForm::NameLast => {
                let last = parts.iter().rev().find(|part| !part.is_empty());
                (last.map(|part| line(part)).unwrap_or_default(), None)
            }
            HeadForm::Numbered => {
                let id = line(first);
                let name = id.strip_prefix("functions.").unwrap_or(&id);
                let numbered =
                    name.rsplit_once(':').filter(|(_, number)| number.parse::<u32>().is_ok());
                let name = numbered.map_or(name, |(name, _)| name).to_owned();
                (name, numbered.is_some().then_some(id.clone()))
            }
        };
        if name.is_empty() {
            return false;
        }
        sink.take(OutputEvent::CallStart { name: &name, id: id.as_deref() });
        if whole {
            arguments(sink, "{}");
            sink.take(OutputEvent::CallEnd);
        }
        true
    }

    fn arguments(&mut self, text: &str, sink: &mut dyn EventSink) -> ReaderStep {
        match self.scan.read(text) {
            JsonValueEnd::Open => {
                arguments(sink, text);
                (text.len(), Some(ReaderProgress::open(text.len())))
            }
            JsonValueEnd::At(at) => {
                arguments(sink, &text[..at]);
                sink.take(OutputEvent::CallEnd);
                self.stage = Stage::Tail;
                (at, None)
            }
            JsonValueEnd::Broken(at) => {
                arguments(sink, &text[..at]);
                self.stage = Stage::Broken;
                (at, None)
            }
        }
    }

    /// Reads what stands behind the arguments: nothing, or the rest of a fence.
    fn tail(&mut self, text: &str, last: bool) -> ReaderStep {
        if self.markup.call_closers.is_empty() {
            return (0, Some(ReaderProgress::closed(0)));
        }
        match self.ends.find(text, last) {
            MarkerSearch::Found { number, end, .. } => self.ended(number, end),
            MarkerSearch::Nothing(safe) => (safe, Some(ReaderProgress::open(safe))),
        }
    }

    fn broken(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.ends.find(text, last) {
            MarkerSearch::Found { number, start, end } => {
                arguments(sink, &text[..start]);
                sink.take(OutputEvent::CallEnd);
                self.ended(number, end)
            }
            MarkerSearch::Nothing(safe) => {
                arguments(sink, &text[..safe]);
                (safe, Some(ReaderProgress::open(safe)))
            }
        }
    }
}

impl StagedReader for NamedCalls {
    fn open(&mut self, _: usize) {
        self.head.clear();
        self.stage = match self.markup.call_openers {
            [] => Stage::Head,
            _ => Stage::Between,
        };
    }

    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.stage {
            Stage::Between => self.between(rest, last),
            Stage::Head => self.head(rest, last, sink),
            Stage::Arguments => self.arguments(rest, sink),
            Stage::Tail => self.tail(rest, last),
            Stage::Broken => self.broken(rest, last, sink),
            Stage::List => (0, Some(self.list.read(rest, last, sink))),
        }
    }

    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress {
        match self.stage {
            Stage::Arguments | Stage::Broken => sink.take(OutputEvent::CallEnd),
            Stage::Head => return ReaderProgress::refused(at, std::mem::take(&mut self.head)),
            Stage::Between | Stage::Tail | Stage::List => {}
        }
        ReaderProgress::closed(at)
    }
}
