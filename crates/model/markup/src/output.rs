//! The text of one choice, taken apart as it comes.

use crate::channels::{ChannelMarkup, ChannelOutput};
use crate::event::{EventSink, OutputPlace};
use crate::families::{ReasoningFamily, ToolFamily};
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
    Channels(Box<ChannelOutput>),
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
        let form = match channels(reasoning, calls) {
            Some(markup) => {
                OutputForm::Channels(Box::new(ChannelOutput::new(markup, tools, inside)))
            }
            None => {
                OutputForm::Tagged(Box::new(TaggedOutput::new(reasoning, calls, tools, inside)))
            }
        };
        Self { form }
    }

    /// The parser, which goes on with the message that the prompt has begun: see
    /// `ChannelMarkup::begun`. Families that write no messages have none.
    #[must_use]
    pub fn going_on(mut self, message: Option<&str>) -> Self {
        if let (OutputForm::Channels(channels), Some(message)) = (&mut self.form, message) {
            channels.go_on(message);
        }
        self
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str, sink: &mut dyn EventSink) {
        match &mut self.form {
            OutputForm::Tagged(tagged) => tagged.push(text, sink),
            OutputForm::Channels(channels) => channels.push(text, sink),
        }
    }

    /// Tells what was held back: no more text comes.
    pub fn finish(&mut self, sink: &mut dyn EventSink) {
        match &mut self.form {
            OutputForm::Tagged(tagged) => tagged.finish(sink),
            OutputForm::Channels(channels) => channels.finish(sink),
        }
    }

    /// The place where the text has arrived.
    pub fn place(&self) -> OutputPlace {
        match &self.form {
            OutputForm::Tagged(tagged) => tagged.place(),
            OutputForm::Channels(channels) => channels.place(),
        }
    }
}

/// The markup of answers that are messages, for these families.
pub fn channels(
    reasoning: Option<&'static ReasoningFamily>,
    calls: Option<&'static ToolFamily>,
) -> Option<&'static ChannelMarkup> {
    match calls {
        // Calls outside of channels have no place within: these families are read by their texts.
        Some(family) => family.channels(),
        None => reasoning.and_then(|family| family.channels),
    }
}
