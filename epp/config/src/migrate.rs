//! Parameters under names of old: each moves to its present one, with a warning.

use crate::document::{Document, PluginEntry};
use crate::findings::Findings;
use serde_json::{Map, Value};

/// A parameter that has moved: the type of plug-in, where the parameter was, where it is.
///
/// Source: deprecations in the llm-d router.
const MOVED: [(&str, &[&str], &[&str]); 5] = [
    ("approx-prefix-cache-producer", &["blockSize"], &["blockSizeTokens"]),
    (
        "precise-prefix-cache-producer",
        &["tokenProcessorConfig", "blockSize"],
        &["tokenProcessorConfig", "blockSizeTokens"],
    ),
    (
        "precise-prefix-cache-scorer",
        &["tokenProcessorConfig", "blockSize"],
        &["tokenProcessorConfig", "blockSizeTokens"],
    ),
    ("mm-embeddings-cache-producer", &["cacheSizeInMB"], &["cacheSizeInMBPerServer"]),
    ("disagg-profile-handler", &["deciderPluginName"], &["deciders", "prefill"]),
];

/// A parameter that has no effect any more: the type of plug-in and the parameter's name.
///
/// Source: as [`MOVED`]; tokenizers behind a socket went with the process that served them.
const RETIRED: [(&str, &str); 1] = [("token-producer", "udsTokenizerConfig")];

/// Moves what has moved and takes out what has no effect any more. Where both names are there, the
/// present one counts.
pub(crate) fn parameters(document: &mut Document, findings: &Findings) {
    for plugin in &mut document.plugins {
        for (type_name, from, to) in MOVED {
            if plugin.type_name == type_name {
                rename(plugin, from, to, findings);
            }
        }
        for (type_name, name) in RETIRED {
            if plugin.type_name == type_name && take(&mut plugin.parameters, &[name]).is_some() {
                let path = format!("{}.parameters.{name}", plugin.path);
                findings.warn(path, "has no effect any more: remove it");
            }
        }
    }
}

fn rename(plugin: &mut PluginEntry, from: &[&str], to: &[&str], findings: &Findings) {
    let Some(value) = take(&mut plugin.parameters, from) else { return };
    let path = format!("{}.parameters.{}", plugin.path, from.join("."));
    findings.warn(path, format!("is deprecated: use {}", to.join(".")));
    put(&mut plugin.parameters, to, value);
}

fn take(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, before) = path.split_last()?;
    let holder = before.iter().try_fold(value, |value, key| value.get_mut(key))?;
    holder.as_object_mut()?.remove(*last)
}

/// Puts a value where none is; where something else is in the way, that is left to be refused.
fn put(value: &mut Value, path: &[&str], new: Value) {
    let Some((last, before)) = path.split_last() else { return };
    let mut holder = value;
    for key in before {
        let Value::Object(map) = holder else { return };
        holder = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
    }
    if let Value::Object(map) = holder {
        map.entry(*last).or_insert(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(type_name: &str, mut old: Value, new: Value) {
        let document = |parameters: &Value| Document {
            plugins: vec![PluginEntry {
                path: "plugins[0]".to_owned(),
                name: type_name.to_owned(),
                type_name: type_name.to_owned(),
                parameters: parameters.clone(),
                why: None,
            }],
            ..Document::default()
        };
        let mut moved = document(&old);
        parameters(&mut moved, &Findings::new(false));
        old = moved.plugins.remove(0).parameters;
        assert_eq!(old, new);
    }

    #[test]
    fn parameters_of_old_move_to_where_they_are_now() {
        check(
            "approx-prefix-cache-producer",
            json!({"blockSize": 64}),
            json!({"blockSizeTokens": 64}),
        );
        check(
            "precise-prefix-cache-producer",
            json!({"tokenProcessorConfig": {"blockSize": 16, "hashSeed": "42"}}),
            json!({"tokenProcessorConfig": {"blockSizeTokens": 16, "hashSeed": "42"}}),
        );
        check(
            "disagg-profile-handler",
            json!({"deciderPluginName": "d"}),
            json!({"deciders": {"prefill": "d"}}),
        );
    }

    #[test]
    fn parameters_without_effect_are_taken_out() {
        let old = json!({"udsTokenizerConfig": {"socketFile": "/tmp/x"}, "modelName": "m"});
        check("token-producer", old, json!({"modelName": "m"}));
    }

    #[test]
    fn the_present_name_counts_and_other_types_are_left_alone() {
        let both = json!({"blockSize": 64, "blockSizeTokens": 128});
        check("approx-prefix-cache-producer", both.clone(), json!({"blockSizeTokens": 128}));
        check("queue-scorer", both.clone(), both);
        check(
            "disagg-profile-handler",
            json!({"deciderPluginName": "d", "deciders": 1}),
            json!({"deciders": 1}),
        );
    }
}
