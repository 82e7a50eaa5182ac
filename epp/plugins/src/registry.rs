//! Finds plug-ins by type name and builds them.

use crate::context::BuildContext;
use crate::kind::{Need, PluginKind, Stability};
use crate::params;
use crate::table::KINDS;
use serde_json::Value;
use stator_epp_scheduler::plugin::PluginParts;

/// A parameter that names another plug-in, which must be built before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The parameter, from the top: `deciders.prefill`.
    pub path: String,
    /// The name that it gives.
    pub name: String,
}

/// Paths of parameters that name plug-ins.
const REFERENCES: &[&str] = &[
    "deciders.encode",
    "deciders.prefill",
    "deciderPluginName",
    "prefixMatchInfoProducerName",
    "latencyPredictionInfoProducerName",
    "inFlightLoadProducerName",
    "topologyProducerName",
    "ttftPercentilesProducerName",
];

/// Every type that is known, in alphabetical order.
pub fn kinds() -> &'static [PluginKind] {
    KINDS
}

/// The type of a name or of an alias.
pub fn find(type_name: &str) -> Option<&'static PluginKind> {
    KINDS.iter().find(|kind| kind.type_name == type_name || kind.aliases.contains(&type_name))
}

/// The producers that a plug-in with these parameters depends on, by type name.
pub fn needs(type_name: &str, parameters: &Value) -> Vec<&'static str> {
    let needs = find(type_name).map_or(&[][..], |kind| kind.needs);
    let text = |name: &str| parameters.get(name).and_then(Value::as_str);
    let applies = |need: &&Need| {
        let named = need.unless.and_then(text).is_some_and(|name| !name.is_empty());
        let says = |(name, word): (&str, &str)| match parameters.get(name) {
            Some(Value::Bool(on)) => on.to_string() == word,
            _ => text(name) == Some(word),
        };
        !named && need.when.is_none_or(says)
    };
    needs.iter().filter(applies).map(|need| need.producer).collect()
}

/// The plug-ins that the parameters of a plug-in name. A name that no plug-in has is for
/// [`build`] to refuse.
pub fn references(parameters: &Value) -> Vec<Reference> {
    let named = |path: String| {
        let pointer = format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
        let name = parameters.pointer(&pointer)?.as_str().filter(|name| !name.is_empty())?;
        Some(Reference { name: name.to_owned(), path })
    };
    let sources = parameters.pointer("/sessionIdConfig/sources").and_then(Value::as_array);
    let attributes = sources.into_iter().flatten().enumerate().map(|(at, source)| {
        // An attribute is also the name of who makes it, unless that is said.
        let name = if source.get("producer").is_some() { "producer" } else { "attribute" };
        format!("sessionIdConfig.sources[{at}].{name}")
    });
    let paths = REFERENCES.iter().map(|path| (*path).to_owned());
    paths.chain(attributes).filter_map(named).collect()
}

/// Builds the plug-in `name` of a type; `parameters` is an object, or null for defaults. It is
/// kept in the context, where plug-ins built later find it.
///
/// # Errors
///
/// Everything that is wrong with the parameters, each error beginning with the parameter's path;
/// or that there is no such type.
pub fn build(
    type_name: &str,
    name: &str,
    parameters: &Value,
    context: &mut BuildContext,
) -> Result<PluginParts, Vec<String>> {
    let kind = find(type_name).filter(|kind| kind.stability != Stability::Missing);
    let Some(kind) = kind else {
        return Err(vec![format!("type: {type_name:?} is not available")]);
    };
    context.begin(name);
    let (built, notes) = params::read(parameters, |params| (kind.make)(params, context))?;
    context.notes.insert(name.to_owned(), notes);
    context.built.insert(name.to_owned(), built.clone());
    Ok(built)
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
