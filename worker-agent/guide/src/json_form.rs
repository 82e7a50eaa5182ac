//! Forms of JSON: the white space that an answer may have.

use serde_json::{Value, json};

/// White space that may stand between the parts of a JSON answer: a blank, or a new line and an
/// indent. Models lose themselves in white space without a bound.
const JSON_SPACE: &str = r"(\x20|\x0A[\x20\x09]{0,32})?";
/// Key of a schema that says how its JSON is written. Source: `llguidance`.
const JSON_OPTIONS: &str = "x-guidance";

/// A schema whose JSON may be indented, within bounds, unless it says how it is to be written.
pub(crate) fn spaced(mut schema: Value) -> Value {
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
