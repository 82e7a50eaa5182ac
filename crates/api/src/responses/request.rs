//! Requests of the Responses API, read as chats.

use super::body::{ResponseStreamOptions, ResponsesBody};
use super::echo::{self, RequestEcho};
use super::items::ItemReader;
use super::seal::ThoughtSeal;
use super::tools;
use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::openai::body::{self, Body};
use crate::openai::fields::FlagOrCount;
use crate::openai::{ApiError, chat};
use crate::request::GenerateRequest;
use crate::tree::JsonPath;
use stator_body::Api;
use std::sync::Arc;

/// Most items of a request, without those of earlier responses.
pub const ITEMS_MAX: usize = 10_000;
/// Asks for the logprobs of the answer's text.
pub const LOGPROBS: &str = "message.output_text.logprobs";
/// Asks for sealed thoughts, which the client may send back.
pub const REASONING: &str = "reasoning.encrypted_content";
/// Fields of chats, and of this API.
const OWN_WORDS: [(&str, &str); 11] = [
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    (".function.name", ".name"),
    (".custom.name", ".name"),
    (".custom.format.type", ".format.type"),
    (".custom.format.grammar.syntax", ".format.syntax"),
    (".custom.format.grammar.definition", ".format.definition"),
    (".function.parameters", ".parameters"),
];

/// A checked request for a response.
#[derive(Debug)]
pub struct CheckedResponse<'a> {
    /// The request, for whoever generates.
    pub request: GenerateRequest<'a>,
    /// Everything else that it says.
    pub form: ResponseForm,
}

/// Parts of a request that shape its response and its stay in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseForm {
    /// Parts of the request that the response repeats or depends on.
    pub echo: RequestEcho,
    /// The request's own items as JSON objects with ids, in order.
    pub input: Vec<Arc<str>>,
    /// Whether the response is kept.
    pub store: bool,
    /// Whether it is generated while nobody waits.
    pub background: bool,
    /// Whether items are left out at the beginning until the rest fits.
    pub truncates: bool,
}

/// Parses a body; fields that nobody reads are settled.
///
/// # Errors
///
/// 400 for what is not JSON, of the wrong type, or not known.
pub fn parse<'a>(bytes: &'a [u8], notes: &FieldNotes) -> Result<ResponsesBody<'a>, ApiError> {
    let body: ResponsesBody<'_> = body::parse_as(bytes)?;
    let api = Api::Responses;
    notes.settle(api, "", &body.strangers, ResponsesBody::FIELDS)?;
    if let Some(options) = &body.stream_options {
        notes.settle(api, "stream_options.", &options.strangers, ResponseStreamOptions::FIELDS)?;
    }
    if let Some(extensions) = &body.nvext {
        extensions.settle(api, notes)?;
    }
    if let Some(options) = &body.prompt_cache_options {
        options.settle(api, notes)?;
    }
    for (name, is_there) in
        [("user", body.user.is_some()), ("safety_identifier", body.safety_identifier.is_some())]
    {
        if is_there {
            notes.ignore(name);
        }
    }
    settle_service_tier(&body, notes)?;
    Ok(body)
}

/// Checks a body. `history` are the items of the responses before it, as JSON objects; `id` is the
/// new response's without its prefix; `keeps` says whether there is a store.
///
/// # Errors
///
/// 400 for a value out of range or not supported; 422 for fields that exclude each other.
pub fn check<'a>(
    mut body: ResponsesBody<'a>,
    history: &'a [Arc<str>],
    place: ResponsePlace<'_>,
    notes: &FieldNotes,
) -> Result<CheckedResponse<'a>, ApiError> {
    let store = body.store.unwrap_or(true) && place.keeps;
    let background = body.background.unwrap_or(false);
    if background && !store {
        let message = match place.keeps {
            true => "background needs store to be true",
            false => "background is not supported: this server keeps no responses",
        };
        return Err(ApiError::impossible("background", message));
    }
    let truncates = match body.truncation.as_ref().map_or("disabled", |text| &*text.0) {
        "disabled" => false,
        "auto" => true,
        other => {
            let message = format!("truncation is {other:?}, it must be \"auto\" or \"disabled\"");
            return Err(ApiError::invalid("truncation", message));
        }
    };
    let members = echo::members(&body, store).into();
    let instructions = body.instructions.take().map(|text| text.0);
    let mut reader = ItemReader::new(instructions, place.seal);
    for item in history {
        // They were written here, and read when they were new.
        let item: Json<'a> = serde_json::from_str(item).map_err(|_| ApiError::internal())?;
        reader.take(item, JsonPath::Field(notes, "previous_response_id"))?;
    }
    let mut input = Vec::new();
    let path = JsonPath::Field(notes, "input");
    for (at, item) in own_items(body.input.take(), path)?.into_iter().enumerate() {
        input.push(kept(&item, place.id, at));
        reader.take(item, JsonPath::Item(&path, at))?;
    }
    let tools = body.tools.take().map(|tools| tools::read(tools, notes)).transpose()?;
    let (tools, calls) = tools.map(|it| (it.definitions, it.forms)).unzip();
    let seal = place.seal.filter(|_| includes(&body, REASONING)).cloned();
    let echo = RequestEcho { members, calls: Arc::new(calls.unwrap_or_default()), seal };
    let chat = Body { tools, ..chat_body(body, reader, notes)? };
    let mut request = chat::check(chat).map_err(|error| error.renamed(&OWN_WORDS))?;
    request.options.pin = notes.pinned();
    Ok(CheckedResponse {
        request,
        form: ResponseForm { echo, input, store, background, truncates },
    })
}

/// The place that a new response takes.
#[derive(Clone, Copy, Debug)]
pub struct ResponsePlace<'p> {
    /// The response's id without its prefix.
    pub id: &'p str,
    /// Whether there is a store for it.
    pub keeps: bool,
    /// Seals thoughts for the client and opens them, if somebody does.
    pub seal: Option<&'p ThoughtSeal>,
}

/// The request's own items: a text is one message of the user.
fn own_items<'a>(input: Option<Json<'a>>, path: JsonPath<'_>) -> Result<Vec<Json<'a>>, ApiError> {
    match input {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(text @ Json::Str(_)) => Ok(vec![Json::Object(vec![
            ("role".into(), Json::Str("user".into())),
            ("content".into(), text),
        ])]),
        Some(Json::Array(items)) if items.len() > ITEMS_MAX => {
            Err(path.invalid(format!("has {} items, the limit is {ITEMS_MAX}", items.len())))
        }
        Some(Json::Array(items)) => Ok(items),
        Some(other) => Err(path.mistyped("a string or a list of items", &other)),
    }
}

/// An item as it is kept and listed: with a type and an id, and a message's text as parts.
fn kept(item: &Json<'_>, id: &str, at: usize) -> Arc<str> {
    let Json::Object(members) = item else { return "{}".into() };
    let mut members = members.clone();
    let has = |members: &[_], name: &str| {
        members.iter().any(|(known, value): &(_, Json<'_>)| known == name && *value != Json::Null)
    };
    if !has(&members, "type") {
        members.insert(0, ("type".into(), Json::Str("message".into())));
    }
    if !has(&members, "id") {
        members.insert(0, ("id".into(), Json::Str(format!("item_{id}_{at}").into())));
    }
    let is_assistant =
        members.iter().any(|(name, value)| name == "role" && value.as_str() == Some("assistant"));
    for (name, value) in &mut members {
        if name == "content"
            && let Json::Str(text) = value
        {
            let kind = if is_assistant { "output_text" } else { "input_text" };
            let mut part = vec![
                ("type".into(), Json::Str(kind.into())),
                ("text".into(), Json::Str(text.clone())),
            ];
            if is_assistant {
                part.push(("annotations".into(), Json::Array(Vec::new())));
            }
            *value = Json::Array(vec![Json::Object(part)]);
        }
    }
    let text = serde_json::to_string(&Json::Object(members));
    text.expect("JSON that was read can be written").into()
}

/// The body of the chat that asks for the same.
fn chat_body<'a>(
    body: ResponsesBody<'a>,
    reader: ItemReader<'a, '_>,
    notes: &FieldNotes,
) -> Result<Body<'a>, ApiError> {
    let messages = reader.finish();
    if messages.is_empty() {
        return Err(ApiError::missing("input"));
    }
    note_included(&body, notes);
    let wants_logprobs = includes(&body, LOGPROBS) || body.top_logprobs.is_some_and(|n| n > 0);
    if body.max_tool_calls.is_some() {
        notes.ignore("max_tool_calls");
    }
    let effort = body.reasoning.as_ref().map(|it| tools::effort(it, notes)).transpose()?;
    let format = body.text.as_ref().map(|it| tools::format(it, notes)).transpose()?;
    let choice = body.tool_choice.as_ref().map(|it| tools::choice(it, notes)).transpose()?;
    Ok(Body {
        model: body.model,
        messages: Some(messages.into()),
        max_completion_tokens: body.max_output_tokens,
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        presence_penalty: body.presence_penalty,
        frequency_penalty: body.frequency_penalty,
        min_p: body.min_p,
        repetition_penalty: body.repetition_penalty,
        logit_bias: body.logit_bias,
        seed: body.seed,
        stop: body.stop,
        stop_token_ids: body.stop_token_ids,
        stream: body.stream,
        logprobs: wants_logprobs.then_some(FlagOrCount::Flag(true)),
        top_logprobs: body.top_logprobs,
        ignore_eos: body.ignore_eos,
        skip_special_tokens: body.skip_special_tokens,
        include_stop_str_in_output: body.include_stop_str_in_output,
        include_reasoning: body.include_reasoning,
        structured_outputs: body.structured_outputs,
        tool_choice: choice,
        parallel_tool_calls: body.parallel_tool_calls,
        response_format: format.flatten(),
        reasoning_effort: effort.flatten().map(Text),
        chat_template_kwargs: body.chat_template_kwargs,
        cache_salt: body.cache_salt,
        prompt_cache_key: body.prompt_cache_key,
        nvext: body.nvext,
        ..Body::default()
    })
}

fn includes(body: &ResponsesBody<'_>, what: &str) -> bool {
    body.include.iter().flatten().any(|Text(included)| included == what)
}

/// Notes parts of items that no answer here has.
fn note_included(body: &ResponsesBody<'_>, notes: &FieldNotes) {
    for Text(what) in body.include.iter().flatten() {
        if ![LOGPROBS, REASONING].contains(&&**what) {
            notes.ignore(format_args!("include.{what:.60}"));
        }
    }
}

/// There is one tier here, and a client that lets the server choose gets it.
fn settle_service_tier(body: &ResponsesBody<'_>, notes: &FieldNotes) -> Result<(), ApiError> {
    match body.service_tier.as_ref().map(|tier| &*tier.0) {
        None => Ok(()),
        Some("auto" | "default") => {
            notes.ignore("service_tier");
            Ok(())
        }
        Some(tier) => {
            let message = format!("service_tier {tier:?} is not supported, only \"auto\" is");
            Err(ApiError::unsupported("service_tier", message))
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
