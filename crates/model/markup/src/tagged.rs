//! Answers with thoughts and calls between markers.

use crate::event::{EventSink, OutputEvent, OutputPlace, text};
use crate::families::{ReasoningFamily, ToolFamily};
use crate::markers::{MarkerSearch, MarkerSet};
use crate::reader::{BoxedReader, ReaderOutcome, leading_space, read_piece};
use crate::tools::KnownTools;

/// New lines behind thoughts that belong to their markup.
const LINES_BEHIND_REASONING: usize = 2;

/// An answer of a family that marks thoughts and calls by texts around them.
#[derive(Debug)]
pub(crate) struct TaggedOutput {
    stage: Stage,
    /// In front of text: everything that may begin there.
    ahead: MarkerSet,
    ahead_kinds: Vec<MarkerKind>,
    /// In text.
    within: MarkerSet,
    within_kinds: Vec<MarkerKind>,
    /// In thoughts.
    thinking: MarkerSet,
    thinking_kinds: Vec<MarkerKind>,
    reasoning_openers: MarkerSet,
    calls: Option<Calls>,
    /// Text that is not decided yet.
    held: String,
    /// White space in front of text that may never come.
    blank: String,
    /// Whether anything has been told.
    spoken: bool,
    /// Text in front of the answer that has not been told.
    preamble: &'static str,
}

#[derive(Debug)]
struct Calls {
    family: &'static ToolFamily,
    reader: BoxedReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Thoughts; `fresh` before anything of them.
    Reasoning {
        fresh: bool,
    },
    /// In front of text; new lines that belong to thoughts are left out.
    Ahead {
        behind_reasoning: bool,
    },
    Text,
    Calls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkerKind {
    OpensReasoning,
    ClosesReasoning,
    /// Opens calls, with its number among the openers.
    OpensCalls(usize),
    Dropped,
}

impl TaggedOutput {
    pub(crate) fn new(
        reasoning: Option<&'static ReasoningFamily>,
        calls: Option<&'static ToolFamily>,
        tools: KnownTools,
        inside: bool,
    ) -> Self {
        use MarkerKind::{ClosesReasoning, Dropped, OpensCalls, OpensReasoning};
        let of = |markers: fn(&ReasoningFamily) -> &'static [&'static str], kind| {
            let markers = reasoning.map(markers).unwrap_or_default().iter();
            markers.map(move |marker| (*marker, kind))
        };
        let openers = calls.map(|family| family.openers).unwrap_or_default();
        let openers = openers.iter().enumerate().map(|(at, opener)| (*opener, OpensCalls(at)));
        // A closer whose calls have ended already is no text, wherever it stands.
        let stray = calls.map(ToolFamily::stray).unwrap_or_default();
        let stray = stray.iter().map(|closer| (*closer, Dropped));
        let at_start = calls.is_some_and(|family| family.at_start);
        let within = of(|it| it.dropped, Dropped)
            .chain(stray.clone())
            .chain(openers.clone().filter(|_| !at_start));
        let ahead = within
            .clone()
            .chain(of(|it| it.openers, OpensReasoning))
            .chain(of(|it| it.closers, ClosesReasoning))
            .chain(openers.clone().filter(|_| at_start));
        let ends = reasoning.is_some_and(|family| family.ends_at_calls) && !at_start;
        let thinking = of(|it| it.closers, ClosesReasoning).chain(openers.clone().filter(|_| ends));
        let split = |pairs: Vec<(&'static str, MarkerKind)>| {
            let (markers, kinds): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            (MarkerSet::new(markers), kinds)
        };
        let (ahead, ahead_kinds) = split(ahead.collect());
        let (within, within_kinds) = split(within.collect());
        let (thinking, thinking_kinds) = split(thinking.collect());
        let reasoning_openers = MarkerSet::new(of(|it| it.openers, OpensReasoning).map(|it| it.0));
        Self {
            stage: match inside && reasoning.is_some() {
                true => Stage::Reasoning { fresh: true },
                false => Stage::Ahead { behind_reasoning: false },
            },
            ahead,
            ahead_kinds,
            within,
            within_kinds,
            thinking,
            thinking_kinds,
            reasoning_openers,
            calls: calls.and_then(|family| Some(Calls { family, reader: family.reader(tools)? })),
            held: String::new(),
            blank: String::new(),
            spoken: false,
            preamble: reasoning.map_or("", |family| family.preamble),
        }
    }

    pub(crate) fn place(&self) -> OutputPlace {
        match self.stage {
            _ if !self.held.is_empty() => OutputPlace::Markup,
            Stage::Reasoning { .. } => OutputPlace::Reasoning,
            Stage::Ahead { .. } | Stage::Text => OutputPlace::Text,
            Stage::Calls => OutputPlace::Markup,
        }
    }

    pub(crate) fn push(&mut self, piece: &str, sink: &mut dyn EventSink) {
        text(sink, std::mem::take(&mut self.preamble));
        let held = std::mem::take(&mut self.held);
        self.held = read_piece(held, piece, |text| self.read(text, false, sink));
    }

    pub(crate) fn finish(&mut self, sink: &mut dyn EventSink) {
        text(sink, std::mem::take(&mut self.preamble));
        let held = std::mem::take(&mut self.held);
        self.read(&held, true, sink);
        // Nothing but white space is an answer, too; beside thoughts or calls it is none.
        let blank = std::mem::take(&mut self.blank);
        if !self.spoken {
            text(sink, &blank);
        }
    }

    /// Reads as much as can be decided; returns the bytes read.
    fn read(&mut self, input: &str, last: bool, sink: &mut dyn EventSink) -> usize {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            // A reader of calls has something to say at the end, also of nothing.
            if rest.is_empty() && !(last && self.stage == Stage::Calls) {
                return at;
            }
            let read = match self.stage {
                Stage::Reasoning { fresh: true } => self.begin_reasoning(rest, last),
                Stage::Reasoning { fresh: false } => self.reasoning(rest, last, sink),
                Stage::Ahead { behind_reasoning } => self.ahead(rest, last, behind_reasoning, sink),
                Stage::Text => self.text(rest, last, sink),
                Stage::Calls => self.calls(rest, last, sink),
            };
            match read {
                Step::On(read) => at += read,
                Step::Held(read) => return at + read,
            }
        }
    }

    /// The model may write the opener that the prompt has already.
    fn begin_reasoning(&mut self, rest: &str, last: bool) -> Step {
        let at = leading_space(rest);
        if at == rest.len() && !last {
            return Step::Held(0);
        }
        self.stage = Stage::Reasoning { fresh: false };
        match self.reasoning_openers.at(rest, at, last) {
            _ if at == rest.len() => Step::On(0),
            MarkerSearch::Found { end, .. } => Step::On(end),
            MarkerSearch::Nothing(held) if held == at => {
                self.stage = Stage::Reasoning { fresh: true };
                Step::Held(0)
            }
            MarkerSearch::Nothing(_) => Step::On(0),
        }
    }

    fn reasoning(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.thinking.find(rest, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        if safe > 0 {
            self.spoken = true;
            sink.take(OutputEvent::Reasoning(&rest[..safe]));
        }
        match found {
            MarkerSearch::Nothing(safe) => Step::Held(safe),
            MarkerSearch::Found { number, end, .. } => {
                self.enter(self.thinking_kinds[number]);
                Step::On(end)
            }
        }
    }

    /// White space, then a marker or text.
    fn ahead(
        &mut self,
        rest: &str,
        last: bool,
        behind_reasoning: bool,
        sink: &mut dyn EventSink,
    ) -> Step {
        let at = leading_space(rest);
        // Markers may begin with white space themselves.
        for start in 0..=at {
            if start == rest.len() {
                self.blank.push_str(&rest[..at]);
                return Step::On(at);
            }
            match self.ahead.at(rest, start, last) {
                MarkerSearch::Found { number, end, .. } => {
                    self.blank.push_str(&rest[..start]);
                    self.enter(self.ahead_kinds[number]);
                    return Step::On(end);
                }
                MarkerSearch::Nothing(held) if held == start => {
                    self.blank.push_str(&rest[..start]);
                    return Step::Held(start);
                }
                MarkerSearch::Nothing(_) => {}
            }
        }
        self.blank.push_str(&rest[..at]);
        let blank = std::mem::take(&mut self.blank);
        let lines = blank.bytes().take_while(|byte| *byte == b'\n').count();
        let dropped = if behind_reasoning { lines.min(LINES_BEHIND_REASONING) } else { 0 };
        text(sink, &blank[dropped..]);
        self.stage = Stage::Text;
        Step::On(at)
    }

    fn text(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let found = self.within.find(rest, last);
        let (MarkerSearch::Found { start: safe, .. } | MarkerSearch::Nothing(safe)) = found;
        if safe > 0 {
            self.spoken = true;
            sink.take(OutputEvent::Text(&rest[..safe]));
        }
        match found {
            MarkerSearch::Nothing(safe) => Step::Held(safe),
            MarkerSearch::Found { number, end, .. } => {
                self.enter(self.within_kinds[number]);
                Step::On(end)
            }
        }
    }

    fn calls(&mut self, rest: &str, last: bool, sink: &mut dyn EventSink) -> Step {
        let Some(Calls { family, reader }) = &mut self.calls else {
            self.stage = Stage::Text;
            return Step::On(0);
        };
        let mut told = false;
        let mut watch = |event: OutputEvent<'_>| {
            told = true;
            sink.take(event);
        };
        let progress = reader.read(rest, last, &mut watch);
        let at_start = family.at_start;
        if told {
            self.spoken = true;
            self.blank.clear();
        }
        match progress.outcome {
            ReaderOutcome::Open => Step::Held(progress.consumed),
            ReaderOutcome::Closed => {
                self.stage = Stage::Ahead { behind_reasoning: false };
                Step::On(progress.consumed)
            }
            ReaderOutcome::Refused(raw) => {
                // It was no call, so the white space in front of it was text.
                let blank = std::mem::take(&mut self.blank);
                text(sink, &blank);
                text(sink, &raw);
                self.spoken |= !raw.is_empty();
                self.stage = match raw.trim().is_empty() && !at_start {
                    true => Stage::Ahead { behind_reasoning: false },
                    false => Stage::Text,
                };
                Step::On(progress.consumed)
            }
        }
    }

    /// Goes where a marker leads.
    fn enter(&mut self, kind: MarkerKind) {
        match kind {
            MarkerKind::OpensReasoning => self.stage = Stage::Reasoning { fresh: false },
            MarkerKind::ClosesReasoning => self.stage = Stage::Ahead { behind_reasoning: true },
            MarkerKind::OpensCalls(number) => {
                if let Some(calls) = &mut self.calls {
                    calls.reader.open(number);
                    self.stage = Stage::Calls;
                }
            }
            MarkerKind::Dropped => {}
        }
    }
}

/// Result of one stage on the text.
enum Step {
    /// So many bytes are read; the next stage goes on.
    On(usize),
    /// So many bytes are read; the others wait for more.
    Held(usize),
}
