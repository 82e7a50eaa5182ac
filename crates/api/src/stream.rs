//! An answer in the words of whichever API its client speaks: as a stream of events, or whole.

use crate::anthropic::events::{AnswerLimit, MessageEvents, push_message};
use crate::delta::{Delta, Identity, Usage};
use crate::openai::ApiError;
use crate::openai::response::{DONE, EventWriter, UsageMode, push_error_event, push_response};
use crate::responses::{RequestEcho, ResponseEvents};
use stator_body::Api;

/// Writes the events of one answer.
#[derive(Clone, Debug)]
pub enum AnswerEvents {
    /// Chunks of a chat or of a completion.
    Chunks(EventWriter),
    /// Events of a message.
    Message(MessageEvents),
    /// Events of a response.
    Response(Box<ResponseEvents>),
}

/// The shape of an answer that its request asks for.
#[derive(Clone, Debug)]
pub struct AnswerForm {
    /// The API that the client speaks.
    pub api: Api,
    /// Usage in a stream's chunks, of chats and completions.
    pub usage: UsageMode,
    /// The bound on the prompt and its answer.
    pub limit: AnswerLimit,
    /// Parts of its request that a response repeats or depends on.
    pub echo: Option<RequestEcho>,
    /// Tells the seconds since 1970.
    pub now: fn() -> u64,
}

impl AnswerForm {
    /// The events of a response of this form.
    pub fn response(&self, identity: &Identity<'_>) -> ResponseEvents {
        ResponseEvents::new(identity, self.echo.clone().unwrap_or_default(), self.now)
    }
}

impl AnswerEvents {
    /// Prepares the events of an answer.
    pub fn new(form: &AnswerForm, identity: &Identity<'_>) -> Self {
        match form.api {
            Api::Messages => Self::Message(MessageEvents::new(identity, form.limit)),
            Api::Responses => Self::Response(Box::new(form.response(identity))),
            api => Self::Chunks(EventWriter::new(api, identity, form.usage)),
        }
    }

    /// Appends the events that begin the answer of so many choices.
    pub fn begin(&mut self, out: &mut Vec<u8>, choices: u32, so_far: Usage) {
        match self {
            Self::Chunks(writer) => (0..choices).for_each(|n| writer.role(out, n, so_far)),
            Self::Message(message) => message.begin(out, so_far),
            Self::Response(response) => response.begin(out),
        }
    }

    /// Appends the events of one delta; `so_far` is the request's usage up to and with it.
    pub fn delta(&mut self, out: &mut Vec<u8>, delta: &Delta<'_>, so_far: Usage) {
        match self {
            Self::Chunks(writer) => writer.delta(out, delta, so_far),
            Self::Message(message) => message.delta(out, delta),
            Self::Response(response) => response.delta(out, delta),
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
            Self::Response(response) => response.end(out, usage),
        }
    }

    /// Appends a sign of life: a comment, or an event where the API has one for it.
    pub fn comment(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self {
            // Its clients look for a message's beginning first.
            Self::Message(_) => b"event: ping\ndata: {\"type\":\"ping\"}\n\n".as_slice(),
            Self::Chunks(_) | Self::Response(_) => b": waiting\n\n",
        });
    }

    /// Appends the events of an error, which end the answer.
    pub fn error(&mut self, out: &mut Vec<u8>, error: &ApiError) {
        match self {
            Self::Chunks(_) => {
                push_error_event(out, error);
                out.extend_from_slice(DONE);
            }
            Self::Message(message) => message.error(out, error),
            Self::Response(response) => response.error(out, error),
        }
    }

    /// The response as it is now, if the answer is one.
    pub fn response(&self) -> Option<&ResponseEvents> {
        match self {
            Self::Response(response) => Some(response),
            Self::Chunks(_) | Self::Message(_) => None,
        }
    }
}

/// Appends a whole answer: `choices` in order, each complete. A response is returned as well.
pub fn push_answer(
    out: &mut Vec<u8>,
    form: &AnswerForm,
    identity: &Identity<'_>,
    choices: &[Delta<'_>],
    usage: Usage,
) -> Option<ResponseEvents> {
    let answer = || choices.first().copied().unwrap_or_default();
    match form.api {
        Api::Messages => push_message(out, identity, form.limit, &answer(), usage),
        Api::Responses => {
            // The fold of its own events, which nobody reads.
            let (mut response, mut events) = (form.response(identity), Vec::new());
            response.begin(&mut events);
            response.delta(&mut events, &answer());
            response.end(&mut events, usage);
            response.push_object(out);
            return Some(response);
        }
        api => push_response(out, api, identity, choices, usage),
    }
    None
}
