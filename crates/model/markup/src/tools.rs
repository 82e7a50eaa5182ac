//! The functions that a request offers, as parsers look them up.

use stator_api::json::Json;
use stator_api::tools::Function;
use std::sync::Arc;

/// Functions by name. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct KnownTools(Arc<[Function<'static>]>);

impl KnownTools {
    /// These functions.
    pub fn new(functions: Vec<Function<'static>>) -> Self {
        Self(functions.into())
    }

    /// Whether a function has this name.
    pub fn contains(&self, name: &str) -> bool {
        self.function(name).is_some()
    }

    /// Whether a function stands for a custom tool.
    pub fn is_custom(&self, name: &str) -> bool {
        self.function(name).is_some_and(|function| function.custom.is_some())
    }

    /// The name under which a function is known that a model calls by its namespace and its name,
    /// where they are the same: `f.f` is `f`. Other names are what they are.
    pub(crate) fn own_name<'a>(&self, name: &'a str) -> &'a str {
        match name.split_once('.') {
            Some((space, own)) if space == own && !self.contains(name) && self.contains(own) => own,
            _ => name,
        }
    }

    /// The schema of a function's parameter, where the function has one.
    pub(crate) fn parameter(
        &self,
        function: &str,
        parameter: &str,
    ) -> Option<(&Json<'static>, &Json<'static>)> {
        let root = self.function(function)?.parameters.as_ref()?;
        Some((root, root.get("properties")?.get(parameter)?))
    }

    fn function(&self, name: &str) -> Option<&Function<'static>> {
        self.0.iter().find(|function| function.name == name)
    }
}
