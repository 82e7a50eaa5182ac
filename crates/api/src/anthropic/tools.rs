//! Tools of the Messages API, in the shape of a chat's.

use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members, object};
use std::borrow::Cow;

/// The tools of a request.
#[derive(Default)]
pub(super) struct MessageTools<'a> {
    /// Definitions, as a chat has them.
    pub(super) definitions: Vec<Json<'a>>,
    /// Names of tools that the prompt has only where a result refers to them, so that a tool that is
    /// loaded late leaves the prefix as it was.
    pub(super) deferred: Vec<Cow<'a, str>>,
}

impl<'a> MessageTools<'a> {
    /// Text that stands for a reference to a tool: its definition where the prompt has none.
    pub(super) fn reference(&self, name: Cow<'a, str>) -> Cow<'a, str> {
        let is_it = |definition: &&Json<'_>| function_name(definition) == Some(&name);
        match self.definitions.iter().find(is_it).filter(|_| self.deferred.contains(&name)) {
            Some(definition) => {
                let text = serde_json::to_string(definition);
                text.expect("JSON that was read can be written").into()
            }
            None => name,
        }
    }
}

/// The name of a function's definition.
pub(super) fn function_name<'d>(definition: &'d Json<'_>) -> Option<&'d str> {
    definition.get("function")?.get("name")?.as_str()
}

/// Reads `tools`.
///
/// # Errors
///
/// 400 for a tool that Anthropic's servers run themselves, and for one without a schema.
pub(super) fn read<'a>(tools: Json<'a>, notes: &FieldNotes) -> Result<MessageTools<'a>, ApiError> {
    let path = JsonPath::Field(notes, "tools");
    let tools = match tools {
        Json::Array(tools) => tools,
        other => return Err(path.mistyped("a list", &other)),
    };
    let mut deferred = Vec::new();
    let definitions = tools.into_iter().enumerate().map(|(at, tool)| {
        let path = JsonPath::Item(&path, at);
        let mut tool = Members::of(tool, path)?;
        let kind = tool.text("type")?;
        let name = tool.required_text("name")?;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            let fault = format!("is {kind:?}, a tool that only its provider's servers run");
            return Err(JsonPath::Member(&path, "type").unsupported(fault));
        }
        if tool.flag("defer_loading")? == Some(true) {
            deferred.push(name.clone());
        }
        let mut function = vec![("name".into(), Json::Str(name))];
        if let Some(about) = tool.text("description")? {
            function.push(("description".into(), Json::Str(about)));
        }
        let schema = tool.required("input_schema")?;
        function.push(("parameters".into(), with_examples(schema, &mut tool)?));
        if let Some(strict) = tool.flag("strict")? {
            function.push(("strict".into(), Json::Bool(strict)));
        }
        tool.check_callers()?;
        // How the input of a tool is streamed changes no answer here.
        tool.ignore("eager_input_streaming");
        tool.refuse_rest()?;
        let function = Json::Object(function);
        Ok(object([("type", Json::Str("function".into())), ("function", function)]))
    });
    let definitions = definitions.collect::<Result<Vec<_>, _>>()?;
    // Where all are deferred nothing could refer to any.
    if deferred.len() == definitions.len() {
        deferred.clear();
    }
    Ok(MessageTools { definitions, deferred })
}

/// The schema of an input with examples of it, in JSON Schema's own word, so that the model sees them.
fn with_examples<'a>(schema: Json<'a>, tool: &mut Members<'a, '_>) -> Result<Json<'a>, ApiError> {
    const WORD: &str = "examples";
    let path = *tool.path();
    match (schema, tool.take("input_examples")) {
        (Json::Object(mut members), Some(examples @ Json::Array(_))) => {
            members.retain(|(name, _)| name != WORD);
            members.push((WORD.into(), examples));
            Ok(Json::Object(members))
        }
        (_, Some(other)) if !matches!(other, Json::Array(_)) => {
            Err(JsonPath::Member(&path, "input_examples").mistyped("a list", &other))
        }
        // A schema that is no object is refused by its own name.
        (schema, _) => Ok(schema),
    }
}

/// The choice among tools.
pub(super) struct ChosenTools<'a> {
    /// In the shape of a chat's `tool_choice`.
    pub(super) choice: Json<'a>,
    /// Whether one answer may have several calls, if the client says so.
    pub(super) parallel: Option<bool>,
}

/// Reads `tool_choice`.
///
/// # Errors
///
/// 400 for a type that is none.
pub(super) fn choice<'a>(
    choice: Json<'a>,
    notes: &FieldNotes,
) -> Result<ChosenTools<'a>, ApiError> {
    let path = JsonPath::Field(notes, "tool_choice");
    let mut choice = Members::of(choice, path)?;
    let kind = choice.required_text("type")?;
    let chosen = match &*kind {
        "auto" | "none" => Json::Str(kind),
        "any" => Json::Str("required".into()),
        "tool" => {
            let function = object([("name", Json::Str(choice.required_text("name")?))]);
            object([("type", Json::Str("function".into())), ("function", function)])
        }
        _ => {
            let fault = format!("is {kind:?}, it must be \"auto\", \"any\", \"tool\" or \"none\"");
            return Err(JsonPath::Member(&path, "type").invalid(fault));
        }
    };
    let parallel = choice.flag("disable_parallel_tool_use")?.map(|disabled| !disabled);
    choice.refuse_rest()?;
    Ok(ChosenTools { choice: chosen, parallel })
}
