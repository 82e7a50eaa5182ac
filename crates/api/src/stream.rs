//! An answer in the words of whichever API its client speaks: as a stream of events, or whole.

use crate::anthropic::events::{AnswerLimit, MessageEvents, push_message};
use crate::delta::{Delta, Identity, Usage};
use crate::openai::ApiError;
use crate::openai::response::{DONE, EventWriter, UsageMode, push_error_event, push_response};
use stator_body::Api;

/// Writes the events of one answer.
#[derive(Clone, Debug)]
pub enum AnswerEvents {
    /// Chunks of a chat or of a completion.
    Chunks(EventWriter),
    /// Events of a message.
    Message(MessageEvents),
}

/// The shape of an answer that its request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerForm {
    /// The API that the client speaks.
    pub api: Api,
    /// Usage in a stream's chunks, of chats and completions.
    pub usage: UsageMode,
    /// The bound on the prompt and its answer.
    pub limit: AnswerLimit,
}

impl AnswerEvents {
    /// Prepares the events of an answer.
    pub fn new(form: AnswerForm, identity: &Identity<'_>) -> Self {
        match form.api {
            Api::Messages => Self::Message(MessageEvents::new(identity, form.limit)),
            api => Self::Chunks(EventWriter::new(api, identity, form.usage)),
        }
    }

    /// Appends the events that begin the answer of so many choices.
    pub fn begin(&self, out: &mut Vec<u8>, choices: u32, so_far: Usage) {
        match self {
            Self::Chunks(writer) => (0..choices).for_each(|n| writer.role(out, n, so_far)),
            Self::Message(message) => message.begin(out, so_far),
        }
    }

    /// Appends the events of one delta; `so_far` is the request's usage up to and with it.
    pub fn delta(&mut self, out: &mut Vec<u8>, delta: &Delta<'_>, so_far: Usage) {
        match self {
            Self::Chunks(writer) => writer.delta(out, delta, so_far),
            Self::Message(message) => message.delta(out, delta),
        }
    }

    /// Appends the events that end the answer.
    pub fn end(&mut self, out: &mut Vec<u8>, usage: Usage) {
        match self {
            Self::Chunks(writer) => {
                if writer.has_usage() {
                    writer.usage(out, usage);
                }
                out.extend_from_slice(DONE);
            }
            Self::Message(message) => message.end(out, usage),
        }
    }

    /// Appends the events of an error, which end the answer.
    pub fn error(&self, out: &mut Vec<u8>, error: &ApiError) {
        match self {
            Self::Chunks(_) => {
                push_error_event(out, error);
                out.extend_from_slice(DONE);
            }
            Self::Message(message) => message.error(out, error),
        }
    }
}

/// Appends a whole answer: `choices` in order, each complete.
pub fn push_answer(
    out: &mut Vec<u8>,
    form: AnswerForm,
    identity: &Identity<'_>,
    choices: &[Delta<'_>],
    usage: Usage,
) {
    match form.api {
        Api::Messages => {
            let answer = choices.first().copied().unwrap_or_default();
            push_message(out, identity, form.limit, &answer, usage);
        }
        api => push_response(out, api, identity, choices, usage),
    }
}
