//! A chat answer that is decoded in chunks: what the engine is asked for each of them, and the one
//! answer that the client gets. Pure: bodies in, bodies out.
//!
//! Each chunk is a request of its own for a bounded number of tokens and in one piece. From the
//! second on its last message is the assistant's text so far, which the engine goes on from: it
//! reads text, not tokens, so that chunks do not always continue as one answer would. A client that
//! asks for a stream gets an event per chunk.
//!
//! What depends on more than the text so far is not decoded in chunks at all: only requests whose
//! every member is known to bear it are, and only answers of text.
//!
//! Source: llm-d's sidecar, `--decode-chunk-size`.

use super::chunk::{Chunk, Unjoinable, is_nothing, members, number};
use bytes::Bytes;
use serde_json::value::RawValue;
use stator_api::openai::escape::push_json_str;
use stator_api::openai::response::DONE;
use stator_body::{Api, Object, ObjectEdit};
use stator_handover::is_single;
use std::num::NonZeroU32;

/// Longest joined answer, in bytes of its text and logprobs.
const JOINED_MAX_BYTES: usize = 16 << 20;

/// Members of a request that mean the same for each of its chunks as for all of it, or that this
/// module sets.
const JOINABLE: [&str; 37] = [
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "n",
    "best_of",
    "use_beam_search",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "parallel_tool_calls",
    "logprobs",
    "top_logprobs",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "priority",
    "cache_salt",
    "cache_hit_threshold",
    "lora_path",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
];
/// Others that do so where they are 0, which clients send for nothing at all.
const ZEROES: [&str; 2] = ["presence_penalty", "frequency_penalty"];

/// Why a request is decoded in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnePieceReason {
    /// One chunk has room for all that it may become.
    Short,
    /// It asks for several answers.
    Several,
    /// It has a member that asks for more than text, or for what depends on earlier chunks.
    Parameter,
    /// It is no object with messages that an answer can be put after.
    Messages,
    /// Its limit is none; the engine will say so.
    Limit,
    /// Its engines answer only what was handed over.
    HandedOver,
    /// The engine's answer cannot be gone on from.
    Answer,
}

impl OnePieceReason {
    /// The reason's name in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Several => "several_answers",
            Self::Parameter => "parameter",
            Self::Messages => "messages",
            Self::Limit => "limit",
            Self::HandedOver => "handed_over",
            Self::Answer => "answer",
        }
    }
}

/// The next bytes for the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Empty until the end for a client that asks for one piece.
    pub bytes: Bytes,
    /// Whether nothing follows.
    pub last: bool,
}

/// One answer on its way.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    request: Object<'a>,
    /// The client's messages without the bracket that closes them.
    messages: &'a [u8],
    /// Most tokens of a chunk.
    size: u64,
    /// Tokens that the client may still get; nothing where it sets no limit.
    left: Option<u64>,
    streams: bool,
    says_usage: bool,
    /// The first chunk's answer: its id, time and prompt are those of all.
    first: Bytes,
    text: String,
    /// Elements of the list of logprobs, with commas between them.
    logprobs: Vec<u8>,
    tokens: u64,
}

impl<'a> Chunks<'a> {
    /// Decodes a chat request in chunks of so many tokens at most.
    ///
    /// # Errors
    ///
    /// Why it had better be decoded in one piece.
    pub(crate) fn new(body: &'a [u8], size: NonZeroU32) -> Result<Self, OnePieceReason> {
        let members = members(body).ok_or(OnePieceReason::Messages)?;
        let request = Object::parse(body).map_err(|_| OnePieceReason::Messages)?;
        if !is_single(Api::ChatCompletions, &request) {
            return Err(OnePieceReason::Several);
        }
        let joins = |(name, raw): (&String, &&RawValue)| joins(name, raw.get());
        if !members.iter().all(joins) {
            return Err(OnePieceReason::Parameter);
        }
        let messages =
            request.get("messages").and_then(open_messages).ok_or(OnePieceReason::Messages)?;
        let size = u64::from(size.get());
        let left = limit(&request)?;
        // One chunk would hold the whole answer, and save nothing.
        if left.is_some_and(|left| left <= size) {
            return Err(OnePieceReason::Short);
        }
        let options = request.get("stream_options").and_then(|raw| Object::parse(raw).ok());
        let says = |name| options.as_ref().and_then(|it| it.get(name)) == Some(b"true");
        if says("continuous_usage_stats") {
            return Err(OnePieceReason::Parameter);
        }
        Ok(Self {
            messages,
            size,
            left,
            streams: request.get("stream") == Some(b"true"),
            says_usage: says("include_usage"),
            request,
            first: Bytes::new(),
            text: String::new(),
            logprobs: Vec::new(),
            tokens: 0,
        })
    }

    /// Whether the client gets events.
    pub(crate) fn streams(&self) -> bool {
        self.streams
    }

    /// The next request to the engine.
    pub(crate) fn ask(&self) -> Vec<u8> {
        let budget = self.budget().to_string();
        let edit = self.request.edit().remove(|name| name == "stream_options");
        let edit = edit.set("stream", "false").set("max_tokens", budget.clone());
        let edit = edit.set("max_completion_tokens", budget);
        if self.text.is_empty() {
            return edit.finish();
        }
        let mut messages = self.messages.to_vec();
        messages.extend_from_slice(b",{\"role\":\"assistant\",\"content\":");
        push_json_str(&mut messages, &self.text);
        messages.extend_from_slice(b"}]");
        let edit = edit.set("messages", messages).set("continue_final_message", "true");
        // A threshold is for the prompt: with one, the engine could give up half-way.
        edit.set("add_generation_prompt", "false").replace("cache_hit_threshold", "0").finish()
    }

    /// Takes the engine's answer to that.
    ///
    /// # Errors
    ///
    /// Why it cannot be joined to what came before; nothing has changed then.
    pub(crate) fn take(&mut self, answer: Bytes) -> Result<Part, Unjoinable> {
        let chunk = Chunk::read(&answer)?;
        let is_first = self.first.is_empty();
        // An engine that stops short of what it may do has no more room.
        let has_room = chunk.is_cut && chunk.tokens >= self.budget();
        let goes_on = has_room && self.left.is_none_or(|left| left > chunk.tokens);
        if is_first && !goes_on && !self.streams {
            return Ok(Part { bytes: answer, last: true });
        }
        if let Some(name) = &chunk.further {
            return Err(Unjoinable::NotText(name.clone()));
        }
        // The rest of a character that the engine has only the beginning of is asked for again.
        let text = match goes_on {
            true => chunk.text.trim_end_matches(char::REPLACEMENT_CHARACTER),
            false => &chunk.text,
        };
        if goes_on && text.is_empty() {
            return Err(Unjoinable::NoText);
        }
        let length = self.text.len() + self.logprobs.len() + text.len() + chunk.logprobs.len();
        if length > JOINED_MAX_BYTES {
            return Err(Unjoinable::TooLong { limit: JOINED_MAX_BYTES });
        }
        if is_first {
            self.first = answer.clone();
        }
        self.tokens += chunk.tokens;
        self.left = self.left.map(|left| left.saturating_sub(chunk.tokens));
        self.text.push_str(text);
        if !self.logprobs.is_empty() && !chunk.logprobs.is_empty() {
            self.logprobs.push(b',');
        }
        self.logprobs.extend_from_slice(chunk.logprobs);
        let bytes = match (self.streams, goes_on) {
            (true, true) => self.event(event_choice(&chunk.choice, text, is_first, true)),
            (true, false) => self.last_events(event_choice(&chunk.choice, text, is_first, false)),
            (false, true) => Vec::new(),
            (false, false) => self.joined(&chunk),
        };
        Ok(Part { bytes: bytes.into(), last: !goes_on })
    }

    /// Tokens that the next chunk may have.
    fn budget(&self) -> u64 {
        self.left.map_or(self.size, |left| left.min(self.size))
    }

    /// The answer in one piece, which `last` ends.
    fn joined(&self, last: &Chunk<'_>) -> Vec<u8> {
        let message = last.message.edit().set("content", json_str(&self.text)).finish();
        let mut choice = last.choice.edit().set("message", message);
        if !self.logprobs.is_empty() {
            let lists = [&b"{\"content\":["[..], &self.logprobs, b"]}"].concat();
            choice = choice.set("logprobs", lists);
        }
        let first = self.first();
        let edit = first.edit().set("choices", list(choice.finish()));
        edit.set("usage", self.usage(&first)).finish()
    }

    /// The event of a chunk.
    fn event(&self, choice: Vec<u8>) -> Vec<u8> {
        let first = self.first();
        let edit = event_head(&first).set("choices", list(choice));
        data(if self.says_usage { edit.set("usage", "null") } else { edit }.finish())
    }

    /// The event of the last chunk and what follows it.
    fn last_events(&self, choice: Vec<u8>) -> Vec<u8> {
        let mut events = self.event(choice);
        if self.says_usage {
            let first = self.first();
            let edit = event_head(&first).set("choices", "[]");
            events.extend_from_slice(&data(edit.set("usage", self.usage(&first)).finish()));
        }
        events.extend_from_slice(DONE);
        events
    }

    fn first(&self) -> Object<'_> {
        Object::parse(&self.first).expect("it was read before")
    }

    /// The prompt is the client's, and the tokens are those of all chunks.
    fn usage(&self, first: &Object<'_>) -> Vec<u8> {
        let usage = first.get("usage").and_then(|raw| Object::parse(raw).ok());
        let usage = usage.expect("it was read before");
        let total = number(&usage, "prompt_tokens").unwrap_or_default() + self.tokens;
        // Kinds of tokens of the first chunk alone.
        let edit = usage.edit().remove(|name| name == "completion_tokens_details");
        let edit = edit.set("completion_tokens", self.tokens.to_string());
        edit.set("total_tokens", total.to_string()).finish()
    }
}

/// The choice of an event: a chunk's without its message, but with the text.
fn event_choice(choice: &Object<'_>, text: &str, is_first: bool, goes_on: bool) -> Vec<u8> {
    let role = if is_first { r#""role":"assistant","# } else { "" };
    let delta = [b"{", role.as_bytes(), b"\"content\":", &json_str(text), b"}"].concat();
    let edit = choice.edit().remove(|name| name == "message").set("delta", delta);
    if goes_on { edit.set("finish_reason", "null") } else { edit }.finish()
}

/// The fields that all events of an answer share.
fn event_head<'o, 'a>(first: &'o Object<'a>) -> ObjectEdit<'o, 'a> {
    const SHARED: [&str; 5] = ["id", "created", "model", "system_fingerprint", "service_tier"];
    let edit = first.edit().remove(|name| !SHARED.contains(&name));
    edit.set("object", "\"chat.completion.chunk\"")
}

fn data(mut event: Vec<u8>) -> Vec<u8> {
    // Outside strings, where they are escaped, these are space.
    for byte in event.iter_mut().filter(|byte| [b'\n', b'\r'].contains(*byte)) {
        *byte = b' ';
    }
    [b"data: ", &event[..], b"\n\n"].concat()
}

fn list(element: Vec<u8>) -> Vec<u8> {
    [b"[", &element[..], b"]"].concat()
}

fn json_str(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    push_json_str(&mut out, text);
    out
}

/// Whether a member of a request lets it be decoded in chunks.
fn joins(name: &str, raw: &str) -> bool {
    let is_zero = || raw.parse::<f64>().is_ok_and(|number| number == 0.0);
    JOINABLE.contains(&name) || is_nothing(raw) || ZEROES.contains(&name) && is_zero()
}

/// Messages without the bracket that closes them, where the last is none of the assistant's.
fn open_messages(raw: &[u8]) -> Option<&[u8]> {
    let messages: Vec<&RawValue> = serde_json::from_slice(raw).ok()?;
    let last = Object::parse(messages.last()?.get().as_bytes()).ok()?;
    if last.get("role")? == b"\"assistant\"" {
        return None;
    }
    raw.strip_suffix(b"]")
}

/// Tokens that a request asks for at most.
fn limit(request: &Object<'_>) -> Result<Option<u64>, OnePieceReason> {
    let given = |name| request.get(name).filter(|raw| **raw != *b"null");
    match given("max_completion_tokens").or_else(|| given("max_tokens")) {
        None => Ok(None),
        Some(raw) => match serde_json::from_slice(raw) {
            Ok(limit @ 1..) => Ok(Some(limit)),
            _ => Err(OnePieceReason::Limit),
        },
    }
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
