//! Values of parameters that models write as plain text, as JSON.

use serde_json::Value;
use stator_api::json::Json;

/// Deepest chain of references and alternatives in a schema that is followed.
const DEPTH_MAX: usize = 16;

/// The type of values that are JSON, whatever its kind.
pub(crate) const JSON_TYPE: &str = "json";

/// The types that a parameter may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValueTypes(u8);

impl ValueTypes {
    const NULL: u8 = 1;
    const INTEGER: u8 = 2;
    const NUMBER: u8 = 4;
    const BOOLEAN: u8 = 8;
    const OBJECT: u8 = 16;
    const ARRAY: u8 = 32;
    const STRING: u8 = 64;
    /// Any JSON; what is none is a string.
    const JSON: u8 = 128;

    /// The types that a schema allows; none where it does not say. `root` resolves references.
    pub(crate) fn of(schema: &Json<'_>, root: &Json<'_>) -> Self {
        let mut types = Self(0);
        types.add(schema, root, 0);
        types
    }

    /// A string, verbatim.
    pub(crate) fn string() -> Self {
        Self(Self::STRING)
    }

    /// Any JSON.
    pub(crate) fn json() -> Self {
        Self(Self::JSON)
    }

    /// The one of these types that a model names, such as `integer` or `array[string]`. Where the
    /// name is none of them these types stay, and where there are none it is the type.
    pub(crate) fn narrowed(self, name: &str) -> Self {
        let mut named = Self::default();
        named.add_name(name.split('[').next().unwrap_or_default().trim());
        match self.0 & named.0 {
            _ if self.0 == 0 => named,
            0 => self,
            both => Self(both),
        }
    }

    /// Whether lists are allowed, and objects are not.
    pub(crate) fn is_list(self) -> bool {
        self.has(Self::ARRAY) && !self.has(Self::OBJECT)
    }

    /// Whether objects are allowed, and lists are not.
    pub(crate) fn is_object(self) -> bool {
        self.has(Self::OBJECT) && !self.has(Self::ARRAY)
    }

    /// Whether something is known of the types, and no string is among them.
    pub(crate) fn forbids_strings(self) -> bool {
        self.0 != 0 && !self.has(Self::STRING)
    }

    /// Whether only strings are allowed, so that a value can be told as it comes.
    pub(crate) fn is_string(self) -> bool {
        self.0 == Self::STRING
    }

    fn add(&mut self, schema: &Json<'_>, root: &Json<'_>, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        match schema.get("type") {
            Some(Json::Str(name)) => self.add_name(name),
            Some(Json::Array(names)) => {
                names.iter().filter_map(Json::as_str).for_each(|name| self.add_name(name));
            }
            _ => {}
        }
        if let Some(Json::Str(reference)) = schema.get("$ref")
            && let Some(target) = resolve(reference, root)
        {
            self.add(target, root, depth + 1);
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(Json::Array(schemas)) = schema.get(key) {
                schemas.iter().for_each(|schema| self.add(schema, root, depth + 1));
            }
        }
        if let Some(Json::Array(values)) = schema.get("enum") {
            values.iter().for_each(|value| self.add_value(value));
        }
        if let Some(value) = schema.get("const") {
            self.add_value(value);
        }
    }

    /// Adds a type by its name, or by what models and people call it.
    fn add_name(&mut self, name: &str) {
        self.0 |= match name {
            "null" => Self::NULL,
            "integer" | "int" => Self::INTEGER,
            "number" | "float" | "double" => Self::NUMBER,
            "boolean" | "bool" => Self::BOOLEAN,
            "object" | "dict" | "map" => Self::OBJECT,
            "array" | "list" => Self::ARRAY,
            "string" | "str" | "text" => Self::STRING,
            _ => 0,
        };
    }

    fn add_value(&mut self, value: &Json<'_>) {
        self.0 |= match value {
            Json::Null => Self::NULL,
            Json::Bool(_) => Self::BOOLEAN,
            Json::Int(_) | Json::Uint(_) | Json::LongInteger(_) => Self::INTEGER,
            Json::Float(_) => Self::NUMBER,
            Json::Str(_) => Self::STRING,
            Json::Array(_) => Self::ARRAY,
            Json::Object(_) => Self::OBJECT,
        };
    }

    fn has(self, of: u8) -> bool {
        self.0 & of != 0
    }

    /// The text as JSON of the first type that it fits, as a string otherwise. Numbers, lists and
    /// objects keep their bytes.
    pub(crate) fn coerce(self, text: &str) -> String {
        let bare = text.trim();
        let parsed = || serde_json::from_str::<Value>(bare).ok();
        if self.has(Self::JSON) {
            return if parsed().is_some() { bare.to_owned() } else { quoted(text) };
        }
        if self.0 == 0 {
            // Nobody says what it is: JSON stays JSON, and a bare word is a word.
            return match parsed() {
                Some(Value::Null) | None => quoted(text),
                Some(_) => bare.to_owned(),
            };
        }
        if self.has(Self::NULL) && matches!(bare, "null" | "None") {
            return "null".into();
        }
        let number = || matches!(parsed(), Some(Value::Number(_)));
        let whole = || bare.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if self.has(Self::NUMBER) && number() || self.has(Self::INTEGER) && whole() && number() {
            return bare.to_owned();
        }
        if self.has(Self::BOOLEAN) {
            match bare {
                "true" | "True" => return "true".into(),
                "false" | "False" => return "false".into(),
                _ => {}
            }
        }
        let object = || matches!(parsed(), Some(Value::Object(_)));
        let array = || matches!(parsed(), Some(Value::Array(_)));
        if self.has(Self::OBJECT) && object() || self.has(Self::ARRAY) && array() {
            return bare.to_owned();
        }
        quoted(text)
    }
}

/// A schema, with the document that its references are resolved in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueSchema<'a> {
    pub(crate) schema: &'a Json<'static>,
    pub(crate) root: &'a Json<'static>,
}

impl<'a> ValueSchema<'a> {
    /// The types that the schema allows.
    pub(crate) fn types(self) -> ValueTypes {
        ValueTypes::of(self.schema, self.root)
    }

    /// The schema of a member of an object.
    pub(crate) fn property(self, name: &str) -> Option<Self> {
        self.find(&|schema| {
            let named = schema.get("properties").and_then(|all| all.get(name));
            named.or_else(|| schema.get("additionalProperties"))
        })
    }

    /// The schema of a list's items.
    pub(crate) fn items(self) -> Option<Self> {
        self.find(&|schema| schema.get("items"))
    }

    /// A property of a schema, or of one that it refers to or that is an alternative in it.
    fn find(self, own: &dyn Fn(&'a Json<'static>) -> Option<&'a Json<'static>>) -> Option<Self> {
        let found = find(self.schema, self.root, own, 0)?;
        Some(Self { schema: found, ..self })
    }
}

fn find<'a>(
    schema: &'a Json<'static>,
    root: &'a Json<'static>,
    own: &dyn Fn(&'a Json<'static>) -> Option<&'a Json<'static>>,
    depth: usize,
) -> Option<&'a Json<'static>> {
    if depth > DEPTH_MAX {
        return None;
    }
    let referred = || resolve(schema.get("$ref")?.as_str()?, root);
    let within = |schema| find(schema, root, own, depth + 1);
    own(schema).or_else(|| within(referred()?)).or_else(|| {
        ["anyOf", "oneOf", "allOf"].into_iter().find_map(|key| match schema.get(key) {
            Some(Json::Array(schemas)) => schemas.iter().find_map(within),
            _ => None,
        })
    })
}

/// The schema that a reference within the same document names.
fn resolve<'a, 'j>(reference: &str, root: &'a Json<'j>) -> Option<&'a Json<'j>> {
    let mut at = root;
    for step in reference.strip_prefix("#/")?.split('/') {
        at = at.get(&step.replace("~1", "/").replace("~0", "~"))?;
    }
    Some(at)
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A piece of a JSON string's inside.
pub(crate) fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: &str, text: &str, expected: &str) {
        let schema: Json<'_> = serde_json::from_str(schema).unwrap();
        assert_eq!(ValueTypes::of(&schema, &schema).coerce(text), expected, "{text}");
    }

    #[test]
    fn a_value_has_the_type_that_its_schema_allows() {
        check(r#"{"type":"integer"}"#, "12345678901234567890123", "12345678901234567890123");
        check(r#"{"type":"integer"}"#, "1.5", "\"1.5\"");
        check(r#"{"type":"number"}"#, "1e3", "1e3");
        check(r#"{"type":["string","null"]}"#, "null", "null");
        check(r#"{"type":"string"}"#, "null", "\"null\"");
        check(r#"{"type":"boolean"}"#, "True", "true");
        check(r#"{"anyOf":[{"type":"integer"},{"type":"string"}]}"#, "x\n", "\"x\\n\"");
        check(r##"{"$ref":"#/$defs/a","$defs":{"a":{"type":"array"}}}"##, "[1, 2]", "[1, 2]");
        check(r#"{"enum":[1,2]}"#, "1", "1");
        check("{}", "{\"a\": 1}", "{\"a\": 1}");
        check("{}", "word", "\"word\"");
        check("{}", "null", "\"null\"");
    }

    #[test]
    fn a_model_says_which_of_a_schema_s_types_a_value_has() {
        let types = |names: &str| {
            let schema: Json<'_> = serde_json::from_str(names).unwrap();
            ValueTypes::of(&schema, &schema)
        };
        let either = types(r#"{"type":["integer","string"]}"#);
        assert_eq!(either.narrowed("string").coerce("1"), "\"1\"");
        assert_eq!(either.narrowed("boolean").coerce("1"), "1");
        assert_eq!(ValueTypes::default().narrowed("array[string]").coerce("[1]"), "[1]");
        assert_eq!(ValueTypes::json().coerce("null"), "null");
        assert_eq!(ValueTypes::json().coerce("\"x\""), "\"x\"");
        assert_eq!(ValueTypes::json().coerce("x"), "\"x\"");
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        check(r##"{"$ref":"#"}"##, "1", "1");
    }
}
