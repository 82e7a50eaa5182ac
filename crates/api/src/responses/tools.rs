//! Tools, the choice among them and the form of answers, in the shape of a chat's.

use super::call_form::{CallForm, CallForms, joined};
use crate::field_notes::FieldNotes;
use crate::json::Json;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members, object};
use std::borrow::Cow;

const FUNCTION: &str = "function";
const CUSTOM: &str = "custom";

/// The tools of a request.
pub(super) struct ResponseTools<'a> {
    /// Definitions of functions and custom tools, as a chat has them.
    pub(super) definitions: Json<'a>,
    /// Forms in which the client gets the calls of its other tools.
    pub(super) forms: CallForms,
}

/// Reads `tools`. A function of a namespace becomes a function of a chat.
///
/// # Errors
///
/// 400 for a tool that OpenAI's servers run themselves.
pub(super) fn read<'a>(tools: Json<'a>, notes: &FieldNotes) -> Result<ResponseTools<'a>, ApiError> {
    let path = JsonPath::Field(notes, "tools");
    let mut reader = ToolReader { definitions: Vec::new(), forms: CallForms::default() };
    for (at, tool) in list(tools, path)?.into_iter().enumerate() {
        let path = JsonPath::Item(&path, at);
        let mut tool = Members::of(tool, path)?;
        match &*tool.required_text("type")? {
            FUNCTION => reader.function(&mut tool, None)?,
            CUSTOM => reader.custom(&mut tool)?,
            "namespace" => reader.namespace(&mut tool)?,
            kind => return Err(foreign(&path, kind)),
        }
        tool.refuse_rest()?;
    }
    let ToolReader { definitions, forms } = reader;
    Ok(ResponseTools { definitions: Json::Array(definitions), forms })
}

fn list<'a>(tools: Json<'a>, path: JsonPath<'_>) -> Result<Vec<Json<'a>>, ApiError> {
    match tools {
        Json::Array(tools) => Ok(tools),
        other => Err(path.mistyped("a list", &other)),
    }
}

/// 400 for a tool that is none of a client's own.
fn foreign(path: &JsonPath<'_>, kind: &str) -> ApiError {
    let kind: String = kind.chars().take(40).collect();
    let fault = format!(
        "is {kind:?}, only functions, custom tools and namespaces of functions are supported"
    );
    JsonPath::Member(path, "type").unsupported(fault)
}

/// Tools that were read so far.
struct ToolReader<'a> {
    definitions: Vec<Json<'a>>,
    forms: CallForms,
}

impl<'a> ToolReader<'a> {
    fn function(
        &mut self,
        tool: &mut Members<'a, '_>,
        namespace: Option<&str>,
    ) -> Result<(), ApiError> {
        let mut name = tool.required_text("name")?;
        if let Some(namespace) = namespace {
            let whole = joined(namespace, &name);
            let (namespace, name_in_it) = (namespace.to_owned(), name.into_owned());
            self.forms.push(&whole, CallForm::Namespaced { namespace, name: name_in_it });
            name = whole.into();
        }
        let mut function = vec![("name".into(), Json::Str(name))];
        for name in ["description", "parameters", "strict"] {
            function.extend(tool.take(name).map(|value| (name.into(), value)));
        }
        for hint in ["defer_loading", "output_schema", "async"] {
            tool.ignore(hint);
        }
        tool.check_callers()?;
        self.definitions.push(named(FUNCTION, Json::Object(function)));
        Ok(())
    }

    /// The functions of a namespace. A chat has no place for what is said of the namespace itself.
    fn namespace(&mut self, tool: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let path = *tool.path();
        let namespace = tool.required_text("name")?;
        tool.ignore("description");
        let tools = tool.required("tools")?;
        let path = JsonPath::Member(&path, "tools");
        for (at, tool) in list(tools, path)?.into_iter().enumerate() {
            let path = JsonPath::Item(&path, at);
            let mut tool = Members::of(tool, path)?;
            match &*tool.required_text("type")? {
                FUNCTION => self.function(&mut tool, Some(&namespace))?,
                kind => {
                    let fault = format!("is {kind:.40?}, a namespace has functions only");
                    return Err(JsonPath::Member(&path, "type").unsupported(fault));
                }
            }
            tool.refuse_rest()?;
        }
        Ok(())
    }

    /// A custom tool. A chat has what is said of a grammar one level deeper.
    fn custom(&mut self, tool: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let path = *tool.path();
        let mut custom = vec![("name".into(), Json::Str(tool.required_text("name")?))];
        custom.extend(tool.take("description").map(|text| ("description".into(), text)));
        if let Some(format) = tool.take("format") {
            let mut format = Members::of(format, JsonPath::Member(&path, "format"))?;
            let kind = Json::Str(format.required_text("type")?);
            let mut grammar = Vec::new();
            for name in ["syntax", "definition"] {
                grammar.extend(format.take(name).map(|value| (name.into(), value)));
            }
            format.refuse_rest()?;
            let grammar = Json::Object(grammar);
            custom.push(("format".into(), object([("type", kind), ("grammar", grammar)])));
        }
        for hint in ["defer_loading", "async"] {
            tool.ignore(hint);
        }
        tool.check_callers()?;
        self.definitions.push(named(CUSTOM, Json::Object(custom)));
        Ok(())
    }
}

/// `{"type":"function","function":…}`, or the same of a custom tool.
fn named<'a>(kind: &'static str, tool: Json<'a>) -> Json<'a> {
    object([("type", Json::Str(kind.into())), (kind, tool)])
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
        FUNCTION => named(FUNCTION, object([("name", chosen_name(&mut choice)?)])),
        CUSTOM => named(CUSTOM, object([("name", chosen_name(&mut choice)?)])),
        "allowed_tools" => {
            let mode = Json::Str(choice.text("mode")?.unwrap_or("auto".into()));
            let path = JsonPath::Member(&path, "tools");
            let tools = list(choice.required("tools")?, path)?;
            let tools = tools.into_iter().enumerate().map(|(at, tool)| {
                let mut tool = Members::of(tool, JsonPath::Item(&path, at))?;
                let kind = match tool.text("type")?.as_deref() {
                    Some(CUSTOM) => CUSTOM,
                    _ => FUNCTION,
                };
                let name = chosen_name(&mut tool)?;
                tool.refuse_rest()?;
                Ok(named(kind, object([("name", name)])))
            });
            let tools = Json::Array(tools.collect::<Result<_, ApiError>>()?);
            let allowed = object([("mode", mode), ("tools", tools)]);
            let kind = Json::Str("allowed_tools".into());
            object([("type", kind), ("allowed_tools", allowed)])
        }
        kind => {
            let fault = format!("is {kind:.40?}, only functions and custom tools are supported");
            return Err(JsonPath::Member(&path, "type").unsupported(fault));
        }
    };
    choice.refuse_rest()?;
    Ok(chosen)
}

/// The name of a chosen tool, as the model knows it.
fn chosen_name<'a>(choice: &mut Members<'a, '_>) -> Result<Json<'a>, ApiError> {
    let name = choice.required_text("name")?;
    Ok(Json::Str(match choice.text("namespace")? {
        Some(namespace) => joined(&namespace, &name).into(),
        None => name,
    }))
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
