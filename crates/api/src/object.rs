//! Objects of clients: structs that are read from JSON objects alone, and that note every member
//! they do not know.

use crate::json::{Json, Text};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Most unknown members that are noted of one object; a refusal names the first.
const STRANGERS_MAX: usize = 16;
/// Longest name that is noted, in bytes; a longer one is cut.
pub(crate) const NAME_MAX_BYTES: usize = 64;

/// Weight of a member that is not read: whether it asks for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberWeight {
    /// `null`.
    Null,
    /// `false`, zero, or empty.
    Empty,
    /// Anything else.
    Full,
}

/// Members of an object that its struct does not read, in the client's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strangers<'a>(Vec<(Cow<'a, str>, MemberWeight)>);

impl<'a> Strangers<'a> {
    /// Notes a member.
    pub(crate) fn note(&mut self, name: Cow<'a, str>, weight: MemberWeight) {
        if self.0.len() >= STRANGERS_MAX {
            return;
        }
        let cut = name.floor_char_boundary(NAME_MAX_BYTES);
        let name = if cut == name.len() { name } else { name[..cut].to_owned().into() };
        self.0.push((name, weight));
    }

    /// The members' names and weights.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, MemberWeight)> {
        self.0.iter().map(|(name, weight)| (&**name, *weight))
    }
}

/// Declares a struct of optional fields that is read from a JSON object, and from nothing else. Of
/// equal members the last counts; members of other names are [`Strangers`]. `FIELDS` names its
/// fields as they are written.
macro_rules! client_object {
    ($(#[$about:meta])* $seen:vis struct $name:ident<$life:lifetime> {
        $($(#[$what:meta])* $open:vis $field:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        $seen struct $name<$life> {
            $($(#[$what])* $open $field: $type,)*
            /// Members of other names.
            #[allow(dead_code, reason = "not every object has rules for others")]
            $seen strangers: $crate::object::Strangers<$life>,
        }

        impl $name<'_> {
            /// Names of the fields.
            #[allow(dead_code, reason = "not every object has rules for others")]
            $seen const FIELDS: &'static [&'static str] = &[$($crate::object::wire_name!($field)),*];
        }

        impl<'de: $life, $life> serde::de::Deserialize<'de> for $name<$life> {
            fn deserialize<D: serde::de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct ObjectVisitor;
                impl<'de> serde::de::Visitor<'de> for ObjectVisitor {
                    type Value = $name<'de>;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut members: A,
                    ) -> Result<Self::Value, A::Error> {
                        let mut object = $name::default();
                        while let Some($crate::json::Text(name)) = members.next_key()? {
                            match &*name {
                                $($crate::object::wire_name!($field) => object.$field = members.next_value()?,)*
                                _ => object.strangers.note(name, members.next_value()?),
                            }
                        }
                        Ok(object)
                    }
                }
                from.deserialize_map(ObjectVisitor)
            }
        }
    };
}
pub(crate) use client_object;

/// Name of a field as clients write it.
macro_rules! wire_name {
    (r#type) => {
        "type"
    };
    ($field:ident) => {
        stringify!($field)
    };
}
pub(crate) use wire_name;

impl Json<'_> {
    /// Whether the value asks for something.
    pub(crate) fn weight(&self) -> MemberWeight {
        let is_empty = match self {
            Self::Null => return MemberWeight::Null,
            Self::Bool(flag) => !flag,
            Self::Int(number) => *number == 0,
            Self::Uint(number) => *number == 0,
            Self::LongInteger(_) => false,
            Self::Float(number) => *number == 0.0,
            Self::Str(text) => text.is_empty(),
            Self::Array(items) => items.is_empty(),
            Self::Object(members) => members.is_empty(),
        };
        if is_empty { MemberWeight::Empty } else { MemberWeight::Full }
    }
}

impl<'de> Deserialize<'de> for MemberWeight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WeightVisitor)
    }
}

/// Weighs a value without keeping it: it may be large.
struct WeightVisitor;

fn full(is_full: bool) -> MemberWeight {
    if is_full { MemberWeight::Full } else { MemberWeight::Empty }
}

impl<'de> Visitor<'de> for WeightVisitor {
    type Value = MemberWeight;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<MemberWeight, E> {
        Ok(MemberWeight::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<MemberWeight, E> {
        Ok(full(flag))
    }

    fn visit_i64<E>(self, _: i64) -> Result<MemberWeight, E> {
        Ok(MemberWeight::Full)
    }

    fn visit_u64<E>(self, number: u64) -> Result<MemberWeight, E> {
        Ok(full(number != 0))
    }

    fn visit_f64<E>(self, number: f64) -> Result<MemberWeight, E> {
        Ok(full(number != 0.0))
    }

    fn visit_str<E>(self, text: &str) -> Result<MemberWeight, E> {
        Ok(full(!text.is_empty()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MemberWeight, A::Error> {
        let mut any = false;
        while items.next_element::<IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(full(any))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<MemberWeight, A::Error> {
        let mut any = false;
        while members.next_entry::<Text<'de>, IgnoredAny>()?.is_some() {
            any = true;
        }
        Ok(full(any))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    client_object! {
        /// An object of the tests.
        struct Example<'a> {
            /// A text.
            name: Option<Text<'a>>,
            /// A number.
            size: Option<i64>,
        }
    }

    #[test]
    fn an_object_notes_the_members_that_it_does_not_know() {
        let json = r#"{"a":null,"name":"x","b":0,"name":"y","c":{"d":1},"size":null}"#;
        let read: Example<'_> = serde_json::from_str(json).expect("an object");
        assert_eq!(read.name, Some(Text("y".into())), "of equal names the last counts");
        assert_eq!(read.size, None);
        let strangers: Vec<_> = read.strangers.iter().collect();
        let (null, empty, full) = (MemberWeight::Null, MemberWeight::Empty, MemberWeight::Full);
        assert_eq!(strangers, [("a", null), ("b", empty), ("c", full)]);
        assert_eq!(Example::FIELDS, ["name", "size"]);
        serde_json::from_str::<Example<'_>>(r#"["y",1]"#).expect_err("a list is no object");
    }

    #[test]
    fn strangers_are_bounded() {
        let long = "é".repeat(100);
        let members: Vec<_> = (0..99).map(|n| format!(r#""{n}{long}":1"#)).collect();
        let json = format!("{{{}}}", members.join(","));
        let read: Example<'_> = serde_json::from_str(&json).expect("an object");
        assert_eq!(read.strangers.iter().count(), STRANGERS_MAX);
        assert!(read.strangers.iter().all(|(name, _)| name.len() <= NAME_MAX_BYTES));
    }

    #[test]
    fn a_value_weighs_the_same_read_or_not() {
        let values = [
            "null",
            "false",
            "true",
            "0",
            "-1",
            "1",
            "0.0",
            "-0.5",
            "\"\"",
            "\"a\"",
            "[]",
            "[0]",
            "{}",
            "{\"a\":null}",
        ];
        for text in values {
            let json: Json<'_> = serde_json::from_str(text).expect(text);
            let weight: MemberWeight = serde_json::from_str(text).expect(text);
            assert_eq!(json.weight(), weight, "{text}");
        }
    }
}
