//! Patterns of objects, as the golden files of Dynamo's operator have them: `$glob:` and `$pattern:`
//! match texts, `$var:` binds one, `$ignore` skips, `$strict: false` allows further fields, and
//! `$notexists` forbids one. A text of `$ignore` skips too.

use serde_json::Value;
use std::collections::BTreeMap;

/// Texts that patterns have bound.
pub type Bindings = BTreeMap<String, String>;

/// Compares an object with a pattern.
///
/// # Errors
///
/// The first path where they differ, and how.
pub fn matches(pattern: &Value, found: &Value, bound: &mut Bindings) -> Result<(), String> {
    at("", pattern, found, bound)
}

fn at(path: &str, pattern: &Value, found: &Value, bound: &mut Bindings) -> Result<(), String> {
    match (pattern, found) {
        (Value::Object(fields), _) if fields.get("$ignore") == Some(&Value::Bool(true)) => Ok(()),
        (Value::Object(fields), Value::Object(there)) => {
            let is_strict = fields.get("$strict") != Some(&Value::Bool(false));
            let fields: Vec<_> = fields.iter().filter(|(name, _)| *name != "$strict").collect();
            let further = there.keys().find(|name| !fields.iter().any(|(known, _)| known == name));
            if let Some(further) = further.filter(|_| is_strict) {
                return Err(format!("{path}.{further} is not expected"));
            }
            for (name, pattern) in fields {
                at(
                    &format!("{path}.{name}"),
                    pattern,
                    there.get(name).unwrap_or(&Value::Null),
                    bound,
                )?;
            }
            Ok(())
        }
        (Value::Array(patterns), Value::Array(items)) if patterns.len() == items.len() => {
            let mut pairs = patterns.iter().zip(items).enumerate();
            pairs.try_for_each(|(number, (pattern, item))| {
                at(&format!("{path}[{number}]"), pattern, item, bound)
            })
        }
        (Value::String(pattern), _) => text(path, pattern, found, bound),
        _ if pattern == found => Ok(()),
        _ => Err(format!("{path} is {found}, not {pattern}")),
    }
}

fn text(path: &str, pattern: &str, found: &Value, bound: &mut Bindings) -> Result<(), String> {
    let is = found.as_str();
    let fits = match pattern.split_once(':') {
        Some(("$glob", glob)) => is.is_some_and(|is| fits(glob, is)),
        // Of regular expressions the files have these two.
        Some(("$pattern", regex)) => {
            is.is_some_and(|is| fits(&regex.replace(".*", "*").replace("\\.", "."), is))
        }
        Some(("$var", name)) => is
            .is_some_and(|is| *bound.entry(name.to_owned()).or_insert_with(|| is.to_owned()) == is),
        _ if pattern == "$ignore" => true,
        _ if pattern == "$notexists" => found.is_null(),
        _ => is == Some(pattern),
    };
    if fits { Ok(()) } else { Err(format!("{path} is {found}, not {pattern:?}")) }
}

/// Whether a text fits a pattern in which `*` stands for anything.
fn fits(glob: &str, text: &str) -> bool {
    match glob.split_once('*') {
        None => glob == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            (0..=text.len()).filter_map(|at| text.get(at..)).any(|text| fits(rest, text))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(pattern: Value, found: Value) -> Result<(), String> {
        matches(&pattern, &found, &mut Bindings::new())
    }

    #[test]
    fn patterns_match_what_they_say() {
        let pattern = json!({
            "a": "$glob:x-*-z", "b": "$var:v", "c": { "d": "$var:v" }, "e": { "$ignore": true },
            "f": { "$strict": false, "g": 1 }, "h": "$notexists", "i": "$pattern:1\\.4\\..*",
        });
        let mut found = json!({
            "a": "x-y-z", "b": "1", "c": { "d": "1" }, "e": 3, "f": { "g": 1, "more": 2 }, "i": "1.4.2",
        });
        assert_eq!(check(pattern.clone(), found.clone()), Ok(()));
        found["c"]["d"] = json!("2");
        assert_eq!(check(pattern, found), Err(".c.d is \"2\", not \"$var:v\"".to_owned()));
    }

    #[test]
    fn whatever_is_more_or_less_is_told() {
        assert!(check(json!({ "a": 1 }), json!({ "a": 1, "b": 2 })).is_err());
        assert!(check(json!({ "a": 1 }), json!({})).is_err());
        assert!(check(json!([1]), json!([1, 2])).is_err());
        assert!(check(json!({ "a": "$notexists" }), json!({ "a": 1 })).is_err());
        assert!(check(json!("$glob:a*b"), json!("acd")).is_err());
    }
}
