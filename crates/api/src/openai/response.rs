//! Writing answers: event streams and single bodies, straight into bytes.
//!
//! A stream's id, time and model are written once, into a prefix, so that a token costs a copy and
//! an escape.

use super::error::ApiError;
use super::escape::{push_escaped, push_int, push_json_str};
use super::logprobs::{self, push_list};
use super::message;
use crate::delta::{Delta, FinishReason, Identity, Usage};
use stator_body::Api;

/// The end of every event stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// The shape of an answer. Completions hold text, and every other API a chat's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerShape {
    Message,
    Text,
}

impl AnswerShape {
    fn of(api: Api) -> Self {
        if api == Api::Completions { Self::Text } else { Self::Message }
    }
}

/// Usage numbers in a stream's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageMode {
    /// Nothing.
    Off,
    /// `null`, and the numbers in a last chunk without choices.
    Last,
    /// The numbers so far in every chunk, and a last chunk without choices.
    Continuous,
}

impl UsageMode {
    /// From `stream_options`.
    pub fn new(include_usage: bool, continuous: bool) -> Self {
        match (include_usage, continuous) {
            (false, _) => Self::Off,
            (true, false) => Self::Last,
            (true, true) => Self::Continuous,
        }
    }
}

/// Writes the events of one stream.
#[derive(Clone, Debug)]
pub struct EventWriter {
    shape: AnswerShape,
    usage: UsageMode,
    /// `data: {"id":…,"choices":[`, the same for every event.
    prefix: Box<[u8]>,
}

impl EventWriter {
    /// Prepares what all events of the stream share.
    pub fn new(api: Api, identity: &Identity<'_>, usage: UsageMode) -> Self {
        let shape = AnswerShape::of(api);
        let mut prefix = Vec::with_capacity(160 + identity.model.len());
        prefix.extend_from_slice(b"data: ");
        push_head(&mut prefix, shape, identity, true);
        Self { shape, usage, prefix: prefix.into_boxed_slice() }
    }

    /// Whether the stream ends with [`EventWriter::usage`].
    pub fn has_usage(&self) -> bool {
        self.usage != UsageMode::Off
    }

    /// Appends a chat's first event of a choice, which names the role. Completions have none.
    pub fn role(&self, out: &mut Vec<u8>, choice: u32, so_far: Usage) {
        if self.shape == AnswerShape::Text {
            return;
        }
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(b"{\"index\":");
        push_int(out, choice);
        out.extend_from_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":null}]");
        self.end(out, so_far);
    }

    /// Appends the event of one delta; `so_far` is the request's usage up to and with it.
    pub fn delta(&self, out: &mut Vec<u8>, delta: &Delta<'_>, so_far: Usage) {
        out.reserve(self.prefix.len() + delta.text.len() + 96);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(b"{\"index\":");
        push_int(out, delta.choice);
        match self.shape {
            AnswerShape::Message => {
                out.extend_from_slice(b",\"delta\":");
                message::push_delta(out, delta);
            }
            AnswerShape::Text => {
                out.extend_from_slice(b",\"text\":\"");
                push_escaped(out, delta.text);
                out.push(b'"');
            }
        }
        push_rest(out, self.shape, delta);
        out.push(b']');
        self.end(out, so_far);
    }

    /// Appends the event without choices that ends a stream which asked for its usage.
    pub fn usage(&self, out: &mut Vec<u8>, usage: Usage) {
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(b"],\"usage\":");
        push_usage(out, usage);
        out.extend_from_slice(b"}\n\n");
    }

    fn end(&self, out: &mut Vec<u8>, so_far: Usage) {
        match self.usage {
            UsageMode::Off => {}
            UsageMode::Last => out.extend_from_slice(b",\"usage\":null"),
            UsageMode::Continuous => {
                out.extend_from_slice(b",\"usage\":");
                push_usage(out, so_far);
            }
        }
        out.extend_from_slice(b"}\n\n");
    }
}

/// Appends an error to a stream that has begun: `data: {"error":…}`.
pub fn push_error_event(out: &mut Vec<u8>, error: &ApiError) {
    out.extend_from_slice(b"data: ");
    error.write_json(out);
    out.extend_from_slice(b"\n\n");
}

/// Appends a whole response: `choices` in order, each complete.
pub fn push_response(
    out: &mut Vec<u8>,
    api: Api,
    identity: &Identity<'_>,
    choices: &[Delta<'_>],
    usage: Usage,
) {
    let shape = AnswerShape::of(api);
    push_head(out, shape, identity, false);
    for (at, choice) in choices.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        push_int(out, choice.choice);
        match shape {
            AnswerShape::Message => {
                out.extend_from_slice(b",\"message\":");
                message::push_whole(out, choice);
            }
            AnswerShape::Text => {
                out.extend_from_slice(b",\"text\":");
                push_json_str(out, choice.text);
            }
        }
        push_rest(out, shape, choice);
    }
    // A whole answer always says what it took; only streams have to be asked.
    out.extend_from_slice(b"],\"usage\":");
    push_usage(out, usage);
    out.push(b'}');
}

/// `{"id":…,"object":…,"created":…,"model":…,"choices":[`.
fn push_head(out: &mut Vec<u8>, shape: AnswerShape, identity: &Identity<'_>, stream: bool) {
    let (prefix, object) = match (shape, stream) {
        (AnswerShape::Message, true) => ("chatcmpl-", "chat.completion.chunk"),
        (AnswerShape::Message, false) => ("chatcmpl-", "chat.completion"),
        (AnswerShape::Text, _) => ("cmpl-", "text_completion"),
    };
    out.extend_from_slice(b"{\"id\":\"");
    out.extend_from_slice(prefix.as_bytes());
    push_escaped(out, identity.id);
    out.extend_from_slice(b"\",\"object\":");
    push_json_str(out, object);
    out.extend_from_slice(b",\"created\":");
    push_int(out, identity.created);
    out.extend_from_slice(b",\"model\":");
    push_json_str(out, identity.model);
    out.extend_from_slice(b",\"choices\":[");
}

/// The members of a choice after its text, and its closing brace.
fn push_rest(out: &mut Vec<u8>, shape: AnswerShape, delta: &Delta<'_>) {
    out.extend_from_slice(b",\"logprobs\":");
    match (delta.logprobs, shape) {
        (None, _) => out.extend_from_slice(b"null"),
        (Some(tokens), AnswerShape::Message) => logprobs::push_chat(out, tokens),
        (Some(tokens), AnswerShape::Text) => logprobs::push_completion(out, tokens),
    }
    if let Some(ids) = delta.token_ids {
        out.extend_from_slice(b",\"token_ids\":");
        push_list(out, ids, |out, id| push_int(out, *id));
    }
    out.extend_from_slice(match delta.finish {
        None => b",\"finish_reason\":null}".as_slice(),
        Some(FinishReason::Stop) => b",\"finish_reason\":\"stop\"}",
        Some(FinishReason::Length) => b",\"finish_reason\":\"length\"}",
        Some(FinishReason::ToolCalls) => b",\"finish_reason\":\"tool_calls\"}",
        Some(FinishReason::ContentFilter) => b",\"finish_reason\":\"content_filter\"}",
    });
}

fn push_usage(out: &mut Vec<u8>, usage: Usage) {
    out.extend_from_slice(b"{\"prompt_tokens\":");
    push_int(out, usage.prompt_tokens);
    out.extend_from_slice(b",\"completion_tokens\":");
    push_int(out, usage.completion_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    push_int(out, u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens));
    out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
    push_int(out, usage.cached_tokens);
    if usage.pinned_tokens > 0 {
        out.extend_from_slice(b",\"cache_write_tokens\":");
        push_int(out, usage.written_tokens());
    }
    out.push(b'}');
    if usage.reasoning_tokens > 0 {
        out.extend_from_slice(b",\"completion_tokens_details\":{\"reasoning_tokens\":");
        push_int(out, usage.reasoning_tokens);
        out.push(b'}');
    }
    out.push(b'}');
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
