//! Custom tools: a call's input is text, perhaps of a certain form.
//!
//! To a model a custom tool is a function of the one string `input`. Its calls come back with the input
//! alone, and a grammar of the input holds the string.
//!
//! Source: the "Custom tools" guide of the OpenAI API.

mod common;
mod grammar;
mod input;
mod lark;
mod lark_texts;
mod regex;
#[cfg(test)]
mod tests;

pub use input::{InputReader, arguments_of};

use crate::conversation::Message;
use crate::json::Json;
use crate::openai::ApiError;
use crate::openai::guide::GUIDE_MAX_BYTES;
use crate::tools::CustomInput;
use crate::tree::object;
use input::INPUT;
use std::borrow::Cow;

const CUSTOM: &str = "custom";

/// Most bytes of all grammars of a request: each is compiled.
pub(crate) const GRAMMARS_MAX_BYTES: usize = GUIDE_MAX_BYTES;

/// A custom tool beside the function that stands for it.
pub(crate) struct CustomTool {
    /// The input that its calls hold.
    pub(crate) input: CustomInput,
    /// Bytes of its grammar's definition.
    pub(crate) grammar_bytes: usize,
}

/// Makes a function of the definition of a custom tool, which stands at `path`; none for a definition of
/// another type.
///
/// # Errors
///
/// 400 for a format that is none, and for a grammar that cannot be held, with the place in it.
pub(crate) fn definition(tool: &mut Json<'_>, path: &str) -> Result<Option<CustomTool>, ApiError> {
    if tool.get("type").and_then(Json::as_str) != Some(CUSTOM) {
        return Ok(None);
    }
    let path = format!("{path}.{CUSTOM}");
    let member = |name: &str| tool.get(CUSTOM).and_then(|custom| custom.get(name));
    let mut string = vec![("type".into(), Json::Str("string".into()))];
    let format = member("format").filter(|format| **format != Json::Null);
    let kind = format.map_or(Some("text"), |format| format.get("type").and_then(Json::as_str));
    let read = match (kind, format) {
        (Some("text"), _) => CustomTool { input: CustomInput::Text, grammar_bytes: 0 },
        (Some("grammar"), Some(format)) => {
            let path = format!("{path}.format.grammar");
            let grammar = Grammar::read(format.get("grammar"), &path)?;
            string.push(("description".into(), Json::Str(grammar.told().into())));
            let input = CustomInput::Grammar(grammar.ebnf(&path)?);
            CustomTool { input, grammar_bytes: grammar.definition.len() }
        }
        (kind, _) => {
            let path = format!("{path}.format.type");
            let kind = kind.unwrap_or("null");
            let message = format!("{path} is {kind:.40?}, it must be \"text\" or \"grammar\"");
            return Err(ApiError::invalid(&path, message));
        }
    };
    let parameters = object([
        ("type", Json::Str("object".into())),
        ("properties", object([(INPUT, Json::Object(string))])),
        ("required", Json::Array(vec![Json::Str(INPUT.into())])),
        ("additionalProperties", Json::Bool(false)),
    ]);
    let mut function = Vec::new();
    for name in ["name", "description"] {
        function.extend(member(name).map(|value| (name.into(), value.clone())));
    }
    function.push(("parameters".into(), parameters));
    *tool = object([("type", Json::Str("function".into())), ("function", Json::Object(function))]);
    Ok(Some(read))
}

/// Makes calls of functions of a message's calls of custom tools; the message stands at `path`.
///
/// # Errors
///
/// 400 for a call of a custom tool without a name or an input.
pub(crate) fn settle_calls(message: &mut Message<'_>, path: &str) -> Result<(), ApiError> {
    let calls = message.extra.iter_mut().filter(|(name, _)| name == "tool_calls");
    for (at, call) in calls.flat_map(|(_, calls)| items(calls)).enumerate() {
        let Json::Object(members) = call else { continue };
        let is_custom = |(name, value): &(Cow<'_, str>, Json<'_>)| {
            name == "type" && value.as_str() == Some(CUSTOM)
        };
        if !members.iter().any(is_custom) {
            continue;
        }
        let text = |name: &str| {
            let custom = members.iter().find(|(name, _)| name == CUSTOM).map(|(_, custom)| custom);
            match custom.and_then(|custom| custom.get(name)) {
                Some(Json::Str(text)) => Ok(text.clone()),
                _ => {
                    let path = format!("{path}.tool_calls[{at}].{CUSTOM}.{name}");
                    Err(ApiError::invalid(&path, format!("{path} must be a string")))
                }
            }
        };
        let (name, input) = (text("name")?, text("input")?);
        let arguments = Json::Str(arguments_of(input).into());
        let function = object([("name", Json::Str(name)), ("arguments", arguments)]);
        members.retain(|(name, _)| name != "type" && name != CUSTOM);
        members.push(("type".into(), Json::Str("function".into())));
        members.push(("function".into(), function));
    }
    Ok(())
}

fn items<'j, 'a>(list: &'j mut Json<'a>) -> &'j mut [Json<'a>] {
    match list {
        Json::Array(items) => items,
        _ => &mut [],
    }
}

/// A grammar in a client's words.
struct Grammar<'d> {
    syntax: GrammarSyntax,
    definition: &'d str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GrammarSyntax {
    Lark,
    Regex,
}

impl<'d> Grammar<'d> {
    fn read(grammar: Option<&'d Json<'_>>, path: &str) -> Result<Self, ApiError> {
        let text = |name: &str| {
            let path = format!("{path}.{name}");
            let text = grammar.and_then(|grammar| grammar.get(name)).and_then(Json::as_str);
            text.ok_or_else(|| ApiError::invalid(&path, format!("{path} must be a string")))
        };
        let syntax = match text("syntax")? {
            "lark" => GrammarSyntax::Lark,
            "regex" => GrammarSyntax::Regex,
            other => {
                let path = format!("{path}.syntax");
                let message = format!("{path} is {other:.40?}, it must be \"lark\" or \"regex\"");
                return Err(ApiError::invalid(&path, message));
            }
        };
        Ok(Self { syntax, definition: text("definition")? })
    }

    /// The description of the tool that the model reads.
    fn told(&self) -> String {
        match self.syntax {
            GrammarSyntax::Lark => format!("Text of this grammar (Lark):\n{}", self.definition),
            GrammarSyntax::Regex => format!("Text of this regular expression: {}", self.definition),
        }
    }

    fn ebnf(&self, path: &str) -> Result<String, ApiError> {
        let path = format!("{path}.definition");
        let bytes = self.definition.len();
        if bytes > GRAMMARS_MAX_BYTES {
            let message = format!("{path} has {bytes} bytes, the limit is {GRAMMARS_MAX_BYTES}");
            return Err(ApiError::invalid(&path, message));
        }
        let held = match self.syntax {
            GrammarSyntax::Lark => lark::of_lark(self.definition),
            GrammarSyntax::Regex => regex::of_regex(self.definition),
        };
        held.map_err(|fault| ApiError::invalid(&path, format!("{path}: {fault}")))
    }
}
