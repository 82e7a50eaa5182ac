//! Documents that a custom resource's schema allows, drawn from a seed.

use serde_json::{Map, Value, json};

/// Draws documents. The same seed gives the same ones.
#[derive(Clone, Debug)]
pub struct DocumentDraw {
    state: u64,
    /// Numbers in names, so that none comes twice.
    names: i64,
}

/// Share of optional fields that a document has, as one in so many: few, so that rules across
/// fields are seldom broken, and fewer in pods, which have hundreds.
const ONE_IN: [u64; 4] = [2, 3, 3, 8];

impl DocumentDraw {
    /// Documents of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, names: 0 }
    }

    /// A value that a schema allows, but for its rules across fields.
    ///
    /// # Panics
    ///
    /// When the schema has no type.
    pub fn value(&mut self, schema: &Value) -> Value {
        self.at(schema, 0)
    }

    fn at(&mut self, schema: &Value, depth: usize) -> Value {
        if let Some(choices) = schema["enum"].as_array() {
            return choices[self.below(choices.len() as u64) as usize].clone();
        }
        self.names += 1;
        if schema["x-kubernetes-int-or-string"] == true {
            return if self.below(2) == 0 {
                json!(self.names)
            } else {
                json!(format!("{}Gi", self.names))
            };
        }
        let (low, high) = (schema["minimum"].as_i64().unwrap_or(0), schema["maximum"].as_i64());
        match schema["type"].as_str() {
            Some("string") => self.text(schema),
            Some("integer") => json!((low + self.names % 1000).min(high.unwrap_or(i64::MAX))),
            Some("number") => json!(high.unwrap_or(3) as f64 / 2.0),
            Some("boolean") => json!(self.below(2) == 0),
            Some("array") => {
                (0..self.below(3)).map(|_| self.at(&schema["items"], depth + 1)).collect()
            }
            Some("object") => self.object(schema, depth),
            None if schema["x-kubernetes-preserve-unknown-fields"] == true => {
                json!({ "any": ["thing"] })
            }
            other => panic!("a schema of type {other:?}: {schema}"),
        }
    }

    fn text(&mut self, schema: &Value) -> Value {
        if schema["format"] == "date-time" {
            return json!("2026-01-02T03:04:05Z");
        }
        let pattern = schema["pattern"].as_str().unwrap_or_default();
        let number = self.names;
        json!(if pattern.starts_with("^(0|[1-9]") {
            format!("1.2.{number}")
        } else {
            format!("a{number}")
        })
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let mut object = Map::new();
        if schema["x-kubernetes-embedded-resource"] == true {
            return json!({ "apiVersion": "v1", "kind": "Any", "metadata": { "name": "a" } });
        }
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            object.insert("anything".to_owned(), json!([{ "at": "all" }]));
        }
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let one_in = ONE_IN[depth.min(ONE_IN.len() - 1)];
            if required.iter().any(|needed| needed == name) || self.below(one_in) == 0 {
                object.insert(name.clone(), self.at(property, depth + 1));
            }
        }
        if schema["additionalProperties"].is_object() {
            for _ in 0..self.below(3) {
                let value = self.at(&schema["additionalProperties"], depth + 1);
                object.insert(format!("k{}", self.names), value);
            }
        }
        object.into()
    }

    /// A number below `limit`. Source: Marsaglia, Xorshift RNGs, 2003.
    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit
    }
}

/// Whether `whole` has all that `part` has.
pub fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| holds(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len()
                && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
        }
        _ => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_documents_differ_and_come_again() {
        let schema = json!({
            "type": "object",
            "required": ["a"],
            "properties": { "a": { "type": "string" }, "b": { "type": "integer", "minimum": 2 } },
        });
        let all: Vec<_> = (0..20).map(|seed| DocumentDraw::new(seed).value(&schema)).collect();
        assert_eq!(all[3], DocumentDraw::new(3).value(&schema));
        assert!(all.iter().all(|one| one["a"].is_string()), "{all:?}");
        assert!(
            all.iter().any(|one| one.get("b").is_some())
                && all.iter().any(|one| one.get("b").is_none())
        );
    }

    #[test]
    fn a_whole_holds_its_parts() {
        let whole = json!({ "a": [{ "b": 1, "c": 2 }], "d": null });
        assert!(holds(&whole, &json!({ "a": [{ "b": 1 }] })));
        for other in [json!({ "e": 1 }), json!({ "a": [] }), json!({ "a": [{ "b": 2 }] })] {
            assert!(!holds(&whole, &other), "{other}");
        }
    }
}
