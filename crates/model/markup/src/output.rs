//! The text of one choice, taken apart as it comes.

use crate::event::{EventSink, OutputPlace};
use crate::families::{ReasoningFamily, ToolFamily};
use crate::harmony::Harmony;
use crate::tagged::TaggedOutput;
use crate::tools::KnownTools;

/// Takes the text of one choice in pieces, and tells thoughts, text and calls of it.
///
/// However the text is cut into pieces, the events say the same together.
#[derive(Debug)]
pub struct OutputParser {
    form: OutputForm,
}

#[derive(Debug)]
enum OutputForm {
    Tagged(Box<TaggedOutput>),
    Harmony(Box<Harmony>),
}

impl OutputParser {
    /// A parser of the markup of these families. `tools` are the functions that the request offers,
    /// whose schemas say the types of values; without a family of calls all calls are text. `inside`
    /// says that the prompt has opened thoughts.
    pub fn new(
        reasoning: Option<&'static ReasoningFamily>,
        calls: Option<&'static ToolFamily>,
        tools: KnownTools,
        inside: bool,
    ) -> Self {
        let harmony = calls.is_some_and(ToolFamily::holds_reasoning)
            || reasoning.is_some_and(|family| family.name() == "gpt_oss");
        let form = match harmony {
            true => OutputForm::Harmony(Box::default()),
            false => {
                OutputForm::Tagged(Box::new(TaggedOutput::new(reasoning, calls, tools, inside)))
            }
        };
        Self { form }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str, sink: &mut dyn EventSink) {
        match &mut self.form {
            OutputForm::Tagged(tagged) => tagged.push(text, sink),
            OutputForm::Harmony(harmony) => harmony.push(text, sink),
        }
    }

    /// Tells what was held back: no more text comes.
    pub fn finish(&mut self, sink: &mut dyn EventSink) {
        match &mut self.form {
            OutputForm::Tagged(tagged) => tagged.finish(sink),
            OutputForm::Harmony(harmony) => harmony.finish(sink),
        }
    }

    /// The place where the text has arrived.
    pub fn place(&self) -> OutputPlace {
        match &self.form {
            OutputForm::Tagged(tagged) => tagged.place(),
            OutputForm::Harmony(harmony) => harmony.place(),
        }
    }
}
