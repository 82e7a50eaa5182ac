//! Calls as JSON objects behind a marker, alone or in a list.

use crate::call_object::{CallObject, CallObjectForm, ObjectEnd};
use crate::event::{EventSink, OutputEvent, arguments};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::{ReaderProgress, ReaderStep, StagedReader, leading_space};
use crate::tools::KnownTools;

/// The markup of a family whose calls are JSON objects.
#[derive(Clone, Copy, Debug)]
pub struct JsonMarkup {
    /// Markers behind the calls; none where the calls end with their JSON.
    pub closers: &'static [&'static str],
    /// How an object says what it calls.
    pub form: CallObjectForm,
    /// Brackets that openers end with: text that is the calls' own.
    pub bare: bool,
    /// Texts that may stand between two objects beside white space.
    pub separators: &'static [u8],
}

/// Reads the calls of one marker.
#[derive(Debug)]
pub(crate) struct JsonCalls {
    markup: &'static JsonMarkup,
    closers: MarkerSet,
    /// Last byte of each opener, for openers that hold the first brace or bracket.
    openers: &'static [&'static str],
    tools: KnownTools,
    stage: Stage,
    in_list: bool,
    object: CallObject,
    /// White space and brackets since the marker, in case that no call follows.
    passed: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the first brace or bracket.
    Start,
    InObject,
    Between,
    /// Behind a fault in a call that was told: what comes is its arguments.
    Broken,
}

impl JsonCalls {
    pub(crate) fn new(
        markup: &'static JsonMarkup,
        openers: &'static [&'static str],
        tools: KnownTools,
    ) -> Self {
        Self {
            markup,
            closers: MarkerSet::new(markup.closers.iter().copied()),
            openers,
            tools,
            stage: Stage::Start,
            in_list: false,
            object: CallObject::default(),
            passed: String::new(),
        }
    }

    /// Begins in front of the first brace or bracket.
    pub(crate) fn begin(&mut self) {
        self.stage = Stage::Start;
        self.in_list = false;
        self.passed.clear();
    }

    fn enter_object(&mut self) {
        self.object = CallObject::new(self.markup.form, self.markup.bare);
        self.stage = Stage::InObject;
    }

    /// Reads the brackets before the first object; the bytes read, and the end if there is one.
    fn start(&mut self, text: &str, last: bool) -> ReaderStep {
        let at = leading_space(text);
        self.passed.push_str(&text[..at]);
        match text.as_bytes().get(at) {
            None if last => {
                let passed = std::mem::take(&mut self.passed);
                (at, Some(ReaderProgress::refused(at, passed)))
            }
            None => (at, Some(ReaderProgress::open(at))),
            Some(b'[') if !self.in_list => {
                self.in_list = true;
                self.passed.push('[');
                (at + 1, None)
            }
            Some(b'{') => {
                self.passed.push('{');
                self.enter_object();
                (at + 1, None)
            }
            Some(_) => match self.closers.at(text, at, last) {
                MarkerSearch::Found { end, .. } => (end, Some(ReaderProgress::closed(end))),
                MarkerSearch::Nothing(held) if held == at && !last => {
                    (at, Some(ReaderProgress::open(at)))
                }
                MarkerSearch::Nothing(_) => {
                    let passed = std::mem::take(&mut self.passed);
                    (at, Some(ReaderProgress::refused(at, passed)))
                }
            },
        }
    }

    /// Reads what stands between two objects, or behind the last.
    fn between(&mut self, text: &str, last: bool) -> ReaderStep {
        let at = leading_space(text);
        let byte = text.as_bytes().get(at).copied();
        match byte {
            None => (at, Some(ReaderProgress::open(at))),
            Some(b'{') => {
                self.passed.clear();
                self.passed.push('{');
                self.enter_object();
                (at + 1, None)
            }
            Some(b',') if self.in_list => (at + 1, None),
            Some(b']') if self.in_list => {
                self.in_list = false;
                match self.closers_empty() {
                    true => (at + 1, Some(ReaderProgress::closed(at + 1))),
                    false => (at + 1, None),
                }
            }
            Some(byte) if self.markup.separators.contains(&byte) => (at + 1, None),
            Some(_) => match self.closers.at(text, at, last) {
                MarkerSearch::Found { end, .. } => (end, Some(ReaderProgress::closed(end))),
                MarkerSearch::Nothing(held) if held == at && !last => {
                    (at, Some(ReaderProgress::open(at)))
                }
                MarkerSearch::Nothing(_) => (at, Some(ReaderProgress::closed(at))),
            },
        }
    }

    fn closers_empty(&self) -> bool {
        self.markup.closers.is_empty()
    }

    fn object(&mut self, text: &str, sink: &mut dyn EventSink) -> ReaderStep {
        let tools = &self.tools;
        match self.object.read(text, &|name| tools.contains(name), sink) {
            ObjectEnd::Open => (text.len(), Some(ReaderProgress::open(text.len()))),
            ObjectEnd::At(at) => {
                self.stage = Stage::Between;
                (at, None)
            }
            ObjectEnd::Broken(at) if self.object.begun() => {
                self.object.finish(sink);
                self.stage = Stage::Broken;
                (at, None)
            }
            ObjectEnd::Broken(at) => {
                let raw = std::mem::take(&mut self.passed) + &self.object.take_raw();
                (at, Some(ReaderProgress::refused(at, raw)))
            }
        }
    }

    fn broken(&mut self, text: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.closers.find(text, last) {
            MarkerSearch::Found { start, end, .. } => {
                arguments(sink, &text[..start]);
                sink.take(OutputEvent::CallEnd);
                (end, Some(ReaderProgress::closed(end)))
            }
            MarkerSearch::Nothing(safe) => {
                arguments(sink, &text[..safe]);
                (safe, Some(ReaderProgress::open(safe)))
            }
        }
    }
}

impl StagedReader for JsonCalls {
    fn open(&mut self, opener: usize) {
        self.begin();
        if !self.markup.bare {
            return;
        }
        // The opener itself holds the first brace or bracket, and a word before it perhaps.
        let opener = self.openers[opener];
        // A special token in front is no text, whatever follows.
        let text = opener.rsplit_once("|>").map_or(opener, |(_, text)| text);
        self.passed.push_str(text);
        self.in_list = opener.trim_end_matches('{').trim_end().ends_with('[');
        if opener.ends_with('{') {
            self.enter_object();
        }
    }

    fn step(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> ReaderStep {
        match self.stage {
            Stage::Start => self.start(rest, last),
            Stage::Between => self.between(rest, last),
            Stage::InObject => self.object(rest, sink),
            Stage::Broken => self.broken(rest, last, sink),
        }
    }

    fn finish(&mut self, at: usize, sink: &mut dyn EventSink) -> ReaderProgress {
        match self.stage {
            Stage::InObject if self.object.begun() => {
                self.object.finish(sink);
                sink.take(OutputEvent::CallEnd);
                ReaderProgress::closed(at)
            }
            Stage::Broken => {
                sink.take(OutputEvent::CallEnd);
                ReaderProgress::closed(at)
            }
            Stage::InObject | Stage::Start => {
                let raw = std::mem::take(&mut self.passed) + &self.object.take_raw();
                ReaderProgress::refused(at, raw)
            }
            Stage::Between => ReaderProgress::closed(at),
        }
    }
}
