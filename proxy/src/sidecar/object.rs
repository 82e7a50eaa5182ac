//! A JSON object as the bytes that came: where its members stand, and changes of single ones.
//! Every byte outside a change is passed on as it is: numbers above 2^53, the order of members and
//! the space between them survive.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// An object and where its members stand. Names may repeat.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    body: &'a [u8],
    members: Vec<Member<'a>>,
}

/// A member: its name, unescaped, and the place of its value.
#[derive(Debug)]
struct Member<'a> {
    name: Cow<'a, str>,
    value: Range<usize>,
}

/// Changes of an object's members; made by [`Object::edit`].
#[derive(Debug)]
pub(crate) struct Edit<'o, 'a> {
    object: &'o Object<'a>,
    set: Vec<(&'static str, Vec<u8>)>,
    removed: Vec<bool>,
}

/// A name with its escapes resolved.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Collects names and raw values.
struct Members;

impl<'a> Visitor<'a> for Members {
    type Value = Vec<(Cow<'a, str>, &'a RawValue)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut members = Vec::new();
        while let Some((Name(name), value)) = map.next_entry::<Name<'a>, &'a RawValue>()? {
            members.push((name, value));
        }
        Ok(members)
    }
}

impl<'a> Object<'a> {
    /// Checks that `body` is one JSON object and finds its members, without a copy.
    ///
    /// # Errors
    ///
    /// What is wrong, and where.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(body);
        let found = reader.deserialize_map(Members)?;
        reader.end()?;
        let place = |raw: &'a RawValue| {
            // The raw value is a part of the body, so that the difference is its offset.
            let start = raw.get().as_ptr().addr() - body.as_ptr().addr();
            start..start + raw.get().len()
        };
        let members = found.into_iter().map(|(name, raw)| Member { name, value: place(raw) });
        Ok(Self { body, members: members.collect() })
    }

    /// The raw value of a member, a string with its quotes. Of several with one name the last
    /// counts, as for the engines.
    pub(crate) fn get(&self, name: &str) -> Option<&'a [u8]> {
        let member = self.members.iter().rfind(|member| member.name == name)?;
        Some(&self.body[member.value.clone()])
    }

    /// Begins to change it.
    pub(crate) fn edit(&self) -> Edit<'_, 'a> {
        Edit { object: self, set: Vec::new(), removed: vec![false; self.members.len()] }
    }
}

impl Edit<'_, '_> {
    /// Gives a member this value, which has to be sound JSON, wherever its name stands; adds it at
    /// the end where it does not. What is set is not removed.
    pub(crate) fn set(mut self, name: &'static str, json: impl Into<Vec<u8>>) -> Self {
        self.set.retain(|(earlier, _)| *earlier != name);
        self.set.push((name, json.into()));
        self
    }

    /// Gives a member this value if it is there.
    pub(crate) fn replace(self, name: &'static str, json: &str) -> Self {
        match self.object.get(name) {
            Some(_) => self.set(name, json),
            None => self,
        }
    }

    /// Removes every member whose name is to go.
    pub(crate) fn remove(mut self, goes: impl Fn(&str) -> bool) -> Self {
        for (removed, member) in self.removed.iter_mut().zip(&self.object.members) {
            *removed |= goes(&member.name);
        }
        self
    }

    /// The changed body.
    pub(crate) fn finish(self) -> Vec<u8> {
        let Self { object: Object { body, members }, set, removed } = self;
        let new: usize = set.iter().map(|(name, json)| name.len() + json.len() + 4).sum();
        let mut out = Vec::with_capacity(body.len() + new);
        // Only space stands before the opening brace.
        let inside = body.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
        out.extend_from_slice(&body[..inside]);
        let (mut at, mut first) = (inside, true);
        for (member, removed) in members.iter().zip(removed) {
            // Between two values: the comma, the name and the colon of the second.
            let mut between = &body[at..member.value.start];
            at = member.value.end;
            let value = set.iter().find(|(name, _)| member.name == *name);
            if removed && value.is_none() {
                continue;
            }
            if first && between.trim_ascii_start().starts_with(b",") {
                let comma = between.iter().position(|byte| *byte == b',').map_or(0, |at| at + 1);
                between = &between[comma..];
            }
            first = false;
            out.extend_from_slice(between);
            out.extend_from_slice(value.map_or(&body[member.value.clone()], |(_, json)| json));
        }
        for (name, json) in set.iter().filter(|(name, _)| object_lacks(members, name)) {
            out.extend_from_slice(if first { b"\"" } else { b",\"" });
            first = false;
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            out.extend_from_slice(json);
        }
        out.extend_from_slice(&body[at..]);
        out
    }
}

fn object_lacks(members: &[Member<'_>], name: &str) -> bool {
    !members.iter().any(|member| member.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    fn check(body: &str, change: impl for<'o, 'a> Fn(Edit<'o, 'a>) -> Edit<'o, 'a>) -> String {
        let object = Object::parse(body.as_bytes()).expect("a sound object");
        String::from_utf8(change(object.edit()).finish()).expect("it stays text")
    }

    #[test]
    fn only_what_changes_changes() {
        let body = " {\"a\" : 12345678901234567890, \"b\":[1, 2] ,\"c\":1.0e5 }\n";
        assert_eq!(check(body, |edit| edit), body);
        let expected = " {\"a\" : 12345678901234567890, \"b\":7 ,\"c\":1.0e5,\"d\":true }\n";
        assert_eq!(check(body, |edit| edit.set("b", "7").set("d", "true")), expected);
        assert_eq!(check("{}", |edit| edit.set("d", "1").set("e", "2")), r#"{"d":1,"e":2}"#);
        assert_eq!(check("{ }", |edit| edit.replace("d", "1")), "{ }");
    }

    #[test]
    fn members_go_with_their_commas() {
        let body = r#"{ "a":1, "b":2 , "c":3 }"#;
        assert_eq!(check(body, |edit| edit.remove(|name| name == "a")), r#"{ "b":2 , "c":3 }"#);
        assert_eq!(check(body, |edit| edit.remove(|name| name == "b")), r#"{ "a":1 , "c":3 }"#);
        assert_eq!(check(body, |edit| edit.remove(|name| name == "c")), r#"{ "a":1, "b":2 }"#);
        assert_eq!(check(body, |edit| edit.remove(|_| true)), "{ }");
        assert_eq!(check(body, |edit| edit.remove(|_| true).set("d", "4")), "{\"d\":4 }");
    }

    #[test]
    fn repeated_and_escaped_names_are_found() {
        let body = r#"{"a":1,"\u0061":2,"b":3}"#;
        let object = Object::parse(body.as_bytes()).expect("a sound object");
        assert_eq!(object.get("a"), Some(&b"2"[..]));
        assert_eq!(check(body, |edit| edit.remove(|name| name == "a")), r#"{"b":3}"#);
        assert_eq!(check(body, |edit| edit.set("a", "0")), r#"{"a":0,"\u0061":0,"b":3}"#);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in ["", "[]", "1", "{", "{}x", "{\"a\":NaN}", "{\"a\"}", "\u{feff}{}", "{'a':1}"] {
            assert!(Object::parse(body.as_bytes()).is_err(), "{body}");
        }
        assert!(Object::parse(b"{\"a\":\"\xff\"}").is_err());
    }

    const NAMES: [&str; 4] = ["a", "max_tokens", "kv", "z"];

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..3).prop_map(Value::from),
                vec((".{0,3}", inner), 0..3)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn any_object() -> impl Strategy<Value = Map<String, Value>> {
        let name =
            prop_oneof![proptest::sample::select(&NAMES[..]).prop_map(String::from), ".{0,3}"];
        vec((name, any_json()), 0..6).prop_map(|members| members.into_iter().collect())
    }

    proptest! {
        /// Editing the bytes is what editing a tree is.
        #[test]
        fn agrees_with_a_tree(
            tree in any_object(),
            pretty in any::<bool>(),
            set in vec((proptest::sample::select(&NAMES[..]), any_json()), 0..3),
            gone in proptest::sample::select(&NAMES[..]),
        ) {
            let body = match pretty {
                true => serde_json::to_string_pretty(&tree),
                false => serde_json::to_string(&tree),
            };
            let body = body.expect("a tree can be written");
            let object = Object::parse(body.as_bytes()).expect("a sound object");
            let mut edit = object.edit().remove(|name| name == gone);
            let mut model = tree.clone();
            model.remove(gone);
            for (name, value) in &set {
                edit = edit.set(name, value.to_string());
                model.insert((*name).to_owned(), value.clone());
            }
            let edited: Value = serde_json::from_slice(&edit.finish()).expect("it stays sound");
            prop_assert_eq!(edited, Value::Object(model));
        }

        /// Whatever comes, it is answered and not a panic.
        #[test]
        fn takes_any_bytes(body in vec(any::<u8>(), 0..64)) {
            if let Ok(object) = Object::parse(&body) {
                prop_assert_eq!(object.edit().finish(), body);
            }
        }
    }
}
