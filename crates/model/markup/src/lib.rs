//! Markup that models write around their text: calls of tools and thoughts, read as they come.
//!
//! An [`OutputParser`] takes the text of one choice in pieces and tells [`OutputEvent`]s. How the
//! text is cut changes nothing in what the events say together. A whole answer is the sum of its
//! events, so there is no second parser for it.
//!
//! Families of markup are data: [`ToolFamily`] and [`ReasoningFamily`] name the markers, and a few
//! readers (JSON objects, named JSON, parameters in tags, nested tags, bare keys, Python's calls,
//! messages in channels) do the rest. No marker becomes text, and no text is lost: what proves to be
//! no call is text. Pure; no I/O, no clock.
//!
//! Start reading at [`OutputParser`], then [`families`].

mod attributes;
mod bare_calls;
mod call_object;
mod channels;
mod coerce;
mod event;
pub mod families;
mod forced;
mod json_calls;
mod json_value;
mod markers;
mod named_calls;
mod nested_calls;
mod notation;
mod output;
mod python_calls;
mod python_literal;
mod reader;
mod tag_calls;
mod tagged;
pub mod tools;

pub use event::{EventSink, OutputEvent, OutputPlace};
pub use families::{ReasoningFamily, ThoughtRoom, ToolFamily};
pub use forced::{ForcedCalls, forced_calls, formed_answer};
pub use output::{OutputParser, channels};
