//! Writing answers: event streams and single bodies, straight into bytes.
//!
//! A stream's id, time and model are written once, into a prefix, so that a token costs a copy and
//! an escape.

use super::error::ApiError;
use super::escape::{push_escaped, push_int, push_json_str};
use super::logprobs::{self, TokenLogprob, push_list};

/// The end of every event stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// Which route answers; the two have different shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context length.
    Length,
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Tokens generated for all choices.
    pub completion_tokens: u32,
    /// Tokens of the prompts whose KV was already there.
    pub cached_tokens: u32,
}

/// What identifies a response.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// Unique; the route's prefix (`chatcmpl-`, `cmpl-`) is put before it.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model, as the request named it.
    pub model: &'a str,
}

/// A piece of one choice: all of it in a single body, a part of it in a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece<'a> {
    /// The choice, from 0.
    pub choice: u32,
    /// The text; may be empty.
    pub text: &'a str,
    /// The logprobs of the piece's tokens, where the request asked for them.
    pub logprobs: Option<&'a [TokenLogprob]>,
    /// The ids of the piece's tokens, where the request asked for them.
    pub token_ids: Option<&'a [u32]>,
    /// Set on a choice's last piece.
    pub finish: Option<FinishReason>,
}

/// What a stream's chunks say about usage.
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
    api: Api,
    usage: UsageMode,
    /// `data: {"id":…,"choices":[`, the same for every event.
    prefix: Box<[u8]>,
}

impl EventWriter {
    /// Prepares what all events of the stream share.
    pub fn new(api: Api, identity: &Identity<'_>, usage: UsageMode) -> Self {
        let mut prefix = Vec::with_capacity(160 + identity.model.len());
        prefix.extend_from_slice(b"data: ");
        push_head(&mut prefix, api, identity, true);
        Self { api, usage, prefix: prefix.into_boxed_slice() }
    }

    /// Whether the stream ends with [`EventWriter::usage`].
    pub fn has_usage(&self) -> bool {
        self.usage != UsageMode::Off
    }

    /// Appends a chat's first event of a choice, which names the role. Completions have none.
    pub fn role(&self, out: &mut Vec<u8>, choice: u32, so_far: Usage) {
        if self.api == Api::Completion {
            return;
        }
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(b"{\"index\":");
        push_int(out, choice);
        out.extend_from_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":null}]");
        self.end(out, so_far);
    }

    /// Appends the event of one piece; `so_far` is the request's usage up to and with it.
    pub fn piece(&self, out: &mut Vec<u8>, piece: &Piece<'_>, so_far: Usage) {
        out.reserve(self.prefix.len() + piece.text.len() + 96);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(b"{\"index\":");
        push_int(out, piece.choice);
        match self.api {
            // A chat's last event has an empty delta unless text is left.
            Api::Chat if piece.text.is_empty() && piece.finish.is_some() => {
                out.extend_from_slice(b",\"delta\":{}")
            }
            Api::Chat => {
                out.extend_from_slice(b",\"delta\":{\"content\":\"");
                push_escaped(out, piece.text);
                out.extend_from_slice(b"\"}");
            }
            Api::Completion => {
                out.extend_from_slice(b",\"text\":\"");
                push_escaped(out, piece.text);
                out.push(b'"');
            }
        }
        push_rest(out, self.api, piece);
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
    choices: &[Piece<'_>],
    usage: Usage,
) {
    push_head(out, api, identity, false);
    for (at, choice) in choices.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        push_int(out, choice.choice);
        match api {
            Api::Chat => {
                out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
                push_json_str(out, choice.text);
                out.extend_from_slice(b",\"refusal\":null}");
            }
            Api::Completion => {
                out.extend_from_slice(b",\"text\":");
                push_json_str(out, choice.text);
            }
        }
        push_rest(out, api, choice);
    }
    out.extend_from_slice(b"],\"usage\":");
    push_usage(out, usage);
    out.push(b'}');
}

/// `{"id":…,"object":…,"created":…,"model":…,"choices":[`.
fn push_head(out: &mut Vec<u8>, api: Api, identity: &Identity<'_>, stream: bool) {
    let (prefix, object) = match (api, stream) {
        (Api::Chat, true) => ("chatcmpl-", "chat.completion.chunk"),
        (Api::Chat, false) => ("chatcmpl-", "chat.completion"),
        (Api::Completion, _) => ("cmpl-", "text_completion"),
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
fn push_rest(out: &mut Vec<u8>, api: Api, piece: &Piece<'_>) {
    out.extend_from_slice(b",\"logprobs\":");
    match (piece.logprobs, api) {
        (None, _) => out.extend_from_slice(b"null"),
        (Some(tokens), Api::Chat) => logprobs::push_chat(out, tokens),
        (Some(tokens), Api::Completion) => logprobs::push_completion(out, tokens),
    }
    if let Some(ids) = piece.token_ids {
        out.extend_from_slice(b",\"token_ids\":");
        push_list(out, ids, |out, id| push_int(out, *id));
    }
    out.extend_from_slice(match piece.finish {
        None => b",\"finish_reason\":null}".as_slice(),
        Some(FinishReason::Stop) => b",\"finish_reason\":\"stop\"}",
        Some(FinishReason::Length) => b",\"finish_reason\":\"length\"}",
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
    out.extend_from_slice(b"}}");
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
