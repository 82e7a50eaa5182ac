//! The tools that an answer may call, whichever API they came by.

use crate::json::Json;
use std::borrow::Cow;

/// The functions that the model was told of, and how it is to choose among them.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse<'a> {
    /// The functions that may be called, at least one. The prompt may show more.
    pub functions: Vec<Function<'a>>,
    /// The choice among the functions.
    pub choice: ToolChoice<'a>,
    /// Whether one answer may have several calls.
    pub parallel: bool,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function<'a> {
    /// The name, which is not empty.
    pub name: Cow<'a, str>,
    /// JSON Schema of the arguments; none for a function that takes any object.
    pub parameters: Option<Json<'a>>,
    /// Whether the arguments must fit the schema, by constrained decoding.
    pub strict: bool,
    /// The input that its calls hold, if it stands for a custom tool.
    pub custom: Option<CustomInput>,
}

/// The input of a custom tool's calls: to the model, the one string of a function's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CustomInput {
    /// Any text.
    Text,
    /// Text of a grammar: what may stand between the quotes of its JSON string, in EBNF.
    Grammar(String),
}

/// How the model chooses among functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice<'a> {
    /// The model decides whether to call and what.
    #[default]
    Auto,
    /// No call: calls that the model writes all the same are left out of the answer.
    None,
    /// At least one call.
    Required,
    /// A call of this function.
    Named(Cow<'a, str>),
}

impl<'a> ToolUse<'a> {
    /// The functions of definitions in OpenAI's form, `{"type":"function","function":{…}}`.
    /// Definitions of another form are left out.
    pub fn functions(definitions: &[Json<'a>]) -> Vec<Function<'a>> {
        let function = |definition: &Json<'a>| {
            let function = definition.get("function")?;
            let Some(Json::Str(name)) = function.get("name") else { return None };
            let parameters = function.get("parameters").filter(|schema| **schema != Json::Null);
            Some(Function {
                name: name.clone(),
                parameters: parameters.cloned(),
                strict: function.get("strict") == Some(&Json::Bool(true)),
                custom: None,
            })
        };
        definitions.iter().filter_map(function).collect()
    }

    /// Whether an answer without a call is no answer.
    pub fn is_forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// Copies the call, so that it borrows nothing.
    pub fn into_owned(self) -> ToolUse<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let function = |function: Function<'_>| Function {
            name: owned(function.name),
            parameters: function.parameters.map(Json::into_owned),
            strict: function.strict,
            custom: function.custom,
        };
        ToolUse {
            functions: self.functions.into_iter().map(function).collect(),
            choice: match self.choice {
                ToolChoice::Auto => ToolChoice::Auto,
                ToolChoice::None => ToolChoice::None,
                ToolChoice::Required => ToolChoice::Required,
                ToolChoice::Named(name) => ToolChoice::Named(owned(name)),
            },
            parallel: self.parallel,
        }
    }
}
