//! A conversation as the values that its template reads.

use crate::history::HistoryNeeds;
use crate::python::{self, JsonStyle};
use minijinja::value::Value;
use stator_api::conversation::{Content, ContentPart, Conversation, Message, Role};
use stator_api::json::Json;
use stator_api::partial_json;
use std::borrow::Cow;

/// Abilities of a template, found out when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateDialect {
    /// It renders a list of text parts; otherwise the parts are joined by new lines.
    pub(crate) parts: bool,
    /// It knows the role `developer`; otherwise such messages are `system`'s.
    pub(crate) developer: bool,
    /// The form of a call's arguments.
    pub(crate) arguments: ArgumentForm,
    /// Messages whose absent content stays `none`; in the others it becomes an empty text.
    pub(crate) no_content: NoContent,
    /// Needs beyond the form of a single message.
    pub(crate) history: HistoryNeeds,
}

/// The form in which a template takes the arguments of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ArgumentForm {
    /// An object; a text that is none stays a text.
    #[default]
    Object,
    /// An object, also in the place of what a model wrote as something else.
    ObjectAlways,
    /// The text, for templates that concatenate it.
    Text,
}

/// Messages whose content a template takes as `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoContent {
    /// A message with calls.
    pub(crate) beside_calls: bool,
    /// A message without any.
    pub(crate) alone: bool,
}

impl Default for NoContent {
    fn default() -> Self {
        Self { beside_calls: true, alone: true }
    }
}

/// The messages. `open` is added to the end of the last text of the last message.
pub(crate) fn messages(
    messages: &[Message<'_>],
    dialect: TemplateDialect,
    open: Option<&str>,
) -> Value {
    let last = messages.len().wrapping_sub(1);
    let values = messages.iter().enumerate().map(|(at, message)| {
        let open = open.filter(|_| at == last);
        message_value(message, dialect, open)
    });
    Value::from(values.collect::<Vec<_>>())
}

/// Any JSON value.
pub(crate) fn json(value: &Json<'_>) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Int(number) => Value::from(*number),
        Json::Uint(number) => Value::from(*number),
        Json::LongInteger(digits) => python::long_integer(digits),
        Json::Float(number) => Value::from(*number),
        Json::Str(text) => Value::from(&**text),
        Json::Array(items) => Value::from(items.iter().map(json).collect::<Vec<_>>()),
        Json::Object(members) => {
            Value::from_pairs(members.iter().map(|(key, value)| (&**key, json(value))))
        }
    }
}

/// Size of the values that a conversation gives to its template: bytes of text, and bytes for each
/// value.
pub(crate) fn size_bytes(conversation: &Conversation<'_>) -> usize {
    let message = |message: &Message<'_>| {
        let content = match &message.content {
            Content::Null => 0,
            Content::Text(text) => text.len(),
            content => content.texts().map(|text| VALUE_BYTES + text.len()).sum(),
        };
        VALUE_BYTES + content + pairs_bytes(&message.extra)
    };
    let messages: usize = conversation.messages.iter().map(message).sum();
    let tools: usize = conversation.tools.iter().flatten().map(json_bytes).sum();
    let documents = conversation.documents.as_ref().map_or(0, json_bytes);
    messages + tools + documents + pairs_bytes(&conversation.template_kwargs)
}

/// Bytes of a value beside its text.
const VALUE_BYTES: usize = 16;

fn json_bytes(value: &Json<'_>) -> usize {
    VALUE_BYTES
        + match value {
            Json::Str(text) | Json::LongInteger(text) => text.len(),
            Json::Array(items) => items.iter().map(json_bytes).sum(),
            Json::Object(members) => pairs_bytes(members),
            _ => 0,
        }
}

fn pairs_bytes(pairs: &[(Cow<'_, str>, Json<'_>)]) -> usize {
    pairs.iter().map(|(key, value)| key.len() + json_bytes(value)).sum()
}

fn message_value(message: &Message<'_>, dialect: TemplateDialect, open: Option<&str>) -> Value {
    let role = match message.role {
        Role::Developer if !dialect.developer => Role::System,
        role => role,
    };
    let content = match &message.content {
        Content::Null if !takes_none(message, dialect.no_content) => Value::from(""),
        content => content_value(content, dialect, open),
    };
    let fixed = [("role", Value::from(role.as_str())), ("content", content)];
    let no_calls = |value: &Json<'_>| matches!(value, Json::Null) || is_empty(value);
    // Templates take another branch where there are calls, and look at the key alone.
    let extra = message.extra.iter().filter(|(key, value)| key != "tool_calls" || !no_calls(value));
    let extra = extra.map(|(key, value)| match &**key {
        "tool_calls" => ("tool_calls", tool_calls(value, dialect)),
        key => (key, json(value)),
    });
    // Thoughts have two names, and a template knows one of them.
    let has = |name: &str| message.extra.iter().any(|(key, _)| key == name);
    let other_name = match (has("reasoning"), has("reasoning_content")) {
        (true, false) => Some(("reasoning", "reasoning_content")),
        (false, true) => Some(("reasoning_content", "reasoning")),
        _ => None,
    };
    let copied = other_name.and_then(|(from, to)| {
        let (_, value) = message.extra.iter().find(|(key, _)| key == from)?;
        Some((to, json(value)))
    });
    Value::from_pairs(fixed.into_iter().chain(extra).chain(copied))
}

/// Whether the template takes this message's content as `none`, if there is no content.
fn takes_none(message: &Message<'_>, no_content: NoContent) -> bool {
    let is_call =
        |(name, value): &(_, Json<'_>)| name == "tool_calls" && matches!(value, Json::Array(_));
    match message.extra.iter().any(|member| is_call(member) && !is_empty(&member.1)) {
        true => no_content.beside_calls,
        false => no_content.alone,
    }
}

fn content_value(content: &Content<'_>, dialect: TemplateDialect, open: Option<&str>) -> Value {
    let opened = |text: &str, open: Option<&str>| match open {
        Some(open) => Value::from(format!("{text}{open}")),
        None => Value::from(text),
    };
    match content {
        Content::Null => Value::from(()),
        Content::Text(text) => opened(text, open),
        Content::Parts(parts) if dialect.parts => {
            let last = parts.len().wrapping_sub(1);
            let part = |(at, part): (usize, &ContentPart<'_>)| match part {
                ContentPart::Text(text) => {
                    let text = opened(text, open.filter(|_| at == last));
                    Some(Value::from_pairs([("type", Value::from("text")), ("text", text)]))
                }
                // Refused before the conversation is rendered.
                ContentPart::Media(_) => None,
            };
            Value::from(parts.iter().enumerate().filter_map(part).collect::<Vec<_>>())
        }
        content => opened(&content.texts().collect::<Vec<_>>().join("\n"), open),
    }
}

fn is_empty(value: &Json<'_>) -> bool {
    matches!(value, Json::Array(items) if items.is_empty())
}

/// Whether a call of the conversation has arguments that are no object.
pub(crate) fn has_broken_arguments(messages: &[Message<'_>]) -> bool {
    let extra = messages.iter().flat_map(|message| &message.extra);
    let lists = extra.filter(|(name, _)| name == "tool_calls").map(|(_, calls)| calls);
    let calls =
        lists.flat_map(|calls| if let Json::Array(calls) = calls { &calls[..] } else { &[] });
    let mut arguments = calls.filter_map(|call| call.get("function")?.get("arguments")?.as_str());
    arguments.any(|text| !text.trim().is_empty() && !partial_json::is_object(text))
}

/// Tool calls with their arguments in the template's form: the API sends them as JSON in a string,
/// most templates expect what is in it.
fn tool_calls(calls: &Json<'_>, dialect: TemplateDialect) -> Value {
    let Json::Array(calls) = calls else { return json(calls) };
    let call = |call: &Json<'_>| match call {
        Json::Object(members) => {
            Value::from_pairs(members.iter().map(|(key, value)| match (&**key, value) {
                ("function", Json::Object(function)) => (&**key, function_value(function, dialect)),
                _ => (&**key, json(value)),
            }))
        }
        other => json(other),
    };
    Value::from(calls.iter().map(call).collect::<Vec<_>>())
}

fn function_value(members: &[(Cow<'_, str>, Json<'_>)], dialect: TemplateDialect) -> Value {
    let argument = match dialect.arguments {
        ArgumentForm::Text => argument_text,
        ArgumentForm::Object => argument_object,
        ArgumentForm::ObjectAlways => argument_object_always,
    };
    Value::from_pairs(members.iter().map(|(key, value)| match &**key {
        "arguments" => (&**key, argument(value)),
        key => (key, json(value)),
    }))
}

/// Arguments as an object; a text that is no object stays a text.
fn argument_object(value: &Json<'_>) -> Value {
    match value {
        Json::Str(text) => match Json::read(text) {
            Ok(arguments @ Json::Object(_)) => json(&arguments),
            _ if text.trim().is_empty() => json(&Json::Object(Vec::new())),
            _ => json(value),
        },
        _ => json(value),
    }
}

fn argument_object_always(value: &Json<'_>) -> Value {
    match value {
        Json::Str(text) => json(&partial_json::arguments(text)),
        _ => json(value),
    }
}

/// Arguments as the text that they came as; of an object, the text that `tojson` makes.
fn argument_text(value: &Json<'_>) -> Value {
    match value {
        Json::Str(text) if text.trim().is_empty() => Value::from("{}"),
        Json::Object(_) => {
            let object = json(value);
            // Without memory for the text there is none for the prompt either.
            python::to_json(&object, &JsonStyle::default()).map_or(object, Value::from)
        }
        _ => json(value),
    }
}
