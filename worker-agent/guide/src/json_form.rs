//! Forms of JSON: the white space that an answer may have, and the members of its objects.

use serde_json::{Map, Value, json};

/// White space that may stand between the parts of a JSON answer: a blank, or a new line and an
/// indent. Models lose themselves in white space without a bound.
const JSON_SPACE: &str = r"(\x20|\x0A[\x20\x09]{0,32})?";
/// Key of a schema that says how its JSON is written. Source: `llguidance`.
const JSON_OPTIONS: &str = "x-guidance";
/// Keys that say which further members an object has.
const OPEN_KEYS: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
/// Keys whose schemas describe one object together with others: none of them alone is closed.
const JOINING_KEYS: [&str; 4] = ["allOf", "if", "dependentSchemas", "unevaluatedProperties"];
/// Keys that hold one schema or a list of them.
const SCHEMA_KEYS: [&str; 6] =
    ["items", "prefixItems", "anyOf", "oneOf", "additionalProperties", "contains"];
/// Keys that hold schemas by name.
const NAMED_SCHEMA_KEYS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// A schema as models keep to it: the JSON may be indented, within bounds, unless the schema says how
/// it is to be written; and an object whose members are listed has no others, unless the schema says
/// so. Models lose themselves in members that they make up, as they do in white space.
///
/// Source: the strict mode of xgrammar, which vLLM and SGLang use.
pub(crate) fn kept(mut schema: Value) -> Value {
    if !joins(&schema) {
        close(&mut schema);
    }
    if let Value::Object(members) = &mut schema {
        let options = members.entry(JSON_OPTIONS).or_insert_with(|| json!({}));
        if let Value::Object(options) = options
            && !options.contains_key("whitespace_flexible")
        {
            options.entry("whitespace_pattern").or_insert_with(|| JSON_SPACE.into());
        }
    }
    schema
}

/// Whether schemas within this one describe an object together.
fn joins(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            members.iter().any(|(key, value)| JOINING_KEYS.contains(&key.as_str()) || joins(value))
        }
        Value::Array(items) => items.iter().any(joins),
        _ => false,
    }
}

fn close(schema: &mut Value) {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(schemas) => return schemas.iter_mut().for_each(close),
        _ => return,
    };
    if lists_members(members) {
        members.insert("additionalProperties".into(), false.into());
    }
    for key in SCHEMA_KEYS {
        if let Some(schema) = members.get_mut(key) {
            close(schema);
        }
    }
    for key in NAMED_SCHEMA_KEYS {
        if let Some(Value::Object(named)) = members.get_mut(key) {
            named.values_mut().for_each(close);
        }
    }
}

/// Whether an object's members are listed, and nothing is said of others. One that refers to another
/// schema, or has alternatives, has members from there, too.
fn lists_members(schema: &Map<String, Value>) -> bool {
    let lists = matches!(schema.get("properties"), Some(Value::Object(it)) if !it.is_empty());
    let mut more = OPEN_KEYS.into_iter().chain(["$ref", "anyOf", "oneOf"]);
    lists && !more.any(|key| schema.contains_key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, expected: Value) {
        let mut kept = kept(schema);
        kept.as_object_mut().expect("an object").remove(JSON_OPTIONS).expect("options");
        assert_eq!(kept, expected);
    }

    #[test]
    fn an_object_has_the_members_that_are_listed() {
        let (open, closed) = (
            json!({"properties": {"a": {}}}),
            json!({"properties": {"a": {}}, "additionalProperties": false}),
        );
        check(open.clone(), closed.clone());
        check(
            json!({"items": open, "$defs": {"d": {"anyOf": [open]}}}),
            json!({"items": closed, "$defs": {"d": {"anyOf": [closed]}}}),
        );
    }

    #[test]
    fn an_object_has_others_where_its_schema_says_so() {
        for open in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "patternProperties": {"^b": {}}}),
            json!({"properties": {"a": {}}, "$ref": "#/$defs/b"}),
            json!({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}),
            json!({"anyOf": [{"properties": {"a": {}}}], "properties": {"b": {"allOf": []}}}),
        ] {
            check(open.clone(), open);
        }
    }

    #[test]
    fn the_members_own_names_are_no_keys() {
        let schema = json!({"type": "object", "properties": {"items": {"type": "object"}}});
        let mut expected = schema.clone();
        expected["additionalProperties"] = false.into();
        check(schema, expected);
    }
}
