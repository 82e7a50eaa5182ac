//! Families of markup, by the names that vLLM, SGLang and Dynamo give them.
//!
//! Source: the parsers of vLLM 0.32, SGLang 0.5.23 and Dynamo 1.6, and the chat templates of the
//! models. A family is data; its names are aliases of one another.

use crate::bare_calls::BareMarkup;
use crate::call_object::CallObjectForm;
use crate::channels::{BodyKind, ChannelMarkup};
use crate::json_calls::JsonMarkup;
use crate::named_calls::{HeadForm, NamedMarkup};
use crate::nested_calls::NestedMarkup;
use crate::notation::CallMarkup;
use crate::python_calls::PythonMarkup;
use crate::reader::BoxedReader;
use crate::tag_calls::TagMarkup;
use crate::tools::KnownTools;

mod channels;
mod detect;
mod reasoning;
mod suffix;
mod tags;
mod tools;

pub use detect::{ModelTraits, reasoning_of, tools_of};
pub use reasoning::REASONING;
pub use suffix::marker_suffix;
pub use tools::TOOLS;

/// How a family of models writes calls of tools.
#[derive(Clone, Copy, Debug)]
pub struct ToolFamily {
    /// Names by which it is chosen, the first of which is its own.
    pub names: &'static [&'static str],
    /// Markers that open calls.
    pub openers: &'static [&'static str],
    /// Whether calls stand only where an answer or a text begins: the openers are common text.
    pub at_start: bool,
    /// Markers around the answer, which are no text.
    pub dropped: &'static [&'static str],
    /// Notation of the calls.
    pub calls: AnswerMarkup,
    /// The form of the ids of its calls.
    pub ids: CallIds,
    /// Its calls as text around JSON, where arguments are JSON: models can be held to it.
    pub text: Option<CallText>,
}

/// A call as text around the JSON of its arguments.
#[derive(Clone, Copy, Debug)]
pub struct CallText {
    /// Text around all calls; empty where there is none.
    pub section: (&'static str, &'static str),
    /// Text before and behind the name.
    pub begin: (&'static str, &'static str),
    /// Text behind a number that follows; empty for calls that have none.
    pub numbered: &'static str,
    /// Text behind the arguments.
    pub end: &'static str,
    /// Text between two calls.
    pub separator: &'static str,
    /// The beginning of a call that gives it away.
    pub trigger: &'static str,
}

/// The markup of a family's answers, as far as calls go.
#[derive(Clone, Copy, Debug)]
pub enum AnswerMarkup {
    /// Calls behind an opener.
    Calls(CallMarkup),
    /// Messages, which hold thoughts and text, too.
    Channels(&'static ChannelMarkup),
}

/// The form of the ids that calls get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIds {
    /// OpenAI's: `call_` and random letters.
    OpenAi,
    /// Nine letters and digits: Mistral's templates refuse others.
    Nine,
    /// The model's own, `functions.NAME:NUMBER`.
    Kimi,
}

/// How a family of models marks its thoughts.
#[derive(Clone, Copy, Debug)]
pub struct ReasoningFamily {
    /// Names by which it is chosen, the first of which is its own.
    pub names: &'static [&'static str],
    /// Markers before thoughts.
    pub openers: &'static [&'static str],
    /// Markers behind thoughts.
    pub closers: &'static [&'static str],
    /// Whether thoughts end where calls begin: the model forgets the closer there.
    pub ends_at_calls: bool,
    /// Markers around the answer, which are no text.
    pub dropped: &'static [&'static str],
    /// Whether an answer begins inside thoughts although the prompt does not end so.
    pub begins_inside: bool,
    /// Text in front of the whole answer: families without markers whose thoughts are text.
    pub preamble: &'static str,
    /// The markup of families that think in messages of their own.
    pub channels: Option<&'static ChannelMarkup>,
    /// Messages of thoughts and of the answer, where a form holds only what is in the latter.
    pub messages: Option<MessageFrame>,
    /// Levels of `reasoning_effort` and what the templates call them; empty where these take any.
    pub efforts: &'static [(&'static str, &'static str)],
}

/// Text around thoughts and before the answer, of a family that writes both as messages. An answer
/// begins with either.
#[derive(Clone, Copy, Debug)]
pub struct MessageFrame {
    /// Text before thoughts.
    pub opener: &'static str,
    /// Marker behind thoughts.
    pub closer: &'static str,
    /// Text between the closer and the answer's own head.
    pub next: &'static str,
    /// Text before the answer.
    pub answer: &'static str,
}

/// The thoughts that may come before what a form holds.
#[derive(Clone, Copy, Debug)]
pub enum ThoughtRoom {
    /// None: the model has no thoughts, or the prompt has ended them.
    None,
    /// Thoughts that the prompt has opened: they come first.
    Open(&'static ReasoningFamily),
    /// Thoughts that the model may open, and need not.
    Ahead(&'static ReasoningFamily),
}

impl ToolFamily {
    /// The family of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|family| family.names.contains(&name))
    }

    /// The family's own name.
    pub fn name(&self) -> &'static str {
        self.names[0]
    }

    /// All texts that its readers look for: special tokens in them must be kept in the text.
    pub fn markers(&self) -> Vec<&'static str> {
        let calls = match &self.calls {
            AnswerMarkup::Calls(calls) => calls.markers(),
            AnswerMarkup::Channels(channels) => channels.markers(),
        };
        [self.openers, self.dropped, &calls].concat()
    }

    /// Whether calls and thoughts are one markup, which one family reads.
    pub fn holds_reasoning(&self) -> bool {
        self.channels().is_some()
    }

    /// The markup of a family that writes messages.
    pub(crate) fn channels(&self) -> Option<&'static ChannelMarkup> {
        match self.calls {
            AnswerMarkup::Channels(markup) => Some(markup),
            AnswerMarkup::Calls(_) => None,
        }
    }

    /// Markers that are no text where they stand alone.
    pub(crate) fn stray(&self) -> Vec<&'static str> {
        let closers = match &self.calls {
            AnswerMarkup::Calls(calls) => calls.stray(),
            AnswerMarkup::Channels(_) => Vec::new(),
        };
        [closers.as_slice(), self.dropped].concat()
    }

    /// A reader of its calls; none for messages, whose reader reads the whole answer.
    pub(crate) fn reader(&'static self, tools: KnownTools) -> Option<BoxedReader> {
        match &self.calls {
            AnswerMarkup::Calls(calls) => Some(calls.reader(self.openers, tools)),
            AnswerMarkup::Channels(_) => None,
        }
    }
}

impl ReasoningFamily {
    /// The family of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        REASONING.iter().find(|family| family.names.contains(&name))
    }

    /// The family's own name.
    pub fn name(&self) -> &'static str {
        self.names[0]
    }

    /// All texts that mark thoughts: special tokens in them must be kept in the text.
    pub fn markers(&self) -> Vec<&'static str> {
        let channels = self.channels.map(ChannelMarkup::markers).unwrap_or_default();
        [self.openers, self.closers, self.dropped, &channels].concat()
    }

    /// Whether an answer to a prompt that ends with this text begins inside thoughts: a marker of
    /// them was opened there last and not closed.
    pub fn is_inside(&self, prompt_end: &str) -> bool {
        let last =
            |markers: &[&str]| markers.iter().filter_map(|marker| prompt_end.rfind(marker)).max();
        match (last(self.openers), last(self.closers)) {
            (Some(open), Some(close)) => open > close,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => self.begins_inside,
        }
    }

    /// Whether a prompt that ends with this text has ended the thoughts of its answer.
    pub fn is_behind(&self, prompt_end: &str) -> bool {
        let end = prompt_end.trim_ascii_end();
        self.closers.iter().any(|closer| end.ends_with(closer.trim_ascii_end()))
    }

    /// The thoughts that may come in an answer to a prompt that ends with this text.
    pub fn room(&'static self, prompt_end: &str) -> ThoughtRoom {
        if self.is_inside(prompt_end) {
            ThoughtRoom::Open(self)
        } else if self.is_behind(prompt_end) {
            ThoughtRoom::None
        } else {
            ThoughtRoom::Ahead(self)
        }
    }
}
