//! An engine's answer for one chunk of a chat: what the next chunk and the client's answer are made
//! of. Pure.

use serde_json::value::RawValue;
use stator_body::Object;
use std::collections::BTreeMap;

/// Why a chunk cannot be joined to the others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unjoinable {
    #[error("the engine's answer for a chunk is none of a chat: {0}")]
    Malformed(&'static str),
    #[error("the engine's answer for a chunk has more than text: {0}")]
    NotText(String),
    #[error("the engine's answer for a chunk has no text to go on from")]
    NoText,
    #[error("the answer is longer than {limit} bytes")]
    TooLong { limit: usize },
}

/// An engine's answer for one chunk.
pub(super) struct Chunk<'a> {
    pub choice: Object<'a>,
    pub message: Object<'a>,
    pub text: String,
    /// The name of what the message has beside its text.
    pub further: Option<String>,
    /// Elements of the list of logprobs.
    pub logprobs: &'a [u8],
    pub tokens: u64,
    /// Whether it ended where its tokens did.
    pub is_cut: bool,
}

impl<'a> Chunk<'a> {
    /// Reads an answer.
    ///
    /// # Errors
    ///
    /// What it lacks.
    pub(super) fn read(answer: &'a [u8]) -> Result<Self, Unjoinable> {
        let object = |raw: Option<&'a [u8]>, name| {
            let object = raw.and_then(|raw| Object::parse(raw).ok());
            object.ok_or(Unjoinable::Malformed(name))
        };
        let root = object(Some(answer), "object")?;
        let choices = root.get("choices").and_then(|raw| serde_json::from_slice(raw).ok());
        let Some([choice]): Option<[&'a RawValue; 1]> = choices else {
            return Err(Unjoinable::Malformed("choices"));
        };
        let choice = object(Some(choice.get().as_bytes()), "choices[0]")?;
        let raw = choice.get("message");
        let message = object(raw, "message")?;
        // A member that says anything beside the text, such as a call of a tool, cannot be joined.
        let beside = |(name, raw): &(String, &RawValue)| {
            !["role", "content"].contains(&&**name) && !is_nothing(raw.get())
        };
        let further = raw.and_then(members).into_iter().flatten().find(beside);
        let text: Option<Option<String>> =
            serde_json::from_slice(message.get("content").unwrap_or(b"null")).ok();
        let text = text.ok_or(Unjoinable::Malformed("content"))?.unwrap_or_default();
        let usage = object(root.get("usage"), "usage")?;
        let tokens = number(&usage, "completion_tokens").ok_or(Unjoinable::Malformed("usage"))?;
        let logprobs = choice.get("logprobs").and_then(|raw| Object::parse(raw).ok());
        let logprobs = logprobs.and_then(|lists| inside_list(lists.get("content")?));
        Ok(Self {
            text,
            further: further.map(|(name, _)| name),
            logprobs: logprobs.unwrap_or_default(),
            tokens,
            is_cut: choice.get("finish_reason") == Some(b"\"length\""),
            choice,
            message,
        })
    }
}

/// The members of an object, by name.
pub(super) fn members(raw: &[u8]) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_slice(raw).ok()
}

/// Whether a value says as much as none.
pub(super) fn is_nothing(raw: &str) -> bool {
    ["null", "[]", "\"\""].contains(&raw)
}

/// A member that is a whole number.
pub(super) fn number(object: &Object<'_>, name: &str) -> Option<u64> {
    serde_json::from_slice(object.get(name)?).ok()
}

/// The text between the brackets of a list.
fn inside_list(raw: &[u8]) -> Option<&[u8]> {
    Some(raw.strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii())
}
