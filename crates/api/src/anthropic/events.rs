//! Answers of the Messages API: a whole message, or its events.
//!
//! Source: the "Streaming messages" page of Anthropic's API reference, and what its Python client
//! demands of a stream: names of events, blocks numbered without gaps, usage in `message_delta`.

use super::error::push_error;
use crate::delta::{Delta, FinishReason, Identity, ToolCallDelta, Usage};
use crate::openai::ApiError;
use crate::openai::escape::{push_escaped, push_int, push_json_str};
use crate::partial_json;

/// The block that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    /// The call of this number.
    Call(u32),
}

/// Writes the events of one message.
#[derive(Clone, Debug)]
pub struct MessageEvents {
    open: Option<OpenBlock>,
    /// Blocks that were closed.
    closed: u32,
    /// The beginning of `message_start`, up to its usage.
    start: Box<[u8]>,
    id: Box<str>,
    limit: AnswerLimit,
    ending: Option<Ending>,
}

/// Ends of an answer that its last event tells.
#[derive(Clone, Debug)]
struct Ending {
    finish: FinishReason,
    stop_string: Option<Box<str>>,
}

/// The bound on a prompt and its answer together, in tokens; 0 if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimit(pub u32);

impl AnswerLimit {
    /// Why the answer ended, in this API's words.
    fn reason(self, finish: FinishReason, stop_string: Option<&str>, usage: Usage) -> &'static str {
        match finish {
            FinishReason::Stop if stop_string.is_some() => "stop_sequence",
            FinishReason::Stop => "end_turn",
            FinishReason::Length => {
                let all = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
                match self.0 > 0 && all >= u64::from(self.0) {
                    true => "model_context_window_exceeded",
                    false => "max_tokens",
                }
            }
            FinishReason::ToolCalls => "tool_use",
            FinishReason::ContentFilter => "refusal",
        }
    }
}

impl MessageEvents {
    /// Prepares the stream of a message.
    pub fn new(identity: &Identity<'_>, limit: AnswerLimit) -> Self {
        let mut start =
            b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":".to_vec();
        push_head(&mut start, identity);
        start.extend_from_slice(b"[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        Self {
            open: None,
            closed: 0,
            start: start.into(),
            id: identity.id.into(),
            limit,
            ending: None,
        }
    }

    /// Appends the event that begins the message, with the tokens of the prompt.
    pub fn begin(&self, out: &mut Vec<u8>, usage: Usage) {
        out.extend_from_slice(&self.start);
        push_usage(out, usage);
        out.extend_from_slice(b"}}\n\n");
    }

    /// Appends the events of new output.
    pub fn delta(&mut self, out: &mut Vec<u8>, delta: &Delta<'_>) {
        if !delta.reasoning.is_empty() {
            self.enter(out, OpenBlock::Thinking, None);
            self.piece(out, "thinking_delta", "thinking", delta.reasoning);
        }
        if !delta.text.is_empty() {
            self.enter(out, OpenBlock::Text, None);
            self.piece(out, "text_delta", "text", delta.text);
        }
        for call in delta.tool_calls {
            self.enter(out, OpenBlock::Call(call.index), Some(call));
            if !call.arguments.is_empty() {
                self.piece(out, "input_json_delta", "partial_json", call.arguments);
            }
        }
        if let Some(finish) = delta.finish {
            let stop_string = delta.stop_string.map(Into::into);
            self.ending = Some(Ending { finish, stop_string });
        }
    }

    /// Appends the events that end the message.
    pub fn end(&mut self, out: &mut Vec<u8>, usage: Usage) {
        self.close(out);
        out.extend_from_slice(
            b"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{",
        );
        push_ending(out, self.limit, self.ending.as_ref(), usage);
        out.extend_from_slice(b"},\"usage\":");
        push_usage(out, usage);
        out.extend_from_slice(b"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    /// Appends the event of an error, which ends the stream.
    pub fn error(&self, out: &mut Vec<u8>, error: &ApiError) {
        out.extend_from_slice(b"event: error\ndata: ");
        push_error(out, error, &self.id);
        out.extend_from_slice(b"\n\n");
    }

    /// Makes `block` the one that is written; `call` names it if it is a new call.
    fn enter(&mut self, out: &mut Vec<u8>, block: OpenBlock, call: Option<&ToolCallDelta<'_>>) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        out.extend_from_slice(b"event: content_block_start\ndata: ");
        out.extend_from_slice(b"{\"type\":\"content_block_start\",\"index\":");
        push_int(out, self.closed);
        out.extend_from_slice(b",\"content_block\":");
        match block {
            OpenBlock::Text => out.extend_from_slice(b"{\"type\":\"text\",\"text\":\"\"}"),
            OpenBlock::Thinking => {
                out.extend_from_slice(
                    b"{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}",
                );
            }
            OpenBlock::Call(_) => {
                push_call_head(out, call);
                out.extend_from_slice(b"{}}");
            }
        }
        out.extend_from_slice(b"}\n\n");
        self.open = Some(block);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_none() {
            return;
        }
        out.extend_from_slice(b"event: content_block_stop\ndata: ");
        out.extend_from_slice(b"{\"type\":\"content_block_stop\",\"index\":");
        push_int(out, self.closed);
        out.extend_from_slice(b"}\n\n");
        self.closed += 1;
    }

    fn piece(&self, out: &mut Vec<u8>, kind: &str, member: &str, text: &str) {
        out.extend_from_slice(b"event: content_block_delta\ndata: ");
        out.extend_from_slice(b"{\"type\":\"content_block_delta\",\"index\":");
        push_int(out, self.closed);
        out.extend_from_slice(b",\"delta\":{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"");
        out.extend_from_slice(member.as_bytes());
        out.extend_from_slice(b"\":\"");
        push_escaped(out, text);
        out.extend_from_slice(b"\"}}\n\n");
    }
}

/// Appends a whole message.
pub fn push_message(
    out: &mut Vec<u8>,
    identity: &Identity<'_>,
    limit: AnswerLimit,
    answer: &Delta<'_>,
    usage: Usage,
) {
    push_head(out, identity);
    out.push(b'[');
    let first = out.len();
    let separate = |out: &mut Vec<u8>| {
        if out.len() > first {
            out.push(b',');
        }
    };
    if !answer.reasoning.is_empty() {
        out.extend_from_slice(b"{\"type\":\"thinking\",\"thinking\":");
        push_json_str(out, answer.reasoning);
        out.extend_from_slice(b",\"signature\":\"\"}");
    }
    if !answer.text.is_empty() {
        separate(out);
        out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
        push_json_str(out, answer.text);
        out.push(b'}');
    }
    for call in answer.tool_calls {
        separate(out);
        push_call_head(out, Some(call));
        // An object is an object here, and text of one in the delta.
        match call.arguments.trim() {
            arguments if partial_json::is_object(arguments) => {
                out.extend_from_slice(arguments.as_bytes());
            }
            // A call that was cut, or that the model wrote wrong.
            arguments => serde_json::to_writer(&mut *out, &partial_json::arguments(arguments))
                .expect("JSON that was read can be written"),
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"],");
    let ending = answer
        .finish
        .map(|finish| Ending { finish, stop_string: answer.stop_string.map(Into::into) });
    push_ending(out, limit, ending.as_ref(), usage);
    out.extend_from_slice(b",\"usage\":");
    push_usage(out, usage);
    out.push(b'}');
}

/// `{"id":…,"type":"message","role":"assistant","model":…,"content":`.
fn push_head(out: &mut Vec<u8>, identity: &Identity<'_>) {
    out.extend_from_slice(b"{\"id\":\"msg_");
    push_escaped(out, identity.id);
    out.extend_from_slice(b"\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    push_json_str(out, identity.model);
    out.extend_from_slice(b",\"content\":");
}

/// A call up to its input.
fn push_call_head(out: &mut Vec<u8>, call: Option<&ToolCallDelta<'_>>) {
    let start = call.and_then(|call| call.start);
    out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":");
    push_json_str(out, start.map_or("", |start| start.id));
    out.extend_from_slice(b",\"name\":");
    push_json_str(out, start.map_or("", |start| start.name));
    out.extend_from_slice(b",\"input\":");
}

/// `"stop_reason":…,"stop_sequence":…`.
fn push_ending(out: &mut Vec<u8>, limit: AnswerLimit, ending: Option<&Ending>, usage: Usage) {
    let finish = ending.map_or(FinishReason::Stop, |ending| ending.finish);
    let stop_string = ending.and_then(|ending| ending.stop_string.as_deref());
    out.extend_from_slice(b"\"stop_reason\":\"");
    out.extend_from_slice(limit.reason(finish, stop_string, usage).as_bytes());
    out.extend_from_slice(b"\",\"stop_sequence\":");
    match stop_string.filter(|_| finish == FinishReason::Stop) {
        Some(text) => push_json_str(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// The tokens of a message. Those of the prompt that were cached, or are from now on for as long as
/// the client wished, are counted apart.
fn push_usage(out: &mut Vec<u8>, usage: Usage) {
    let cached = usage.cached_tokens.min(usage.prompt_tokens);
    out.extend_from_slice(b"{\"input_tokens\":");
    let written = usage.written_tokens();
    push_int(out, usage.prompt_tokens - cached - written);
    out.extend_from_slice(b",\"cache_creation_input_tokens\":");
    push_int(out, written);
    out.extend_from_slice(b",\"cache_read_input_tokens\":");
    push_int(out, cached);
    out.extend_from_slice(b",\"output_tokens\":");
    push_int(out, usage.completion_tokens);
    if usage.reasoning_tokens > 0 {
        out.extend_from_slice(b",\"output_tokens_details\":{\"thinking_tokens\":");
        push_int(out, usage.reasoning_tokens);
        out.push(b'}');
    }
    out.push(b'}');
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
