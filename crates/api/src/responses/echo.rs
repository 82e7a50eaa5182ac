//! Members of a response that repeat its request.

use super::body::ResponsesBody;
use super::call_form::CallForms;
use super::seal::ThoughtSeal;
use crate::json::{Json, Text};
use crate::openai::escape::{push_int, push_json_str};
use std::io::Write as _;
use std::sync::Arc;

/// Parts of a request that its response repeats or depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestEcho {
    /// Members of the response, each behind a comma.
    pub(super) members: Arc<[u8]>,
    /// Forms of calls that are no plain functions'.
    pub(super) calls: Arc<CallForms>,
    /// Seals thoughts, for a client that wants them sealed.
    pub(super) seal: Option<ThoughtSeal>,
}

/// The members, each behind a comma, so that they may end an object.
pub(super) fn members(body: &ResponsesBody<'_>, store: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let out = &mut out;
    text(out, "model", body.model.as_ref());
    text(out, "previous_response_id", body.previous_response_id.as_ref());
    text(out, "instructions", body.instructions.as_ref());
    tools(out, body.tools.as_ref());
    json(out, "tool_choice", body.tool_choice.as_ref(), "\"auto\"");
    flag(out, "parallel_tool_calls", body.parallel_tool_calls.unwrap_or(true));
    json(out, "text", body.text.as_ref(), r#"{"format":{"type":"text"}}"#);
    json(out, "reasoning", body.reasoning.as_ref(), r#"{"effort":null,"summary":null}"#);
    json(out, "metadata", body.metadata.as_ref(), "{}");
    number(out, "temperature", body.temperature.unwrap_or(1.0));
    number(out, "top_p", body.top_p.unwrap_or(1.0));
    number(out, "presence_penalty", body.presence_penalty.unwrap_or(0.0));
    number(out, "frequency_penalty", body.frequency_penalty.unwrap_or(0.0));
    count(out, "top_logprobs", Some(body.top_logprobs.unwrap_or(0)));
    count(out, "max_output_tokens", body.max_output_tokens);
    count(out, "max_tool_calls", body.max_tool_calls);
    name(out, "truncation");
    push_json_str(out, body.truncation.as_ref().map_or("disabled", |text| &text.0));
    flag(out, "store", store);
    flag(out, "background", body.background.unwrap_or(false));
    name(out, "service_tier");
    push_json_str(out, "default");
    text(out, "user", body.user.as_ref());
    text(out, "safety_identifier", body.safety_identifier.as_ref());
    text(out, "prompt_cache_key", body.prompt_cache_key.as_ref());
    std::mem::take(out)
}

fn name(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    push_json_str(out, name);
    out.push(b':');
}

fn text(out: &mut Vec<u8>, member: &str, value: Option<&Text<'_>>) {
    name(out, member);
    match value {
        Some(Text(text)) => push_json_str(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

fn flag(out: &mut Vec<u8>, member: &str, value: bool) {
    name(out, member);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// A number that is written as one with a fraction: clients may read it as such.
fn number(out: &mut Vec<u8>, member: &str, value: f64) {
    name(out, member);
    // Writing to a vector cannot fail.
    let _ = write!(out, "{value:?}");
}

fn count(out: &mut Vec<u8>, member: &str, value: Option<i64>) {
    name(out, member);
    match value {
        Some(count) => push_int(out, count),
        None => out.extend_from_slice(b"null"),
    }
}

fn json(out: &mut Vec<u8>, member: &str, value: Option<&Json<'_>>, default: &str) {
    name(out, member);
    match value {
        Some(value) => push_json(out, value),
        None => out.extend_from_slice(default.as_bytes()),
    }
}

/// The tools. A function says whether it is strict, which clients read without asking.
fn tools(out: &mut Vec<u8>, tools: Option<&Json<'_>>) {
    name(out, "tools");
    let Some(Json::Array(tools)) = tools else {
        out.extend_from_slice(b"[]");
        return;
    };
    out.push(b'[');
    for (at, tool) in tools.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_json(out, tool);
        let is_function = tool.get("type").and_then(Json::as_str) == Some("function");
        for member in ["strict", "parameters"] {
            if is_function && tool.get(member).is_none() {
                out.pop();
                name(out, member);
                out.extend_from_slice(b"null}");
            }
        }
    }
    out.push(b']');
}

fn push_json(out: &mut Vec<u8>, value: &Json<'_>) {
    serde_json::to_writer(out, value).expect("JSON that was read can be written");
}
