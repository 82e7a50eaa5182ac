//! Notations of calls, and the reader of each.

use crate::bare_calls::{BareCalls, BareMarkup};
use crate::json_calls::{JsonCalls, JsonMarkup};
use crate::named_calls::{NamedCalls, NamedMarkup};
use crate::nested_calls::{NestedCalls, NestedMarkup};
use crate::python_calls::{PythonCalls, PythonMarkup};
use crate::reader::BoxedReader;
use crate::tag_calls::{TagCalls, TagMarkup};
use crate::tools::KnownTools;

/// The notation of calls.
#[derive(Clone, Copy, Debug)]
pub enum CallMarkup {
    /// JSON objects with a name and arguments.
    Json(JsonMarkup),
    /// A name and JSON.
    Named(NamedMarkup),
    /// Tags with values as text.
    Tags(TagMarkup),
    /// Tags with tags in them.
    Nested(NestedMarkup),
    /// Objects with bare keys.
    Bare(BareMarkup),
    /// Python.
    Python(PythonMarkup),
}

impl CallMarkup {
    /// All texts that a reader looks for behind an opener.
    pub(crate) fn markers(&self) -> Vec<&'static str> {
        let mut markers = match self {
            Self::Json(json) => json.closers.to_vec(),
            Self::Named(named) => {
                [named.call_openers, named.call_closers, named.closers, named.cuts].concat()
            }
            Self::Tags(tags) => {
                let lists =
                    [tags.call_openers, tags.call_closers, tags.closers, tags.value_closers];
                let (type_begin, type_end) = tags.type_tag;
                let own = [tags.name_end, tags.parameter, tags.value, tags.key_end];
                [lists.concat().as_slice(), &own, &[type_begin, type_end]].concat()
            }
            Self::Nested(nested) => {
                let calls = [nested.call_opener, nested.call_closer, nested.closer];
                [calls.as_slice(), &[nested.open, nested.close]].concat()
            }
            Self::Bare(bare) => [bare.closers, &[bare.quote]].concat(),
            Self::Python(python) => python.closers.to_vec(),
        };
        markers.retain(|marker| !marker.is_empty());
        markers
    }

    /// Markers that are no text where they stand alone. Closers of bare families are common text.
    pub(crate) fn stray(&self) -> Vec<&'static str> {
        match self {
            Self::Json(json) if json.bare => Vec::new(),
            Self::Json(json) => json.closers.to_vec(),
            Self::Named(named) => [named.call_closers, named.closers].concat(),
            Self::Tags(tags) => [tags.call_closers, tags.closers].concat(),
            Self::Nested(nested) => vec![nested.call_closer, nested.closer],
            Self::Bare(bare) => bare.closers.to_vec(),
            Self::Python(python) => python.closers.to_vec(),
        }
    }

    /// A reader of calls in this notation, behind one of these openers.
    pub(crate) fn reader(
        &'static self,
        openers: &'static [&'static str],
        tools: KnownTools,
    ) -> BoxedReader {
        match self {
            Self::Json(json) => Box::new(JsonCalls::new(json, openers, tools)),
            Self::Named(named) => Box::new(NamedCalls::new(named, tools)),
            Self::Tags(tags) => Box::new(TagCalls::new(tags, tools)),
            Self::Nested(nested) => Box::new(NestedCalls::new(nested, tools)),
            Self::Bare(bare) => Box::new(BareCalls::new(bare, tools)),
            Self::Python(python) => Box::new(PythonCalls::new(python)),
        }
    }
}
