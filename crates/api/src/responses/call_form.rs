//! Forms of calls: to a model every tool of a client is a function, and the client gets a call back
//! in the form of its own tool.
//!
//! Source: namespaces and custom tools of the Responses API, as the types of the Python client
//! `openai` have them and Codex sends them.

use crate::json::Json;
use crate::tree::object;
use std::borrow::Cow;

/// Text between a namespace and a function of it, in the name that the model knows.
const JOINT: &str = "__";
/// The one parameter of the function that a custom tool becomes.
const INPUT: &str = "input";

/// The form in which a client gets the calls of one tool, where that is no plain function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallForm {
    /// A function of a namespace.
    Namespaced {
        /// The namespace.
        namespace: String,
        /// The function's name within it.
        name: String,
    },
    /// A custom tool: its input is text.
    Custom,
}

/// Forms of calls by the name that the model knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallForms(Vec<(Box<str>, CallForm)>);

impl CallForms {
    /// Adds the form of a tool.
    pub(super) fn push(&mut self, name: &str, form: CallForm) {
        self.0.push((name.into(), form));
    }

    /// The form of a tool's calls; none for a plain function.
    pub(super) fn find(&self, name: &str) -> Option<&CallForm> {
        self.0.iter().find(|(known, _)| **known == *name).map(|(_, form)| form)
    }
}

/// The name by which the model knows a function of a namespace.
pub(super) fn joined(namespace: &str, name: &str) -> String {
    format!("{namespace}{JOINT}{name}")
}

/// The parameters of the function that a custom tool becomes. The whole input is of the regular
/// expression, if there is one.
pub(super) fn custom_parameters(regex: Option<Cow<'_, str>>) -> Json<'_> {
    let mut input = vec![("type".into(), Json::Str("string".into()))];
    // A pattern of JSON Schema is looked for anywhere.
    let pattern = regex.map(|regex| Json::Str(format!("^(?:{regex})$").into()));
    input.extend(pattern.map(|pattern| ("pattern".into(), pattern)));
    object([
        ("type", Json::Str("object".into())),
        ("properties", object([(INPUT, Json::Object(input))])),
        ("required", Json::Array(vec![Json::Str(INPUT.into())])),
        ("additionalProperties", Json::Bool(false)),
    ])
}

/// The arguments of the function call that stands for a custom tool's.
pub(super) fn custom_arguments(input: Cow<'_, str>) -> String {
    let arguments = object([(INPUT, Json::Str(input))]);
    serde_json::to_string(&arguments).expect("JSON that was read can be written")
}

/// The input in the arguments of a call. A model that wrote something else meant that.
pub(super) fn custom_input(arguments: &str) -> Cow<'_, str> {
    match serde_json::from_str::<Json<'_>>(arguments) {
        Ok(Json::Object(members)) => {
            let input = members.into_iter().find_map(|(name, value)| match value {
                Json::Str(text) if name == INPUT => Some(text),
                _ => None,
            });
            input.unwrap_or(Cow::Borrowed(arguments))
        }
        _ => Cow::Borrowed(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_input_is_what_its_arguments_hold() {
        for input in ["", "*** Begin\n\"x\" \\ é", "{}"] {
            assert_eq!(custom_input(&custom_arguments(input.into())), input);
        }
        for other in ["", "plain", "[1]", "{\"patch\":\"x\"}", "{\"input\":7}", "{\"input\":\"x"] {
            assert_eq!(custom_input(other), other);
        }
    }

    #[test]
    fn a_form_is_found_by_the_name_that_the_model_knows() {
        let mut forms = CallForms::default();
        forms.push("patch", CallForm::Custom);
        assert_eq!(forms.find("patch"), Some(&CallForm::Custom));
        assert_eq!((forms.find("pat"), joined("a", "b")), (None, "a__b".to_owned()));
    }
}
