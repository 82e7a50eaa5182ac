//! Objects within a chat: their members, of which the others are refused or named, and reach no template.
//!
//! Source: the types of the Python client `openai` 3.52.0; what vLLM 0.32 and SGLang 0.5.23 add to them, and
//! what the templates of open models read.

use super::body::Body;
use super::error::ApiError;
use crate::cache_control::{self, CACHE_CONTROL};
use crate::field_notes::FieldNotes;
use crate::field_rules;
use crate::json::Json;
use crate::object::MemberWeight;
use crate::tree::{JsonPath, NAME_MAX_CHARS};
use stator_body::Api;

/// An object within a chat.
pub(crate) struct ChatObject {
    /// Its place, as rules write it.
    pub(crate) place: &'static str,
    /// Names of its members.
    pub(crate) members: &'static [&'static str],
}

const fn object(place: &'static str, members: &'static [&'static str]) -> ChatObject {
    ChatObject { place, members }
}

/// A message. All but the role, the content and the refusal are shown to templates as they are.
pub(crate) const MESSAGE: ChatObject = object(
    "messages[]",
    &[
        "role",
        "content",
        "refusal",
        "name",
        "tool_calls",
        "tool_call_id",
        "reasoning_content",
        "reasoning",
        "thinking",
        "tools",
        "task",
        CACHE_CONTROL,
    ],
);
/// A part of a message's content.
pub(crate) const PART: ChatObject =
    object("messages[].content[]", &["type", "text", "refusal", CACHE_CONTROL]);
const CALL: ChatObject =
    object("messages[].tool_calls[]", &["id", "type", "function", "custom", "index"]);
const CALLED_FUNCTION: ChatObject =
    object("messages[].tool_calls[].function", &["name", "arguments"]);
const CALLED_CUSTOM: ChatObject = object("messages[].tool_calls[].custom", &["name", "input"]);
const TOOL: ChatObject = object("tools[]", &["type", "function", "custom", CACHE_CONTROL]);
const FUNCTION: ChatObject = object(
    "tools[].function",
    &["name", "description", "parameters", "strict", "return", "response", CACHE_CONTROL],
);
const CUSTOM: ChatObject =
    object("tools[].custom", &["name", "description", "format", CACHE_CONTROL]);
const FORMAT: ChatObject = object("tools[].custom.format", &["type", "grammar"]);
const GRAMMAR: ChatObject = object("tools[].custom.format.grammar", &["syntax", "definition"]);
const CHOICE: ChatObject = object("tool_choice", &["type", "function", "custom", "allowed_tools"]);
const CHOSEN: ChatObject = object("tool_choice.function", &["name"]);
const ALLOWED: ChatObject = object("tool_choice.allowed_tools", &["mode", "tools"]);
const ALLOWED_TOOL: ChatObject =
    object("tool_choice.allowed_tools.tools[]", &["type", "function", "custom"]);
const ALLOWED_NAME: ChatObject = object(
    "tool_choice.allowed_tools.tools[].function",
    &["name", "description", "parameters", "strict"],
);
const FORM: ChatObject = object("response_format", &["type", "json_schema"]);
const TAGGED_FORM: ChatObject =
    object("response_format", &["type", "format", "structures", "triggers"]);
const SCHEMA: ChatObject =
    object("response_format.json_schema", &["name", "description", "schema", "strict"]);

/// Every object, for the manual.
#[cfg(test)]
pub(crate) const OBJECTS: [&ChatObject; 18] = [
    &MESSAGE,
    &PART,
    &CALL,
    &CALLED_FUNCTION,
    &CALLED_CUSTOM,
    &TOOL,
    &FUNCTION,
    &CUSTOM,
    &FORMAT,
    &GRAMMAR,
    &CHOICE,
    &CHOSEN,
    &ALLOWED,
    &ALLOWED_TOOL,
    &ALLOWED_NAME,
    &FORM,
    &TAGGED_FORM,
    &SCHEMA,
];

impl ChatObject {
    /// Settles a member at `path` that the object does not have.
    ///
    /// # Errors
    ///
    /// 400 for one that would change the answer, or that no API has.
    pub(crate) fn stranger(
        &self,
        name: &str,
        weight: MemberWeight,
        path: JsonPath<'_>,
    ) -> Result<(), ApiError> {
        let name: String = name.chars().take(NAME_MAX_CHARS).collect();
        let place = JsonPath::Member(&path, &name);
        let notes = path.notes();
        match field_rules::find(Api::ChatCompletions, &format!("{}.{name}", self.place)) {
            Some(rule) => notes.obey(rule, &place.to_string(), weight),
            None if weight == MemberWeight::Null => Ok(()),
            None => notes.unknown(&place, self.members.iter().copied()),
        }
    }

    /// Leaves the members in a value that the object has, and settles the others.
    fn keep(&self, value: &mut Json<'_>, path: JsonPath<'_>) -> Result<(), ApiError> {
        let Json::Object(members) = value else { return Ok(()) };
        let mut settled = Ok(());
        members.retain(|(name, value)| {
            let name = &**name;
            // A wish is obeyed here, and shown to nobody.
            let is_shown = self.members.contains(&name) && name != CACHE_CONTROL;
            if !is_shown && settled.is_ok() {
                settled = match self.members.contains(&name) {
                    true if *value == Json::Null => Ok(()),
                    true => {
                        cache_control::read_member(value.clone(), JsonPath::Member(&path, name))
                    }
                    false => self.stranger(name, value.weight(), path),
                };
            }
            is_shown
        });
        settled
    }

    /// Does the same to the member of this name, if it is there.
    fn keep_in(
        &self,
        value: &mut Json<'_>,
        name: &'static str,
        path: JsonPath<'_>,
    ) -> Result<(), ApiError> {
        let Some(inner) = value.get_mut(name) else { return Ok(()) };
        self.keep(inner, JsonPath::Member(&path, name))
    }
}

/// Settles the members of all objects of a body but its messages.
///
/// # Errors
///
/// 400 for a member that would change the answer, or that no API has.
pub(super) fn settle(body: &mut Body<'_>, notes: &FieldNotes) -> Result<(), ApiError> {
    if let Some(tools) = &mut body.tools {
        settle_tools(tools, notes)?;
    }
    if let Some(choice) = &mut body.tool_choice {
        settle_choice(choice, JsonPath::Field(notes, "tool_choice"))?;
    }
    match &mut body.response_format {
        Some(format) => settle_format(format, JsonPath::Field(notes, "response_format")),
        None => Ok(()),
    }
}

/// Settles the members of tools, which templates show as they are. A tool of a type that is not known is
/// refused for that.
///
/// # Errors
///
/// As [`settle`], and for a wish for the cache that is none.
pub(crate) fn settle_tools(tools: &mut Json<'_>, notes: &FieldNotes) -> Result<(), ApiError> {
    let path = JsonPath::Field(notes, "tools");
    for (at, tool) in items(tools).iter_mut().enumerate() {
        let path = JsonPath::Item(&path, at);
        if !matches!(kind(tool), Some("function" | "custom")) {
            continue;
        }
        TOOL.keep(tool, path)?;
        FUNCTION.keep_in(tool, "function", path)?;
        let Some(custom) = tool.get_mut("custom") else { continue };
        let path = JsonPath::Member(&path, "custom");
        CUSTOM.keep(custom, path)?;
        FORMAT.keep_in(custom, "format", path)?;
        if let Some(format) = custom.get_mut("format") {
            GRAMMAR.keep_in(format, "grammar", JsonPath::Member(&path, "format"))?;
        }
    }
    Ok(())
}

/// Settles the members of a message's calls.
///
/// # Errors
///
/// As [`settle`].
pub(super) fn settle_calls(calls: &mut Json<'_>, path: JsonPath<'_>) -> Result<(), ApiError> {
    for (at, call) in items(calls).iter_mut().enumerate() {
        let path = JsonPath::Item(&path, at);
        CALL.keep(call, path)?;
        CALLED_FUNCTION.keep_in(call, "function", path)?;
        CALLED_CUSTOM.keep_in(call, "custom", path)?;
    }
    Ok(())
}

/// A choice of a type that is not known is refused for that.
fn settle_choice(choice: &mut Json<'_>, path: JsonPath<'_>) -> Result<(), ApiError> {
    if !matches!(kind(choice), Some("function" | "custom" | "allowed_tools")) {
        return Ok(());
    }
    CHOICE.keep(choice, path)?;
    CHOSEN.keep_in(choice, "function", path)?;
    CHOSEN.keep_in(choice, "custom", path)?;
    let Some(allowed) = choice.get_mut("allowed_tools") else { return Ok(()) };
    let path = JsonPath::Member(&path, "allowed_tools");
    ALLOWED.keep(allowed, path)?;
    let path = JsonPath::Member(&path, "tools");
    let Some(tools) = allowed.get_mut("tools") else { return Ok(()) };
    for (at, tool) in items(tools).iter_mut().enumerate() {
        let path = JsonPath::Item(&path, at);
        ALLOWED_TOOL.keep(tool, path)?;
        ALLOWED_NAME.keep_in(tool, "function", path)?;
        ALLOWED_NAME.keep_in(tool, "custom", path)?;
    }
    Ok(())
}

/// A form of a type that is not known is refused for that.
fn settle_format(format: &mut Json<'_>, path: JsonPath<'_>) -> Result<(), ApiError> {
    match kind(format) {
        Some("text" | "json_object" | "json_schema") => FORM.keep(format, path)?,
        Some("structural_tag") => TAGGED_FORM.keep(format, path)?,
        _ => return Ok(()),
    }
    SCHEMA.keep_in(format, "json_schema", path)
}

fn kind<'j>(value: &'j Json<'_>) -> Option<&'j str> {
    value.get("type").and_then(Json::as_str)
}

fn items<'j, 'a>(list: &'j mut Json<'a>) -> &'j mut [Json<'a>] {
    match list {
        Json::Array(items) => items,
        _ => &mut [],
    }
}

#[cfg(test)]
#[path = "nested_tests.rs"]
mod tests;
