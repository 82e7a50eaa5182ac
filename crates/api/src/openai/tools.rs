//! The tools of a chat and the choice among them, read from JSON.
//!
//! Source: OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.

use super::body::Body;
use super::error::ApiError;
use crate::custom_tools::{self, GRAMMARS_MAX_BYTES};
use crate::json::Json;
use crate::tools::{CustomInput, Function, ToolChoice, ToolUse};
use std::borrow::Cow;

/// Most tools of a request.
pub const TOOLS_MAX: usize = 1536;
/// Longest name of a function, in bytes.
pub const FUNCTION_NAME_MAX_BYTES: usize = 128;

const CHOICE: &str = "tool_choice";
const FUNCTION: &str = "function";
const CUSTOM: &str = "custom";

/// The tools of a chat: for the template, and for the answer.
pub(super) struct ChatTools<'a> {
    /// Definitions as the client sent them, at least one.
    pub(super) definitions: Option<Vec<Json<'a>>>,
    /// How the answer may use them.
    pub(super) tool_use: Option<ToolUse<'a>>,
}

/// Takes the tools out of a body.
///
/// # Errors
///
/// 400 with the field at fault; a choice among tools that are not there is one too.
pub(super) fn read<'a>(body: &mut Body<'a>) -> Result<ChatTools<'a>, ApiError> {
    let (definitions, customs) = definitions(body.tools.take())?;
    let choice = body.tool_choice.take();
    let parallel = body.parallel_tool_calls.unwrap_or(true);
    let mut functions = ToolUse::functions(definitions.as_deref().unwrap_or_default());
    for (function, custom) in functions.iter_mut().zip(customs) {
        // An input of a certain form is held to it.
        function.strict |= matches!(custom, Some(CustomInput::Grammar(_)));
        function.custom = custom;
    }
    let mut tool_use = ToolUse { functions, choice: ToolChoice::Auto, parallel };
    choose(&mut tool_use, choice)?;
    let needed = match &tool_use.choice {
        ToolChoice::Required => Some("required".to_owned()),
        ToolChoice::Named(name) => Some(format!("the tool \"{name:.128}\"")),
        ToolChoice::Auto | ToolChoice::None => None,
    };
    match (definitions, needed) {
        (None, None) => Ok(ChatTools { definitions: None, tool_use: None }),
        (None, Some(needed)) => {
            let message = format!("tool_choice is {needed}, which needs tools");
            Err(ApiError::invalid(CHOICE, message))
        }
        (definitions, _) => Ok(ChatTools { definitions, tool_use: Some(tool_use) }),
    }
}

/// Reads the choice, which may also leave functions out.
fn choose<'a>(tool_use: &mut ToolUse<'a>, choice: Option<Json<'a>>) -> Result<(), ApiError> {
    match choice {
        None | Some(Json::Null) => Ok(()),
        Some(Json::Str(mode)) => {
            tool_use.choice = mode_of(CHOICE, &mode)?;
            Ok(())
        }
        Some(choice @ Json::Object(_)) => match choice.get("type").and_then(Json::as_str) {
            Some("function" | "custom") => {
                let name = named(tool_use, &choice, "tool_choice")?;
                tool_use.choice = ToolChoice::Named(name);
                Ok(())
            }
            Some("allowed_tools") => allow(tool_use, &choice),
            kind => {
                let kind = kind.unwrap_or("null");
                let message = format!(
                    "tool_choice of type \"{kind:.40}\" is not supported, only function, custom \
                     and allowed_tools"
                );
                Err(ApiError::unsupported(CHOICE, message))
            }
        },
        Some(_) => Err(ApiError::invalid(CHOICE, "tool_choice must be a string or an object")),
    }
}

fn mode_of(param: &str, mode: &str) -> Result<ToolChoice<'static>, ApiError> {
    match mode {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!(
                "{param} is \"{other:.40}\", it must be \"auto\", \"none\" or \"required\""
            );
            Err(ApiError::invalid(param, message))
        }
    }
}

/// The name in `{"type":"function","function":{"name":…}}` or `{"type":"custom","custom":{"name":…}}`,
/// which must be that of a tool of this type.
fn named<'a>(
    tool_use: &ToolUse<'a>,
    choice: &Json<'a>,
    path: &str,
) -> Result<Cow<'a, str>, ApiError> {
    let is_custom = choice.get("type").and_then(Json::as_str) == Some(CUSTOM);
    let kind = if is_custom { CUSTOM } else { FUNCTION };
    let param = format!("{path}.{kind}.name");
    let name = choice.get(kind).and_then(|tool| tool.get("name"));
    let Some(Json::Str(name)) = name else {
        return Err(ApiError::invalid(&param, format!("{param} must be a string")));
    };
    let is_it = |it: &Function<'_>| it.name == *name && it.custom.is_some() == is_custom;
    if !tool_use.functions.is_empty() && !tool_use.functions.iter().any(is_it) {
        let what = if is_custom { "custom tool" } else { "function" };
        let message = format!("{param} is \"{name:.128}\", which is no {what} of tools");
        return Err(ApiError::invalid(&param, message));
    }
    Ok(name.clone())
}

/// Leaves the functions that may be called: the prompt keeps all, so that its cached prefix stays.
fn allow<'a>(tool_use: &mut ToolUse<'a>, choice: &Json<'a>) -> Result<(), ApiError> {
    const TOOLS: &str = "tool_choice.allowed_tools.tools";
    let allowed = choice.get("allowed_tools");
    let mode = allowed.and_then(|allowed| allowed.get("mode"));
    let mode = mode.and_then(Json::as_str).unwrap_or("auto");
    tool_use.choice = match mode_of("tool_choice.allowed_tools.mode", mode)? {
        ToolChoice::None => {
            let message = "tool_choice.allowed_tools.mode must be \"auto\" or \"required\"";
            return Err(ApiError::invalid("tool_choice.allowed_tools.mode", message));
        }
        mode => mode,
    };
    let Some(Json::Array(tools)) = allowed.and_then(|allowed| allowed.get("tools")) else {
        return Err(ApiError::invalid(TOOLS, format!("{TOOLS} must be a list")));
    };
    if tools.is_empty() || tools.len() > TOOLS_MAX {
        let message = format!("{TOOLS} has {} tools, it must have 1 to {TOOLS_MAX}", tools.len());
        return Err(ApiError::invalid(TOOLS, message));
    }
    let names =
        tools.iter().enumerate().map(|(at, tool)| named(tool_use, tool, &format!("{TOOLS}[{at}]")));
    let names: Vec<_> = names.collect::<Result<_, _>>()?;
    tool_use.functions.retain(|function| names.contains(&function.name));
    Ok(())
}

/// Definitions of functions, and beside each what a custom tool that it stands for holds.
type Definitions<'a> = (Option<Vec<Json<'a>>>, Vec<Option<CustomInput>>);

fn definitions(tools: Option<Json<'_>>) -> Result<Definitions<'_>, ApiError> {
    let mut tools = match tools {
        None | Some(Json::Null) => return Ok((None, Vec::new())),
        Some(Json::Array(tools)) => tools,
        Some(_) => return Err(ApiError::invalid("tools", "tools must be a list")),
    };
    if tools.len() > TOOLS_MAX {
        return Err(ApiError::invalid(
            "tools",
            format!("tools has {} tools, the limit is {TOOLS_MAX}", tools.len()),
        ));
    }
    // The first fault ends the search, and names the place of its tool.
    let mut customs = Vec::with_capacity(tools.len());
    let mut grammar_bytes = 0;
    for (at, tool) in tools.iter_mut().enumerate() {
        let path = format!("tools[{at}]");
        let custom = custom_tools::definition(tool, &path)?;
        grammar_bytes += custom.as_ref().map_or(0, |custom| custom.grammar_bytes);
        if grammar_bytes > GRAMMARS_MAX_BYTES {
            let message = format!(
                "the grammars of all tools have more than {GRAMMARS_MAX_BYTES} bytes together"
            );
            return Err(ApiError::invalid(&path, message));
        }
        check_definition(tool, &path, custom.is_some())?;
        customs.push(custom.map(|custom| custom.input));
    }
    Ok((Some(tools).filter(|tools| !tools.is_empty()), customs))
}

/// Checks a function's definition, which may stand for a custom tool.
fn check_definition(tool: &Json<'_>, path: &str, is_custom: bool) -> Result<(), ApiError> {
    let fault =
        |field: &str, message: String| Err(ApiError::invalid(&format!("{path}{field}"), message));
    if tool.get("type").and_then(Json::as_str) != Some(FUNCTION) {
        return fault(".type", format!("{path}.type must be \"function\" or \"custom\""));
    }
    let kind = if is_custom { CUSTOM } else { FUNCTION };
    let function = tool.get("function");
    match function.and_then(|function| function.get("name")).and_then(Json::as_str) {
        None | Some("") => {
            return fault(&format!(".{kind}.name"), format!("{path}.{kind}.name must be a string"));
        }
        Some(name) if name.len() > FUNCTION_NAME_MAX_BYTES => {
            let bytes = name.len();
            let message =
                format!("the name has {bytes} bytes, the limit is {FUNCTION_NAME_MAX_BYTES}");
            return fault(&format!(".{kind}.name"), message);
        }
        Some(_) => {}
    }
    match function.and_then(|function| function.get("parameters")) {
        None | Some(Json::Null | Json::Object(_)) => Ok(()),
        Some(_) => {
            fault(".function.parameters", format!("{path}.function.parameters must be an object"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chat;
    use super::*;

    const TOOLS: &str = r#""tools":[{"type":"function","function":{"name":"f","strict":true}},
        {"type":"function","function":{"name":"g","parameters":{"type":"object"}}}]"#;

    fn check(extra: &str, check: impl FnOnce(Result<Option<ToolUse<'_>>, ApiError>)) {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{extra}}}"#);
        check(chat::read(body.as_bytes()).map(|request| request.tools));
    }

    fn refused(extra: &str, param: &str) {
        check(extra, |read| assert_eq!(read.expect_err(extra).param.as_deref(), Some(param)));
    }

    #[test]
    fn tools_are_functions_with_a_choice() {
        check(TOOLS, |read| {
            let tools = read.unwrap().unwrap();
            assert_eq!((tools.choice, tools.parallel), (ToolChoice::Auto, true));
            let parameters = Some(Json::Object(vec![("type".into(), Json::Str("object".into()))]));
            let f = Function { name: "f".into(), parameters: None, strict: true, custom: None };
            let g = Function { name: "g".into(), parameters, strict: false, custom: None };
            assert_eq!(tools.functions, [f, g]);
        });
        check(r#""tools":[],"tool_choice":"auto""#, |read| assert_eq!(read.unwrap(), None));
        let named = r#""tool_choice":{"type":"function","function":{"name":"g"}}"#;
        check(&format!(r#"{TOOLS},{named},"parallel_tool_calls":false"#), |read| {
            let tools = read.unwrap().unwrap();
            assert_eq!((&tools.choice, tools.parallel), (&ToolChoice::Named("g".into()), false));
            assert!(tools.is_forced());
        });
        let allowed = r#""tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required",
            "tools":[{"type":"function","function":{"name":"g"}}]}}"#;
        check(&format!("{TOOLS},{allowed}"), |read| {
            let tools = read.unwrap().unwrap();
            assert_eq!(tools.choice, ToolChoice::Required);
            assert_eq!(tools.functions.len(), 1);
        });
    }

    #[test]
    fn choices_that_cannot_be_kept_are_refused() {
        refused(r#""tool_choice":"required""#, "tool_choice");
        refused(r#""tool_choice":{"type":"function","function":{"name":"f"}}"#, "tool_choice");
        refused(&format!(r#"{TOOLS},"tool_choice":"any""#), "tool_choice");
        refused(&format!(r#"{TOOLS},"tool_choice":7"#), "tool_choice");
        refused(
            &format!(r#"{TOOLS},"tool_choice":{{"type":"custom"}}"#),
            "tool_choice.custom.name",
        );
        let custom = r#""tool_choice":{"type":"custom","custom":{"name":"f"}}"#;
        refused(&format!("{TOOLS},{custom}"), "tool_choice.custom.name");
        let unknown = r#""tool_choice":{"type":"function","function":{"name":"h"}}"#;
        refused(&format!("{TOOLS},{unknown}"), "tool_choice.function.name");
        let none = r#""tool_choice":{"type":"allowed_tools","allowed_tools":{"tools":[]}}"#;
        refused(&format!("{TOOLS},{none}"), "tool_choice.allowed_tools.tools");
        refused(
            r#""tools":[{"type":"function","function":{"name":"f","parameters":[]}}]"#,
            "tools[0].function.parameters",
        );
        refused(r#""tools":[{"type":"mcp"}]"#, "tools[0].type");
        for (custom, param) in [
            (r#"{}"#, ".name"),
            (r#"{"name":"f","format":{"type":"json"}}"#, ".format.type"),
            (
                r#"{"name":"f","format":{"type":"grammar","grammar":{"syntax":"ebnf"}}}"#,
                ".format.grammar.syntax",
            ),
            (
                r#"{"name":"f","format":{"type":"grammar","grammar":{"syntax":"lark",
                    "definition":"start: a\nb: \"c\""}}}"#,
                ".format.grammar.definition",
            ),
        ] {
            let tools = format!(r#""tools":[{{"type":"custom","custom":{custom}}}]"#);
            refused(&tools, &format!("tools[0].custom{param}"));
        }
    }

    #[test]
    fn a_custom_tool_is_a_function_of_one_string() {
        let tools = r#""tools":[{"type":"custom","custom":{"name":"f","description":"d"}},
            {"type":"custom","custom":{"name":"g","format":{"type":"grammar",
                "grammar":{"syntax":"regex","definition":"^[ab]+$"}}}},
            {"type":"function","function":{"name":"h"}}]"#;
        let named = r#""tool_choice":{"type":"custom","custom":{"name":"g"}}"#;
        check(&format!("{tools},{named}"), |read| {
            let tools = read.unwrap().unwrap();
            assert_eq!(tools.choice, ToolChoice::Named("g".into()));
            let [f, g, h] = &tools.functions[..] else { panic!("three functions") };
            assert_eq!((f.strict, &f.custom), (false, &Some(CustomInput::Text)));
            assert_eq!((g.strict, h.strict, &h.custom), (true, false, &None));
            let Some(CustomInput::Grammar(ebnf)) = &g.custom else { panic!("a grammar") };
            assert_eq!(ebnf, "root ::= r0\nr0 ::= (([a-b]))+\n");
            let input = g.parameters.as_ref().and_then(|it| it.get("properties")?.get("input"));
            let told = input.and_then(|input| input.get("description")).and_then(Json::as_str);
            assert_eq!(told, Some("Text of this regular expression: ^[ab]+$"));
        });
        let allowed = r#""tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required",
            "tools":[{"type":"custom","custom":{"name":"f"}}]}}"#;
        check(&format!("{tools},{allowed}"), |read| {
            let tools = read.unwrap().unwrap();
            assert_eq!((&tools.choice, tools.functions.len()), (&ToolChoice::Required, 1));
        });
        let wrong = r#""tool_choice":{"type":"function","function":{"name":"g"}}"#;
        refused(&format!("{tools},{wrong}"), "tool_choice.function.name");
    }
}
