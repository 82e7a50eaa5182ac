//! A conversation as a model's chat template reads it, whichever API it came by.

use crate::json::Json;
use crate::media::MediaPart;
use std::borrow::Cow;

/// The messages of a chat and all else that a template reads; texts borrow from the body where they
/// can.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation<'a> {
    /// The messages, at least one.
    pub messages: Vec<Message<'a>>,
    /// Tool definitions that the template shows, at least one, each
    /// `{"type":"function","function":{…}}`.
    pub tools: Option<Vec<Json<'a>>>,
    /// Documents.
    pub documents: Option<Json<'a>>,
    /// Whether the model thinks before it answers, where the request says so. The template's own
    /// switch is set, whatever its name; `template_kwargs` count before it.
    pub thinking: Option<bool>,
    /// Further variables of the template.
    pub template_kwargs: Vec<(Cow<'a, str>, Json<'a>)>,
    /// Ends the prompt with the opening of an assistant's message.
    pub add_generation_prompt: bool,
    /// Leaves the last message open, so that the answer continues it.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its special tokens to those of the template.
    pub add_special_tokens: bool,
}

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, in the API's newer word.
    Developer,
    /// The person or program that asks.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
    /// The result of a function call, the API's older form of [`Role::Tool`].
    Function,
}

impl Role {
    /// The role's word in APIs and templates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Function => "function",
        }
    }
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Content<'a> {
    /// Absent or `null`: an assistant that only called tools.
    Null,
    /// One text.
    Text(Cow<'a, str>),
    /// A list of parts.
    Parts(Vec<ContentPart<'a>>),
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentPart<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// An image, a sound, a video or a file.
    Media(MediaPart<'a>),
}

impl<'a> Conversation<'a> {
    /// The media of all messages, in their order.
    pub fn media(&self) -> impl Iterator<Item = &MediaPart<'a>> {
        self.messages.iter().flat_map(|message| message.content.media())
    }
}

impl<'a> Content<'a> {
    /// The content of these parts: one text is no list.
    pub(crate) fn of_parts(mut parts: Vec<ContentPart<'a>>) -> Self {
        match parts.pop() {
            Some(ContentPart::Text(text)) if parts.is_empty() => Self::Text(text),
            last => {
                parts.extend(last);
                Self::Parts(parts)
            }
        }
    }

    /// The texts, in their order.
    pub fn texts(&self) -> impl DoubleEndedIterator<Item = &str> {
        let (text, parts) = match self {
            Self::Null => (None, &[][..]),
            Self::Text(text) => (Some(&**text), &[][..]),
            Self::Parts(parts) => (None, &parts[..]),
        };
        let of_parts = parts.iter().filter_map(|part| match part {
            ContentPart::Text(text) => Some(&**text),
            ContentPart::Media(_) => None,
        });
        text.into_iter().chain(of_parts)
    }

    /// The media, in their order.
    pub fn media(&self) -> impl Iterator<Item = &MediaPart<'a>> {
        let parts = if let Self::Parts(parts) = self { &parts[..] } else { &[] };
        parts.iter().filter_map(|part| match part {
            ContentPart::Text(_) => None,
            ContentPart::Media(medium) => Some(medium),
        })
    }
}

impl<'a, T: Into<Cow<'a, str>>> From<T> for ContentPart<'a> {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// One message; `extra` holds all other members in the client's order, for the template.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<'a> {
    /// The speaker.
    pub role: Role,
    /// The content.
    pub content: Content<'a>,
    /// `name`, `tool_calls` in OpenAI's form, `tool_call_id`, `reasoning_content` (or `reasoning`)
    /// and whatever a template knows.
    pub extra: Vec<(Cow<'a, str>, Json<'a>)>,
}

/// Parts of an assistant's turn, which become one message.
#[derive(Default)]
pub(crate) struct AssistantTurn<'a> {
    pub(crate) parts: Vec<ContentPart<'a>>,
    pub(crate) thoughts: String,
    /// Calls of tools in OpenAI's form.
    pub(crate) calls: Vec<Json<'a>>,
}

impl<'a> From<AssistantTurn<'a>> for Message<'a> {
    fn from(AssistantTurn { parts, thoughts, calls }: AssistantTurn<'a>) -> Self {
        let content = match parts.is_empty() {
            true if !calls.is_empty() => Content::Null,
            true => Content::Text("".into()),
            false => Content::of_parts(parts),
        };
        let mut extra = Vec::new();
        if !thoughts.is_empty() {
            extra.push(("reasoning_content".into(), Json::Str(thoughts.into())));
        }
        if !calls.is_empty() {
            extra.push(("tool_calls".into(), Json::Array(calls)));
        }
        Self { role: Role::Assistant, content, extra }
    }
}
