//! Tools, the choice among them and the form of answers, in the shape of a chat's.

use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members, object};
use std::borrow::Cow;

const FUNCTION: &str = "function";

/// Definitions of functions, as a chat has them.
///
/// # Errors
///
/// 400 for a tool that OpenAI's servers run themselves.
pub(super) fn definitions<'a>(tools: &Json<'a>, notes: &FieldNotes) -> Result<Json<'a>, ApiError> {
    let path = JsonPath::Field(notes, "tools");
    let tools = match tools {
        Json::Array(tools) => tools,
        other => return Err(path.mistyped("a list", other)),
    };
    let definitions = tools.iter().enumerate().map(|(at, tool)| {
        let path = JsonPath::Item(&path, at);
        let mut tool = Members::of(tool.clone(), path)?;
        let kind = tool.required_text("type")?;
        if kind != FUNCTION {
            let kind: String = kind.chars().take(40).collect();
            let fault = format!("is {kind:?}, only functions are supported");
            return Err(JsonPath::Member(&path, "type").unsupported(fault));
        }
        let mut function = vec![("name".into(), Json::Str(tool.required_text("name")?))];
        for name in ["description", "parameters", "strict"] {
            function.extend(tool.take(name).map(|value| (name.into(), value)));
        }
        for hint in ["defer_loading", "output_schema", "async"] {
            tool.ignore(hint);
        }
        tool.refuse_rest()?;
        Ok(named(Json::Object(function)))
    });
    Ok(Json::Array(definitions.collect::<Result<_, _>>()?))
}

/// `{"type":"function","function":…}`.
fn named<'a>(function: Json<'a>) -> Json<'a> {
    object([("type", Json::Str(FUNCTION.into())), (FUNCTION, function)])
}

/// Reads `tool_choice`, as a chat has it.
///
/// # Errors
///
/// 400 for a choice that is none, or of a tool that is not here.
pub(super) fn choice<'a>(choice: &Json<'a>, notes: &FieldNotes) -> Result<Json<'a>, ApiError> {
    let path = JsonPath::Field(notes, "tool_choice");
    if let Json::Str(_) = choice {
        return Ok(choice.clone());
    }
    let mut choice = Members::of(choice.clone(), path)?;
    let chosen = match &*choice.required_text("type")? {
        FUNCTION => named(object([("name", Json::Str(choice.required_text("name")?))])),
        "allowed_tools" => {
            let mode = Json::Str(choice.text("mode")?.unwrap_or("auto".into()));
            let tools = match choice.required("tools")? {
                Json::Array(tools) => tools,
                other => return Err(JsonPath::Member(&path, "tools").mistyped("a list", &other)),
            };
            let tools = tools.into_iter().map(|tool| match tool.get("name") {
                Some(name) => named(object([("name", name.clone())])),
                None => tool,
            });
            let allowed = object([("mode", mode), ("tools", Json::Array(tools.collect()))]);
            let kind = Json::Str("allowed_tools".into());
            object([("type", kind), ("allowed_tools", allowed)])
        }
        kind => {
            let kind: String = kind.chars().take(40).collect();
            let fault = format!("is {kind:?}, only functions are supported");
            return Err(JsonPath::Member(&path, "type").unsupported(fault));
        }
    };
    choice.refuse_rest()?;
    Ok(chosen)
}

/// Reads `text`: the form of the answer, as a chat's `response_format`.
///
/// # Errors
///
/// 400 for a form or a verbosity that is not here.
pub(super) fn format<'a>(
    text: &Json<'a>,
    notes: &FieldNotes,
) -> Result<Option<Json<'a>>, ApiError> {
    let path = JsonPath::Field(notes, "text");
    let mut text = Members::of(text.clone(), path)?;
    match text.text("verbosity")?.as_deref() {
        None => {}
        Some("medium") => notes.ignore("text.verbosity"),
        Some(_) => {
            let fault = "is not supported: open models have no such parameter";
            return Err(JsonPath::Member(&path, "verbosity").unsupported(fault));
        }
    }
    let format = text.take("format");
    text.refuse_rest()?;
    let Some(format) = format else { return Ok(None) };
    let path = JsonPath::Member(&path, "format");
    let mut format = Members::of(format, path)?;
    let kind = format.required_text("type")?;
    let mut members = Vec::new();
    for name in ["name", "schema", "strict", "description"] {
        members.extend(format.take(name).map(|value| (name.into(), value)));
    }
    format.refuse_rest()?;
    let kind = ("type", Json::Str(kind));
    Ok(Some(match members.is_empty() {
        true => object([kind]),
        false => object([kind, ("json_schema", Json::Object(members))]),
    }))
}

/// Reads `reasoning`: the effort.
///
/// # Errors
///
/// 400 for a mode that is not here.
pub(super) fn effort<'a>(
    reasoning: &Json<'a>,
    notes: &FieldNotes,
) -> Result<Option<Cow<'a, str>>, ApiError> {
    let path = JsonPath::Field(notes, "reasoning");
    let mut reasoning = Members::of(reasoning.clone(), path)?;
    let effort = reasoning.text("effort")?;
    // The thoughts themselves are in the answer.
    reasoning.ignore("summary");
    reasoning.ignore("generate_summary");
    reasoning.ignore("context");
    if let Some(mode) = reasoning.text("mode")?.filter(|mode| mode != "standard") {
        let fault = format!("is {mode:?}, only \"standard\" is supported");
        return Err(JsonPath::Member(&path, "mode").unsupported(fault));
    }
    reasoning.refuse_rest()?;
    Ok(effort)
}
