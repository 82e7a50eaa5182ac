//! Families of markup, by the names that vLLM, SGLang and Dynamo give them.
//!
//! Source: the parsers of vLLM 0.32, SGLang 0.5.23 and Dynamo 1.6, and the chat templates of the
//! models. A family is data; its names are aliases of one another.

use crate::call_object::CallObjectForm;
use crate::json_calls::JsonMarkup;
use crate::named_calls::{HeadForm, NamedMarkup};
use crate::python_calls::PythonMarkup;
use crate::tag_calls::TagMarkup;

mod detect;
mod reasoning;
mod tools;

pub use detect::{ModelTraits, reasoning_of, tools_of};
pub use reasoning::REASONING;
pub use tools::TOOLS;

/// How a family of models writes calls of tools.
#[derive(Debug)]
pub struct ToolFamily {
    /// Names by which it is chosen, the first of which is its own.
    pub names: &'static [&'static str],
    /// Markers that open calls.
    pub openers: &'static [&'static str],
    /// Whether calls stand only where an answer or a text begins: the openers are common text.
    pub at_start: bool,
    /// Notation of the calls behind an opener.
    pub calls: CallMarkup,
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

/// The notation of calls.
#[derive(Clone, Copy, Debug)]
pub enum CallMarkup {
    /// JSON objects with a name and arguments.
    Json(JsonMarkup),
    /// A name and JSON.
    Named(NamedMarkup),
    /// Tags with values as text.
    Tags(TagMarkup),
    /// Python.
    Python(PythonMarkup),
    /// Harmony's channels, which hold thoughts and text, too.
    Harmony,
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
#[derive(Debug)]
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
        let mut markers = self.openers.to_vec();
        match &self.calls {
            CallMarkup::Json(json) => markers.extend(json.closers),
            CallMarkup::Named(named) => {
                let lists = [named.call_openers, named.call_closers, named.closers, named.cuts];
                markers.extend(lists.into_iter().flatten());
            }
            CallMarkup::Tags(tags) => {
                let lists =
                    [tags.call_openers, tags.call_closers, tags.closers, tags.value_closers];
                markers.extend(lists.into_iter().flatten());
                markers.extend([tags.parameter, tags.value, tags.key_end]);
            }
            CallMarkup::Python(python) => markers.extend(python.closers),
            CallMarkup::Harmony => markers.extend(crate::harmony::MARKERS),
        }
        markers.retain(|marker| !marker.is_empty());
        markers
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
        [self.openers, self.closers, self.dropped].concat()
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
}
