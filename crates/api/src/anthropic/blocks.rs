//! Content blocks of the Messages API, as messages of a chat.

use super::tools::MessageTools;
use crate::conversation::{AssistantTurn, Content, ContentPart, Message, Role};
use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::media;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members, object};
use std::borrow::Cow;

/// Appends the messages of a request's turns. Turns of one speaker that follow each other are one
/// message, and each result of a tool is a message of its own. `tools` are those that results may
/// refer to.
///
/// # Errors
///
/// 400, with the path of the block at fault.
pub(super) fn push_turns<'a>(
    turns: Json<'a>,
    notes: &FieldNotes,
    tools: &MessageTools<'a>,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), ApiError> {
    let path = JsonPath::Field(notes, "messages");
    let turns = match turns {
        Json::Array(turns) if turns.is_empty() => {
            return Err(path.invalid("must have at least one message"));
        }
        Json::Array(turns) => turns,
        other => return Err(path.mistyped("a list", &other)),
    };
    for (at, turn) in turns.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut turn = Members::of(turn, path)?;
        let role = turn.required_text("role")?;
        let content_path = JsonPath::Member(&path, "content");
        let content = turn.required("content")?;
        turn.refuse_rest()?;
        let role = match &*role {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            _ => {
                let fault = format!("is {role:?}, it must be \"user\" or \"assistant\"");
                return Err(JsonPath::Member(&path, "role").invalid(fault));
            }
        };
        match (role, content) {
            (_, Json::Str(text)) => push_part(messages, role, text.into()),
            (Role::User, Json::Array(items)) => push_user(items, content_path, tools, messages)?,
            (Role::Assistant, Json::Array(items)) => push_assistant(items, content_path, messages)?,
            (_, Json::Array(items)) => {
                let texts = texts(items, content_path)?;
                texts.into_iter().for_each(|text| push_part(messages, role, text.into()));
            }
            (_, other) => {
                return Err(content_path.mistyped("a string or a list of blocks", &other));
            }
        }
    }
    Ok(())
}

/// The texts of a list of text blocks.
///
/// # Errors
///
/// 400 for a block of another type.
pub(super) fn texts<'a>(
    items: Vec<Json<'a>>,
    path: JsonPath<'_>,
) -> Result<Vec<Cow<'a, str>>, ApiError> {
    let mut texts = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut block = Members::of(item, path)?;
        let kind = block.required_text("type")?;
        if kind != "text" {
            return Err(unsupported(&path, &kind));
        }
        texts.push(text(&mut block)?);
        block.refuse_rest()?;
    }
    Ok(texts)
}

/// Appends a turn of the user: texts, media, and results of tools.
fn push_user<'a>(
    items: Vec<Json<'a>>,
    path: JsonPath<'_>,
    tools: &MessageTools<'a>,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), ApiError> {
    for (at, item) in items.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut block = Members::of(item, path)?;
        match &*block.required_text("type")? {
            "text" => push_part(messages, Role::User, text(&mut block)?.into()),
            "tool_result" => messages.push(tool_result(&mut block, tools)?),
            kind => match media::of_block(kind, &mut block)? {
                Some(medium) => push_part(messages, Role::User, ContentPart::Media(medium)),
                None => return Err(unsupported(&path, kind)),
            },
        }
        block.refuse_rest()?;
    }
    Ok(())
}

/// Appends a turn of the assistant: thoughts, texts and calls, as one message.
fn push_assistant<'a>(
    items: Vec<Json<'a>>,
    path: JsonPath<'_>,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), ApiError> {
    let mut turn = AssistantTurn::default();
    for (at, item) in items.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut block = Members::of(item, path)?;
        match &*block.required_text("type")? {
            "text" => turn.parts.push(text(&mut block)?.into()),
            "thinking" => {
                turn.thoughts.push_str(&block.required_text("thinking")?);
                // It proves to Anthropic that the thoughts are the model's own; a template takes
                // thoughts from anybody.
                block.text("signature")?;
            }
            // Nobody but Anthropic can read these.
            "redacted_thinking" => block.ignore("data"),
            "tool_use" => turn.calls.push(call(&mut block)?),
            kind => return Err(unsupported(&path, kind)),
        }
        block.refuse_rest()?;
    }
    messages.push(turn.into());
    Ok(())
}

/// The text of a text block.
fn text<'a>(block: &mut Members<'a, '_>) -> Result<Cow<'a, str>, ApiError> {
    let text = block.required_text("text")?;
    if let Some(citations) = block.take("citations")
        && !matches!(&citations, Json::Array(items) if items.is_empty())
    {
        let path = JsonPath::Member(block.path(), "citations");
        return Err(path.unsupported("are not supported"));
    }
    Ok(text)
}

/// A call, in the shape that chat templates read.
fn call<'a>(block: &mut Members<'a, '_>) -> Result<Json<'a>, ApiError> {
    let id = Json::Str(block.required_text("id")?);
    let name = Json::Str(block.required_text("name")?);
    let input = block.take("input").unwrap_or(Json::Object(Vec::new()));
    // Calls of an API's own tools say who called; ours are the model's.
    block.take("caller");
    refuse_toolset(block)?;
    let function = object([("name", name), ("arguments", input)]);
    Ok(object([("id", id), ("type", Json::Str("function".into())), ("function", function)]))
}

/// Refuses a block of one of the toolsets that only Anthropic's servers run.
fn refuse_toolset(block: &mut Members<'_, '_>) -> Result<(), ApiError> {
    match block.take("toolset_name") {
        None => Ok(()),
        Some(_) => {
            let path = JsonPath::Member(block.path(), "toolset_name");
            Err(path.unsupported("is not supported: only its provider's servers run toolsets"))
        }
    }
}

/// The message of a tool's result.
fn tool_result<'a>(
    block: &mut Members<'a, '_>,
    tools: &MessageTools<'a>,
) -> Result<Message<'a>, ApiError> {
    let path = *block.path();
    let id = block.required_text("tool_use_id")?;
    // No template has a place for it; the text says what went wrong.
    block.flag("is_error")?;
    refuse_toolset(block)?;
    let path = JsonPath::Member(&path, "content");
    let content = match block.take("content") {
        None => Content::Text("".into()),
        Some(Json::Str(text)) => Content::Text(text),
        Some(Json::Array(items)) => Content::Parts(result_parts(items, path, tools)?),
        Some(other) => return Err(path.mistyped("a string or a list of blocks", &other)),
    };
    let extra = vec![("tool_call_id".into(), Json::Str(id))];
    Ok(Message { role: Role::Tool, content, extra })
}

/// The parts of a result's blocks, which may refer to tools that a search found.
fn result_parts<'a>(
    items: Vec<Json<'a>>,
    path: JsonPath<'_>,
    tools: &MessageTools<'a>,
) -> Result<Vec<ContentPart<'a>>, ApiError> {
    let mut parts = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut block = Members::of(item, path)?;
        parts.push(match &*block.required_text("type")? {
            "text" => text(&mut block)?.into(),
            "tool_reference" => tools.reference(block.required_text("tool_name")?).into(),
            kind => match media::of_block(kind, &mut block)? {
                Some(medium) => ContentPart::Media(medium),
                None => return Err(unsupported(&path, kind)),
            },
        });
        block.refuse_rest()?;
    }
    Ok(parts)
}

/// Appends a part, to the last message where that has the same speaker and nothing but content.
fn push_part<'a>(messages: &mut Vec<Message<'a>>, role: Role, part: ContentPart<'a>) {
    match messages.last_mut() {
        Some(last) if last.role == role && last.extra.is_empty() => match &mut last.content {
            Content::Parts(parts) => parts.push(part),
            Content::Text(first) => {
                let first = std::mem::take(first);
                last.content = Content::Parts(vec![first.into(), part]);
            }
            Content::Null => last.content = Content::of_parts(vec![part]),
        },
        _ => {
            let content = Content::of_parts(vec![part]);
            messages.push(Message { role, content, extra: Vec::new() });
        }
    }
}

fn unsupported(path: &JsonPath<'_>, kind: &str) -> ApiError {
    let kind: String = kind.chars().take(40).collect();
    path.unsupported(format!("is a block of type {kind:?}, which is not supported here"))
}
