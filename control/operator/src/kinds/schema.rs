//! Schemas of Rust types, in the form that custom resource definitions take.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Formats that Kubernetes knows, of those that come up.
const FORMATS: [&str; 2] = ["int32", "int64"];

/// The schema of a type: structural, without references, and without null.
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    make_structural(&mut schema);
    schema
}

/// Adds to `newer` what only `older` has. An object that was written in the older form is then
/// stored whole, though it is stored as the newer version.
pub(super) fn add_older(newer: &mut Value, older: &Value) {
    let required = |schema: &Value| schema["required"].as_array().cloned().unwrap_or_default();
    let (new, old) = (required(newer), required(older));
    let Some(properties) = newer.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, schema) in older["properties"].as_object().into_iter().flatten() {
        match properties.get_mut(name) {
            // One name, two forms: both are kept as they come.
            Some(known) if known["type"] != schema["type"] => {
                *known = json!({ "x-kubernetes-preserve-unknown-fields": true });
            }
            Some(known) => add_older(known, schema),
            None => drop(properties.insert(name.clone(), schema.clone())),
        }
    }
    let both: Vec<_> = new.into_iter().filter(|name| old.contains(name)).collect();
    let Some(newer) = newer.as_object_mut() else { return };
    newer.remove("required");
    if !both.is_empty() {
        newer.insert("required".to_owned(), both.into());
    }
}

fn make_structural(schema: &mut Value) {
    let Some(node) = schema.as_object_mut() else { return };
    for name in ["$schema", "title"] {
        node.remove(name);
    }
    if node.get("format").is_some_and(|format| !FORMATS.iter().any(|known| format == known)) {
        node.remove("format");
    }
    drop_null(node);
    merge_only_choice(node);
    gather_variants(node);
    let properties = node.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flatten().for_each(|(_, property)| make_structural(property));
    for name in ["items", "additionalProperties"] {
        node.get_mut(name).into_iter().for_each(make_structural);
    }
}

/// Takes `null` out of types and values: a field that says nothing is left out.
fn drop_null(node: &mut Map<String, Value>) {
    if let Some(types) = node.get_mut("type").filter(|types| types.is_array()) {
        let said = types.as_array().and_then(|all| all.iter().find(|one| **one != "null"));
        *types = said.cloned().unwrap_or_default();
    }
    if let Some(Value::Array(values)) = node.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}

/// Puts the only choice beside `null` into its place.
fn merge_only_choice(node: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = node.remove("anyOf") else { return };
    for choice in choices.into_iter().filter(|choice| choice["type"] != "null") {
        for (name, value) in choice.as_object().into_iter().flatten() {
            node.entry(name).or_insert_with(|| value.clone());
        }
    }
    // The choice is as it came.
    drop_null(node);
    gather_variants(node);
}

/// Makes one list of the variants of an enumeration.
fn gather_variants(node: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = node.remove("oneOf") else { return };
    let names = variants.into_iter().map(|variant| variant["const"].clone());
    let names: Value = names.filter(|name| !name.is_null()).collect();
    node.insert("type".to_owned(), json!("string"));
    node.insert("enum".to_owned(), names);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::beta::{ComponentShape, GraphSpec};

    #[test]
    fn schemas_are_structural() {
        fn check(schema: &Value) {
            let node = schema.as_object().expect("a schema is an object");
            for name in ["anyOf", "oneOf", "$ref", "$schema", "title", "nullable"] {
                assert!(!node.contains_key(name), "{name} in {schema:#}");
            }
            let is_number_or_text = node.contains_key("x-kubernetes-int-or-string");
            assert!(is_number_or_text || schema["type"].is_string(), "{schema:#}");
            let parts =
                schema["properties"].as_object().into_iter().flatten().map(|(_, part)| part);
            let parts = parts.chain(node.get("items")).chain(node.get("additionalProperties"));
            parts.for_each(check);
        }
        check(&schema_of::<GraphSpec>());
    }

    #[test]
    fn an_optional_choice_has_its_values() {
        let schema = schema_of::<ComponentShape>();
        let types = json!(["frontend", "worker", "prefill", "decode", "planner", "epp"]);
        assert_eq!(schema["properties"]["type"]["enum"], types);
        assert_eq!(schema["properties"]["replicas"]["minimum"], 0);
        let memory = &schema["properties"]["sharedMemorySize"];
        assert_eq!(memory["x-kubernetes-int-or-string"], true);
    }

    #[test]
    fn a_stored_schema_has_the_fields_of_both_versions_and_asks_for_those_of_both() {
        let mut newer = json!({
            "properties": {
                "a": {}, "in": { "properties": { "c": {} } }, "two": { "type": "string" },
            },
            "required": ["a", "in"],
        });
        let older = json!({
            "properties": {
                "b": {}, "in": { "properties": { "d": {} } }, "two": { "type": "object" },
            },
            "required": ["b", "in"],
        });
        add_older(&mut newer, &older);
        let both = json!({
            "properties": {
                "a": {},
                "b": {},
                "in": { "properties": { "c": {}, "d": {} } },
                "two": { "x-kubernetes-preserve-unknown-fields": true },
            },
            "required": ["in"],
        });
        assert_eq!(newer, both);
    }
}
