//! A conversation as a model's chat template reads it, whichever API it came by.

use crate::json::Json;
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
    /// The texts of a list of parts.
    Parts(Vec<Cow<'a, str>>),
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
    pub(crate) texts: Vec<Cow<'a, str>>,
    pub(crate) thoughts: String,
    /// Calls of tools in OpenAI's form.
    pub(crate) calls: Vec<Json<'a>>,
}

impl<'a> From<AssistantTurn<'a>> for Message<'a> {
    fn from(AssistantTurn { mut texts, thoughts, calls }: AssistantTurn<'a>) -> Self {
        let content = match texts.len() {
            0 if !calls.is_empty() => Content::Null,
            0 => Content::Text("".into()),
            1 => Content::Text(texts.remove(0)),
            _ => Content::Parts(texts),
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
