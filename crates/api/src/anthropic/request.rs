//! Requests of the Messages API, read as chats.

use super::blocks;
use super::body::MessagesBody;
use super::context;
use super::tools::{self, MessageTools};
use crate::cache_control::{self, CACHE_CONTROL};
use crate::conversation::{Content, Message, Role};
use crate::field_notes::FieldNotes;
use crate::json::{self, Json, Text};
use crate::openai::body::{self, Body};
use crate::openai::{ApiError, chat};
use crate::request::{GenerateRequest, Input};
use crate::thoughts;
use crate::tree::{JsonPath, Members, object};
use serde_json::value::RawValue;
use stator_body::Api;
use std::borrow::Cow;

/// First line of the system text of Claude Code, with a value that is another in each request.
/// It means nothing to a model, and would leave no prefix alike.
///
/// Source: Claude Code's requests, as Dynamo and vLLM strip them.
const BILLING_LINE: &str = "x-anthropic-billing-header:";
/// Fields of chats, and of this API.
const OWN_WORDS: [(&str, &str); 4] = [
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("reasoning_effort", "output_config.effort"),
    ("stop", "stop_sequences"),
    (".function.name", ".name"),
];

/// Reads and checks the body of `POST /v1/messages`.
///
/// # Errors
///
/// 400 for what is not JSON, of the wrong type, out of range or not supported; 422 for fields that
/// exclude each other.
pub fn read<'a>(bytes: &'a [u8], notes: &FieldNotes) -> Result<GenerateRequest<'a>, ApiError> {
    let body = parse(bytes)?;
    settle(&body, Api::Messages, notes)?;
    if body.max_tokens.is_none() {
        return Err(ApiError::missing("max_tokens"));
    }
    check(body, notes)
}

/// Reads and checks the body of `POST /v1/messages/count_tokens`, which has no `max_tokens`.
///
/// # Errors
///
/// As [`read`].
pub fn read_count<'a>(
    bytes: &'a [u8],
    notes: &FieldNotes,
) -> Result<GenerateRequest<'a>, ApiError> {
    let body = parse(bytes)?;
    settle(&body, Api::CountTokens, notes)?;
    check(body, notes)
}

/// The body as it comes. Calls have their arguments as objects here, whose numbers keep their digits.
fn parse(bytes: &[u8]) -> Result<MessagesBody<'_>, ApiError> {
    let mut body: MessagesBody<'_> = body::parse_as(bytes)?;
    if let Some(messages) = &mut body.messages
        && json::may_be_rounded(messages)
        && let Ok(MessagesText { messages: Some(text) }) = serde_json::from_slice(bytes)
    {
        json::restore_numbers(messages, text.get());
    }
    Ok(body)
}

/// The text of the member that has calls.
#[derive(serde::Deserialize)]
struct MessagesText<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

fn settle(body: &MessagesBody<'_>, api: Api, notes: &FieldNotes) -> Result<(), ApiError> {
    notes.settle(api, "", &body.strangers, MessagesBody::FIELDS)?;
    match &body.nvext {
        Some(extensions) => extensions.settle(api, notes),
        None => Ok(()),
    }
}

fn check<'a>(
    mut body: MessagesBody<'a>,
    notes: &FieldNotes,
) -> Result<GenerateRequest<'a>, ApiError> {
    if let Some(wish) = body.cache_control.take().filter(|wish| *wish != Json::Null) {
        cache_control::read_member(wish, JsonPath::Field(notes, CACHE_CONTROL))?;
    }
    let path = JsonPath::Field(notes, "thinking");
    let thinking = body.thinking.take().map(|thinking| thoughts::thinking(thinking, path));
    let thinking = thinking.transpose()?.unwrap_or_default();
    let tools = body.tools.take().map(|tools| tools::read(tools, notes)).transpose()?;
    let tools = tools.unwrap_or_default();
    let edits = body.context_management.take().filter(|edits| *edits != Json::Null);
    let edits = edits.map(|edits| context::read(edits, notes)).transpose()?.unwrap_or_default();
    let mut chat = chat_body(body, &tools, notes)?;
    let MessageTools { definitions, deferred } = tools;
    chat.tools = (!definitions.is_empty()).then_some(Json::Array(definitions));
    let mut request = chat::check(chat).map_err(|error| error.renamed(&OWN_WORDS))?;
    if let Input::Conversation(conversation) = &mut request.input {
        edits.apply(&mut conversation.messages);
        // An effort alone switches nothing on here.
        conversation.thinking = None;
        if let Some(shown) = &mut conversation.tools {
            let is_deferred = |tool: &Json<'_>| {
                tools::function_name(tool).is_some_and(|name| deferred.iter().any(|it| it == name))
            };
            shown.retain(|tool| !is_deferred(tool));
        }
    }
    thinking.apply(&mut request, true)?;
    Ok(request)
}

/// The body of the chat that asks for the same, without `tools`.
fn chat_body<'a>(
    body: MessagesBody<'a>,
    tools: &MessageTools<'a>,
    notes: &FieldNotes,
) -> Result<Body<'a>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = body.system {
        messages.extend(system_message(system, notes)?);
    }
    let turns = body.messages.ok_or_else(|| ApiError::missing("messages"))?;
    blocks::push_turns(turns, notes, tools, &mut messages)?;
    // A last message of the assistant is the beginning of the answer.
    let continues = messages.last().is_some_and(|last| {
        last.role == Role::Assistant && last.extra.iter().all(|(name, _)| name != "tool_calls")
    });
    let output = output(body.output_config, notes)?;
    let choice = body.tool_choice.map(|choice| tools::choice(choice, notes)).transpose()?;
    let (choice, parallel) = choice.map_or((None, None), |it| (Some(it.choice), it.parallel));
    if let Some(tier) = body.service_tier {
        service_tier(&tier.0, notes)?;
    }
    if let Some(Text(speed)) = body.speed.filter(|speed| speed.0 != "standard") {
        let message = format!("speed {speed:?} is not supported, only \"standard\" is");
        return Err(ApiError::unsupported("speed", message));
    }
    Ok(Body {
        model: body.model,
        messages: Some(messages.into()),
        max_tokens: body.max_tokens,
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        stop: body.stop_sequences,
        stream: body.stream,
        cache_salt: body.cache_salt,
        nvext: body.nvext,
        tool_choice: choice,
        parallel_tool_calls: parallel,
        chat_template_kwargs: body.chat_template_kwargs,
        reasoning_effort: output.effort.map(Text),
        response_format: output.format,
        continue_final_message: Some(continues),
        ..Body::default()
    })
}

/// There is one tier here. A client that lets the server choose gets it.
fn service_tier(tier: &str, notes: &FieldNotes) -> Result<(), ApiError> {
    match tier {
        "auto" | "standard_only" => {
            notes.ignore("service_tier");
            Ok(())
        }
        _ => {
            let message = format!("service_tier {tier:?} is not supported, only \"auto\" is");
            Err(ApiError::unsupported("service_tier", message))
        }
    }
}

/// The message of the field `system`, if it says anything.
fn system_message<'a>(
    system: Json<'a>,
    notes: &FieldNotes,
) -> Result<Option<Message<'a>>, ApiError> {
    let path = JsonPath::Field(notes, "system");
    let mut texts = match system {
        Json::Str(text) => vec![text],
        Json::Array(items) => blocks::texts(items, path)?,
        other => return Err(path.mistyped("a string or a list of text blocks", &other)),
    };
    if let Some(first) = texts.first_mut() {
        strip_billing_line(first);
    }
    texts.retain(|text| !text.is_empty());
    let content = match texts.len() {
        0 => return Ok(None),
        _ => Content::of_parts(texts.into_iter().map(Into::into).collect()),
    };
    Ok(Some(Message { role: Role::System, content, extra: Vec::new() }))
}

/// Takes Claude Code's line off the beginning of a text.
fn strip_billing_line(text: &mut Cow<'_, str>) {
    if !text.starts_with(BILLING_LINE) {
        return;
    }
    let end = text.find('\n').map_or(text.len(), |at| at + 1);
    *text = match std::mem::take(text) {
        Cow::Borrowed(text) => Cow::Borrowed(&text[end..]),
        Cow::Owned(text) => Cow::Owned(text[end..].to_owned()),
    };
}

/// Members of `output_config`.
#[derive(Default)]
struct OutputConfig<'a> {
    effort: Option<Cow<'a, str>>,
    /// In the shape of a chat's `response_format`.
    format: Option<Json<'a>>,
}

fn output<'a>(config: Option<Json<'a>>, notes: &FieldNotes) -> Result<OutputConfig<'a>, ApiError> {
    let Some(config) = config else { return Ok(OutputConfig::default()) };
    let path = JsonPath::Field(notes, "output_config");
    let mut config = Members::of(config, path)?;
    let (effort, format) = (config.text("effort")?, config.take("format"));
    config.refuse_rest()?;
    let Some(format) = format else { return Ok(OutputConfig { effort, format: None }) };
    let path = JsonPath::Member(&path, "format");
    let mut format = Members::of(format, path)?;
    let kind = format.required_text("type")?;
    if kind != "json_schema" {
        return Err(JsonPath::Member(&path, "type").invalid("must be \"json_schema\""));
    }
    let schema = format.required("schema")?;
    format.refuse_rest()?;
    let schema = object([("name", Json::Str("output".into())), ("schema", schema)]);
    let kind = Json::Str("json_schema".into());
    Ok(OutputConfig { effort, format: Some(object([("type", kind), ("json_schema", schema)])) })
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
