//! A JSON object and changes of members by any name. [`crate::Editor`] changes the known fields of a
//! body that was scanned before; this one serves what is found by name only: engines' own fields,
//! and objects inside of bodies.

use crate::cursor::Cursor;
use crate::edit::{Change, Edits, reshape, write_member};
use crate::scan_error::{ScanError, ScanErrorKind};
use crate::span::{Member, Span};
use crate::strings::unquote;
use bytes::Bytes;
use std::borrow::Cow;

/// An object and the places of its members. Names may repeat.
#[derive(Debug)]
pub struct Object<'a> {
    body: &'a [u8],
    span: Span,
    members: Vec<Named<'a>>,
}

/// A member and its name with escapes resolved.
#[derive(Debug)]
struct Named<'a> {
    name: Cow<'a, str>,
    member: Member,
}

/// Changes of an object's members; made by [`Object::edit`].
#[derive(Debug)]
pub struct ObjectEdit<'o, 'a> {
    object: &'o Object<'a>,
    set: Vec<(&'static str, Bytes)>,
    /// A flag for each member.
    removed: Vec<bool>,
}

impl<'a> Object<'a> {
    /// Finds the members of an object.
    ///
    /// # Errors
    ///
    /// For bytes that [`crate::scan`] refuses too.
    pub fn parse(body: &'a [u8]) -> Result<Self, ScanError> {
        let mut cursor = Cursor::at(body, 0);
        cursor.space();
        if cursor.peek() != Some(b'{') {
            return Err(cursor.error(ScanErrorKind::NotAnObject));
        }
        let mut members = Vec::new();
        let span = cursor.object(1, |member| {
            let key = Span { start: member.key_start, end: member.key_end };
            // The cursor has checked the string, so that it can be read.
            members.extend(unquote(key.of(body)).map(|name| Named { name, member }));
        })?;
        cursor.space();
        match cursor.peek() {
            None => Ok(Self { body, span, members }),
            Some(_) => Err(cursor.error(ScanErrorKind::TrailingBytes)),
        }
    }

    /// The raw value of a member, a string with its quotes. Of several with one name the last
    /// counts, as for engines.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let found = self.members.iter().rfind(|named| named.name == name)?;
        Some(found.member.value.of(self.body))
    }

    /// Begins to change the object.
    pub fn edit(&self) -> ObjectEdit<'_, 'a> {
        ObjectEdit { object: self, set: Vec::new(), removed: vec![false; self.members.len()] }
    }
}

impl ObjectEdit<'_, '_> {
    /// Gives a member the value `json`, which has to be sound JSON, wherever its name stands; adds
    /// the member at the end where there is none. A member that is set is not removed.
    pub fn set(mut self, name: &'static str, json: impl Into<Bytes>) -> Self {
        self.set.retain(|(earlier, _)| *earlier != name);
        self.set.push((name, json.into()));
        self
    }

    /// Gives a member this value if it is there.
    pub fn replace(self, name: &'static str, json: &'static str) -> Self {
        match self.object.get(name) {
            Some(_) => self.set(name, json),
            None => self,
        }
    }

    /// Removes every member whose name `goes` picks.
    pub fn remove(mut self, goes: impl Fn(&str) -> bool) -> Self {
        for (removed, named) in self.removed.iter_mut().zip(&self.object.members) {
            *removed |= goes(&named.name);
        }
        self
    }

    /// The changed object with all that stands around it.
    pub fn finish(self) -> Vec<u8> {
        let Self { object: Object { body, span, members }, set, removed } = self;
        let (mut changes, mut gone, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for (Named { name, member }, removed) in members.iter().zip(removed) {
            match set.iter().find(|(wanted, _)| name == wanted) {
                Some((_, with)) => {
                    changes.push(Change { span: member.value, with: with.clone() });
                }
                None if removed => gone.push(*member),
                None => {}
            }
        }
        for (name, json) in &set {
            if !members.iter().any(|named| named.name == *name) {
                write_member(name, json, &mut added);
            }
        }
        changes.extend(reshape(body, *span, &mut gone, added));
        changes.sort_by_key(|change| (change.span.start, change.span.end));
        Edits { changes }.apply(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    fn check(
        body: &str,
        change: impl for<'o, 'a> Fn(ObjectEdit<'o, 'a>) -> ObjectEdit<'o, 'a>,
    ) -> String {
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
        assert_eq!(check(body, |edit| edit.remove(|name| name == "b")), r#"{ "a":1, "c":3 }"#);
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
        for body in [
            "",
            "[]",
            "1",
            "{",
            "{}x",
            "{\"a\":NaN}",
            "{\"a\":1e999}",
            "{\"a\"}",
            "\u{feff}{}",
            "{'a':1}",
        ] {
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
