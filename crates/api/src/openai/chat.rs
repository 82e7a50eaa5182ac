//! The body of `POST /v1/chat/completions`.

use super::body::{self, Body, TOKEN_DATA};
use super::error::ApiError;
use super::fields::FlagOrCount;
use super::options::{self, integer};
use super::tools;
use crate::conversation::{Conversation, Message, Role};
use crate::custom_tools;
use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::media::{MEDIA_MAX, MediaPart};
use crate::request::{GenerateRequest, Input};
use crate::thoughts;
use crate::tools::{ToolChoice, ToolUse};
use crate::tree::JsonPath;
use stator_body::Api;
use std::borrow::Cow;

/// Most alternatives per token.
pub const TOP_LOGPROBS_MAX: i64 = 20;

/// Reads and checks a body; fields that no API has change nothing.
///
/// # Errors
///
/// 400 for what is not JSON, of the wrong type, out of range or not supported; 422 for fields that
/// exclude each other.
pub fn read(bytes: &[u8]) -> Result<GenerateRequest<'_>, ApiError> {
    read_noting(bytes, &FieldNotes::lenient())
}

/// Reads and checks a body, with notes on the fields that nobody reads.
///
/// # Errors
///
/// As [`read`], and 400 for fields that the notes refuse.
pub fn read_noting<'a>(
    bytes: &'a [u8],
    notes: &FieldNotes,
) -> Result<GenerateRequest<'a>, ApiError> {
    let mut body = body::parse(bytes)?;
    body.settle(Api::ChatCompletions, notes)?;
    let path = JsonPath::Field(notes, "thinking");
    let thinking = body.thinking.take().map(|thinking| thoughts::thinking(thinking, path));
    let thinking = thinking.transpose()?;
    let mut request = check(body)?;
    if let Some(thinking) = thinking {
        thinking.apply(&mut request, false)?;
    }
    Ok(request)
}

/// Checks a body, whichever API it came by.
///
/// # Errors
///
/// As [`read`].
pub(crate) fn check(mut body: Body<'_>) -> Result<GenerateRequest<'_>, ApiError> {
    if body.prompt.is_some() {
        return Err(ApiError::unsupported(
            "prompt",
            "chats take messages; prompt belongs to /v1/completions",
        ));
    }
    let mut options = options::check(&body, logprobs(&body)?)?;
    options.thought_budget = thoughts::budget(&body)?;
    let model = options::model(&mut body)?.0;
    let tools::ChatTools { definitions, tool_use } = tools::read(&mut body)?;
    let conversation = conversation(&mut body, definitions, tool_use.as_ref())?;
    // Tokens stand for the messages, which then need not be rendered and encoded. They have no place
    // for media, which a model of text refuses.
    let has_media = conversation.media().next().is_some();
    let (input, prompt_field) = match body.take_token_data().filter(|_| !has_media) {
        Some(ids) => (Input::tokens(ids), TOKEN_DATA),
        None => (Input::Conversation(conversation), "prompt"),
    };
    let affinity = body.prompt_cache_key.take().map(|key| key.0);
    Ok(GenerateRequest { model, input, prompt_field, affinity, tools: tool_use, options })
}

fn conversation<'a>(
    body: &mut Body<'a>,
    definitions: Option<Vec<Json<'a>>>,
    tool_use: Option<&ToolUse<'_>>,
) -> Result<Conversation<'a>, ApiError> {
    let messages = body.messages.take().ok_or_else(|| ApiError::missing("messages"))?;
    let mut messages = messages.messages;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages must have at least one message"));
    }
    check_media(&messages)?;
    for (at, message) in messages.iter_mut().enumerate() {
        custom_tools::settle_calls(message, &format!("messages[{at}]"))?;
    }
    let continue_final_message = body.continue_final_message.unwrap_or(false);
    let add_generation_prompt = body.add_generation_prompt.unwrap_or(!continue_final_message);
    // A message that goes on leaves no place for the start of the next one.
    if continue_final_message && add_generation_prompt {
        let message = "continue_final_message and add_generation_prompt cannot both be true";
        return Err(ApiError::impossible("continue_final_message", message));
    }
    if body.echo.unwrap_or(false) {
        return Err(ApiError::unsupported("echo", "echo is supported for /v1/completions only"));
    }
    // A model that is not to call is not told of tools, unless it has called some before.
    let shown = tool_use.is_some_and(|tool_use| tool_use.choice != ToolChoice::None);
    let called = || messages.iter().any(|message| matches!(message.role, Role::Tool));
    let definitions = definitions.filter(|_| shown || called());
    let effort = body.reasoning_effort.take();
    Ok(Conversation {
        messages,
        tools: definitions,
        // Without an effort there are no thoughts; the level is the template's.
        thinking: effort.as_ref().map(|effort| effort.0 != "none"),
        documents: body.documents.take(),
        template_kwargs: template_kwargs(body.chat_template_kwargs.take(), effort)?,
        add_generation_prompt,
        continue_final_message,
        add_special_tokens: body.add_special_tokens.unwrap_or(false),
    })
}

fn check_media(messages: &[Message<'_>]) -> Result<(), ApiError> {
    let mut media = messages.iter().flat_map(|message| message.content.media());
    match media.nth(MEDIA_MAX) {
        None => Ok(()),
        Some(MediaPart { path, .. }) => {
            let fault = "is one image, sound, video or file too many";
            Err(ApiError::invalid(path, format!("{path} {fault}, the limit is {MEDIA_MAX}")))
        }
    }
}

fn logprobs(body: &Body<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = match body.logprobs {
        None | Some(FlagOrCount::Flag(false)) => false,
        Some(FlagOrCount::Flag(true)) => true,
        Some(FlagOrCount::Count(count)) => {
            let message = format!("logprobs is {count}, in chats it must be a boolean");
            return Err(ApiError::invalid("logprobs", message));
        }
    };
    match (wanted, integer("top_logprobs", body.top_logprobs, 0..=TOP_LOGPROBS_MAX)?) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(top)) => {
            let message = format!("top_logprobs is {top}, which needs logprobs to be true");
            Err(ApiError::impossible("top_logprobs", message))
        }
    }
}

fn template_kwargs<'a>(
    kwargs: Option<Json<'a>>,
    reasoning_effort: Option<Text<'a>>,
) -> Result<Vec<(Cow<'a, str>, Json<'a>)>, ApiError> {
    const PARAM: &str = "chat_template_kwargs";
    let mut kwargs = match kwargs {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Object(kwargs)) => kwargs,
        Some(_) => return Err(ApiError::invalid(PARAM, "chat_template_kwargs must be an object")),
    };
    // Each of these has its own field or is not the client's to choose.
    const RESERVED: [&str; 6] = [
        "chat_template",
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
    ];
    if let Some((key, _)) = kwargs.iter().find(|(key, _)| RESERVED.contains(&&**key)) {
        let message = format!("chat_template_kwargs must not contain {key:?}");
        return Err(ApiError::invalid(PARAM, message));
    }
    if let Some(Text(effort)) = reasoning_effort
        && !kwargs.iter().any(|(key, _)| key == "reasoning_effort")
    {
        kwargs.push(("reasoning_effort".into(), Json::Str(effort)));
    }
    Ok(kwargs)
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
