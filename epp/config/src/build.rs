//! Makes the plug-ins of a configuration.

use crate::document::{Document, PluginEntry};
use crate::findings::Findings;
use serde_json::Value;
use stator_epp_plugins::{BuildContext, references};

/// Text in a parameter error that marks a parameter as unknown.
const UNKNOWN: &str = ": unknown parameter, ";

/// Builds the plug-ins in an order in which each finds those that it depends on. Faults of their
/// parameters are noted; if lenient, unknown parameters are left out. A plug-in that refers to one
/// of `left_out` is not blamed for the missing reference.
pub(crate) fn build(
    document: &mut Document,
    order: &[usize],
    left_out: &[String],
    findings: &Findings,
) -> BuildContext {
    let profiles = document.profiles.iter().map(|profile| profile.name.clone());
    let mut context = BuildContext::new(profiles.collect());
    for position in order {
        let plugin = &mut document.plugins[*position];
        let mut errors = attempt(plugin, &mut context);
        let (unknown, others): (Vec<_>, Vec<_>) =
            errors.iter().cloned().partition(|error| error.contains(UNKNOWN));
        if findings.lenient() && !unknown.is_empty() {
            let path = |error: &'_ String| error.find(UNKNOWN).map(|end| error[..end].to_owned());
            let paths: Vec<String> = unknown.iter().filter_map(path).collect();
            prune(&mut plugin.parameters, "", &paths);
            for error in &unknown {
                let (path, message) = split(plugin, error);
                findings.warn(path, format!("ignored: {message}"));
            }
            errors = if others.is_empty() { attempt(plugin, &mut context) } else { others };
        }
        for error in errors {
            let (path, message) = split(plugin, &error);
            let named = references(&plugin.parameters).into_iter().any(|reference| {
                left_out.contains(&reference.name)
                    && path == format!("{}.parameters.{}", plugin.path, reference.path)
            });
            // A reference that leads nowhere has been told of with a suggestion.
            if !findings.faulty(&path) && (findings.lenient() || !named) {
                findings.fault(path, message);
            }
        }
    }
    for plugin in &document.plugins {
        for note in context.notes.get(&plugin.name).into_iter().flatten() {
            let (path, message) = split(plugin, note);
            findings.warn(path, message);
        }
    }
    context
}

fn attempt(plugin: &PluginEntry, context: &mut BuildContext) -> Vec<String> {
    let built =
        stator_epp_plugins::build(&plugin.type_name, &plugin.name, &plugin.parameters, context);
    built.err().unwrap_or_default()
}

/// The path and the message of an error about a parameter, or about a type in this place.
fn split(plugin: &PluginEntry, error: &str) -> (String, String) {
    let parameters = format!("{}.parameters", plugin.path);
    match error.split_once(": ") {
        Some(("parameters", message)) => (parameters, message.to_owned()),
        Some(("type", message)) => (format!("{}.type", plugin.path), message.to_owned()),
        Some((path, message)) => (format!("{parameters}.{path}"), message.to_owned()),
        None => (parameters, error.to_owned()),
    }
}

/// Removes the entries at `paths`, written as errors write them.
fn prune(value: &mut Value, at: &str, paths: &[String]) {
    match value {
        Value::Object(entries) => {
            let child =
                |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
            entries.retain(|key, _| !paths.contains(&child(key)));
            for (key, value) in entries.iter_mut() {
                prune(value, &child(key), paths);
            }
        }
        Value::Array(items) => {
            for (position, item) in items.iter_mut().enumerate() {
                prune(item, &format!("{at}[{position}]"), paths);
            }
        }
        _ => {}
    }
}
