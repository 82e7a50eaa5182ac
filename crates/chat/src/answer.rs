//! An answer as it comes: the events of a stream, folded into a message. Pure.

use crate::control::harmless;
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use stator_bench::sse::SseParser;
use std::io;

/// Most calls of one answer; a server that sends more is refused.
pub(crate) const CALLS_MAX: usize = 128;
/// Largest text and arguments of one answer, in bytes; a server that sends more is refused.
const ANSWER_MAX_BYTES: usize = 64 << 20;

/// Part of an answer that is shown as soon as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Thoughts of the model.
    Reasoning(String),
    /// Text of the answer.
    Text(String),
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CalledTool {
    pub id: String,
    pub name: String,
    /// The arguments, JSON as the model wrote it.
    pub arguments: String,
}

/// Parts of an answer that have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerSoFar {
    pub text: String,
    pub calls: Vec<CalledTool>,
    /// The server's word for why it ended.
    pub finish: Option<String>,
    /// Bytes of text and arguments.
    pub kept_bytes: usize,
}

/// Reads an answer from the bytes of its stream, in whatever pieces they come.
#[derive(Debug, Default)]
pub(crate) struct AnswerReader {
    parser: SseParser,
    answer: AnswerSoFar,
}

impl AnswerReader {
    /// Takes the next bytes, and hands on what is to be shown of them.
    ///
    /// # Errors
    ///
    /// The errors of [`AnswerSoFar::event`], an event that is too long, and a part that finds no reader;
    /// nothing more is to be read then.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        on_piece: &mut impl FnMut(Piece) -> io::Result<()>,
    ) -> Result<()> {
        let (answer, mut taken) = (&mut self.answer, Ok(()));
        let fed = self.parser.feed(bytes, |event| {
            if taken.is_ok() {
                taken = answer
                    .event(event)
                    .and_then(|pieces| Ok(pieces.into_iter().try_for_each(&mut *on_piece)?));
            }
        });
        taken?;
        Ok(fed?)
    }

    /// The answer, once its stream is over.
    ///
    /// # Errors
    ///
    /// When the server has not said that it ends.
    pub(crate) fn finish(self) -> Result<AnswerSoFar> {
        ensure!(self.answer.has_ended(), "the answer broke off");
        Ok(self.answer)
    }
}

impl AnswerSoFar {
    /// Takes the data of one event; returns what is to be shown of it.
    ///
    /// # Errors
    ///
    /// When it is an error, or nothing that a server of the API sends.
    pub(crate) fn event(&mut self, data: &[u8]) -> Result<Vec<Piece>> {
        if data == b"[DONE]" {
            return Ok(Vec::new());
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            bail!("the server sent an event that is no JSON");
        };
        if let Some(message) = error_message(&event) {
            bail!("the answer broke off: {message}");
        }
        let choice = &event["choices"][0];
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        let delta = &choice["delta"];
        let part = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        let mut pieces = Vec::new();
        if let Some(text) = part("reasoning_content").or_else(|| part("reasoning")) {
            pieces.push(Piece::Reasoning(text.to_owned()));
        }
        if let Some(text) = part("content").or_else(|| part("refusal")) {
            self.keep(text.len())?;
            self.text.push_str(text);
            pieces.push(Piece::Text(text.to_owned()));
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call)?;
        }
        Ok(pieces)
    }

    /// Takes a part of a call.
    fn call(&mut self, part: &Value) -> Result<()> {
        let index = part["index"].as_u64().map_or(self.calls.len(), |index| index as usize);
        if index >= CALLS_MAX {
            bail!("the answer calls more than {CALLS_MAX} tools");
        }
        self.calls.resize_with(self.calls.len().max(index + 1), CalledTool::default);
        let arguments = part["function"]["arguments"].as_str().unwrap_or_default();
        self.keep(arguments.len())?;
        let call = &mut self.calls[index];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let function = &part["function"];
        if call.name.is_empty() {
            call.name = text(&function["name"]);
        }
        if call.id.is_empty() {
            call.id = text(&part["id"]);
        }
        call.arguments.push_str(arguments);
        Ok(())
    }

    /// Counts bytes of text or arguments.
    fn keep(&mut self, bytes: usize) -> Result<()> {
        self.kept_bytes += bytes;
        let limit = ANSWER_MAX_BYTES;
        ensure!(self.kept_bytes <= limit, "the answer has more than {limit} bytes, the limit");
        Ok(())
    }

    /// Whether the server has said that the answer ends.
    pub(crate) fn has_ended(&self) -> bool {
        self.finish.is_some()
    }

    /// The reason for which the answer is not whole, if it is not.
    pub(crate) fn cut_by(&self) -> Option<&str> {
        self.finish.as_deref().filter(|reason| !["stop", "tool_calls"].contains(reason))
    }

    /// The message as it stands in the conversation.
    pub(crate) fn message(&self) -> Value {
        let content = if self.text.is_empty() { Value::Null } else { self.text.as_str().into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(|call| {
                json!({"id": call.id, "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}})
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

/// The message of an error object, in any of the usual forms; without control characters.
pub(crate) fn error_message(body: &Value) -> Option<String> {
    let error = body.get("error").filter(|error| !error.is_null())?;
    let text = error["message"].as_str().or_else(|| error.as_str());
    Some(harmless(&text.map_or_else(|| error.to_string(), ToOwned::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(events: &[Value]) -> Result<(AnswerSoFar, Vec<Piece>)> {
        let (mut answer, mut pieces) = (AnswerSoFar::default(), Vec::new());
        for event in events {
            pieces.extend(answer.event(event.to_string().as_bytes())?);
        }
        Ok((answer, pieces))
    }

    fn chunk(delta: Value, finish: Option<&str>) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    }

    #[test]
    fn thoughts_text_and_end_are_told_apart() {
        let (answer, pieces) = fold(&[
            chunk(json!({"role": "assistant", "content": ""}), None),
            chunk(json!({"reasoning_content": "hm"}), None),
            chunk(json!({"reasoning": "m"}), None),
            chunk(json!({"content": "He"}), None),
            chunk(json!({"content": "llo"}), Some("length")),
            json!({"choices": [], "usage": {"completion_tokens": 2}}),
        ])
        .unwrap();
        let of = |text: &str| Piece::Text(text.to_owned());
        let thought = |text: &str| Piece::Reasoning(text.to_owned());
        assert_eq!(pieces, [thought("hm"), thought("m"), of("He"), of("llo")]);
        assert_eq!((answer.text.as_str(), answer.cut_by()), ("Hello", Some("length")));
        assert!(answer.has_ended());
        assert_eq!(answer.message(), json!({"role": "assistant", "content": "Hello"}));
    }

    #[test]
    fn calls_are_put_together_from_their_parts() {
        let first = json!({"index": 0, "id": "c1", "type": "function",
            "function": {"name": "f", "arguments": ""}});
        let second = json!({"index": 1, "id": "c2", "function": {"name": "g", "arguments": "{}"}});
        let part = |text: &str| json!({"index": 0, "function": {"arguments": text}});
        let (answer, pieces) = fold(&[
            chunk(json!({"tool_calls": [first]}), None),
            chunk(json!({"tool_calls": [part("{\"a\":"), part("1.0}")]}), None),
            chunk(json!({"tool_calls": [second]}), Some("tool_calls")),
        ])
        .unwrap();
        assert!(pieces.is_empty() && answer.cut_by().is_none());
        let message = answer.message();
        assert_eq!(message["content"], Value::Null);
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1.0}");
        assert_eq!(message["tool_calls"][1]["id"], "c2");
        let many = json!({"index": 1_u64 << 40, "function": {"name": "f"}});
        assert!(fold(&[chunk(json!({"tool_calls": [many]}), None)]).is_err());
    }

    #[test]
    fn errors_within_a_stream_are_errors() {
        let fault = |event: Value| fold(&[event]).unwrap_err().to_string();
        assert!(fault(json!({"error": {"message": "no room"}})).ends_with("no room"));
        assert!(fault(json!({"error": "no room"})).ends_with("no room"));
        assert!(
            fault(json!({"error": {"message": "\u{1b}]0;no room\u{7}"}})).ends_with("]0;no room")
        );
        assert!(AnswerSoFar::default().event(b"<html>").is_err());
        assert!(AnswerSoFar::default().event(b"[DONE]").unwrap().is_empty());
    }

    #[test]
    fn an_answer_without_an_end_is_refused() {
        let mut answer = AnswerSoFar::default();
        let text = "x".repeat(ANSWER_MAX_BYTES / 64);
        let content = chunk(json!({"content": text}), None).to_string();
        for _ in 0..64 {
            answer.event(content.as_bytes()).unwrap();
        }
        let arguments = json!({"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]});
        let error = answer.event(chunk(arguments, None).to_string().as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "the answer has more than 67108864 bytes, the limit");
    }
}
