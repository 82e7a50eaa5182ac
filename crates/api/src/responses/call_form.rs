//! Forms of calls: to a model every tool of a client is a function, and the client gets a call back
//! in the form of its own tool.
//!
//! Source: namespaces and custom tools of the Responses API, as the types of the Python client
//! `openai` have them and Codex sends them.

/// Text between a namespace and a function of it, in the name that the model knows.
const JOINT: &str = "__";

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_found_by_the_name_that_the_model_knows() {
        let mut forms = CallForms::default();
        let form = || CallForm::Namespaced { namespace: "a".into(), name: "b".into() };
        forms.push("a__b", form());
        assert_eq!(forms.find("a__b"), Some(&form()));
        assert_eq!((forms.find("pat"), joined("a", "b")), (None, "a__b".to_owned()));
    }
}
