//! A document as a tree of values that keeps what typed decoding loses: the order of keys, and
//! keys that are written twice.

use crate::findings::Findings;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use std::fmt;

/// A value of a YAML or JSON document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// Reads YAML, of which JSON is a part. The reader bounds a document's depth.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        stator_runtime::yaml::from_str(text)
    }

    /// Name of the value's type, with its article.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }

    /// The value as JSON, for plug-ins; keys written twice have been reported by then.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(value) => Value::Number(value.clone()),
            Self::Text(value) => Value::String(value.clone()),
            Self::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Self::Map(entries) => {
                let json = entries.iter().map(|(key, value)| (key.clone(), value.to_json()));
                Value::Object(json.collect())
            }
        }
    }

    /// Reports every key that stands twice in its mapping.
    pub(crate) fn report_duplicates(&self, path: &str, findings: &Findings) {
        match self {
            Self::List(items) => {
                for (position, item) in items.iter().enumerate() {
                    item.report_duplicates(&format!("{path}[{position}]"), findings);
                }
            }
            Self::Map(entries) => {
                for (position, (key, value)) in entries.iter().enumerate() {
                    let path = child(path, key);
                    if entries[..position].iter().any(|(earlier, _)| earlier == key) {
                        findings.fault(&path, "the key is there twice");
                    }
                    value.report_duplicates(&path, findings);
                }
            }
            _ => {}
        }
    }
}

/// The path of a key of the mapping at `path`.
pub(crate) fn child(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/');
    if key.is_empty() || !key.chars().all(plain) {
        return format!("{path}[{key:?}]");
    }
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    /// An empty document.
    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Tree::Number(number))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Tree, Tree>()? {
            let key = match key {
                Tree::Text(key) => key,
                Tree::Number(key) => key.to_string(),
                Tree::Bool(key) => key.to_string(),
                Tree::Null => "null".to_owned(),
                other => {
                    let message = format!("a key must be a text, not {}", other.kind());
                    return Err(de::Error::custom(message));
                }
            };
            map.push((key, value));
        }
        Ok(Tree::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let parsed = Tree::parse(text).map(|tree| tree.to_json().to_string());
        assert_eq!(parsed.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn yaml_and_json_are_read_alike() {
        check("{a: 1, b: [x, 2.5, null, true]}", Ok(r#"{"a":1,"b":["x",2.5,null,true]}"#));
        check(r#"{"a": 1, "b": ["x"]}"#, Ok(r#"{"a":1,"b":["x"]}"#));
        check("1: one\ntrue: yes", Ok(r#"{"1":"one","true":"yes"}"#));
        check("", Ok("null"));
    }

    #[test]
    fn what_no_json_could_say_is_refused() {
        check("a: .nan", Err("a: a number is not finite at line 1 column 4"));
        check("[1]: a", Err("a key must be a text, not a list"));
        check("a: b: c", Err("mapping values are not allowed in this context at line 1 column 5"));
    }

    #[test]
    fn keys_that_stand_twice_are_all_reported() {
        let findings = Findings::new(false);
        let tree = Tree::parse("a: 1\na: 2\nb: [{x y: 1, x y: 2}]").expect("it is YAML");
        tree.report_duplicates("", &findings);
        let refused = findings.finish().expect_err("two keys stand twice");
        assert_eq!(
            refused.to_string(),
            "a: the key is there twice\nb[0][\"x y\"]: the key is there twice"
        );
    }
}
