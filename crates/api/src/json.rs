//! JSON that is passed on as it came: tools, tool calls, template arguments.

mod numbers;

pub(crate) use numbers::may_be_rounded;
pub use numbers::restore_numbers;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Text that borrows from the body where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

/// A JSON value in which objects keep the client's order, as chat templates print them.
#[derive(Clone, Debug, PartialEq)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A negative integer of 64 bits.
    Int(i64),
    /// A non-negative integer of 64 bits.
    Uint(u64),
    /// An integer beyond 64 bits: its digits, with a minus sign if it is negative.
    LongInteger(Cow<'a, str>),
    /// Any other number.
    Float(f64),
    /// A string.
    Str(Cow<'a, str>),
    /// A list.
    Array(Vec<Json<'a>>),
    /// An object, in order; of equal keys the last counts.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// The member of an object.
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        match self {
            Self::Object(members) => {
                members.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// The member of an object, to change it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Json<'a>> {
        match self {
            Self::Object(members) => {
                members.iter_mut().rev().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// Nesting depth of lists and objects, 0 for plain values.
    pub fn depth(&self) -> usize {
        match self {
            Self::Array(items) => 1 + items.iter().map(Json::depth).max().unwrap_or(0),
            Self::Object(members) => {
                1 + members.iter().map(|(_, value)| value.depth()).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Copies the value, so that it borrows nothing.
    pub fn into_owned(self) -> Json<'static> {
        match self {
            Self::Null => Json::Null,
            Self::Bool(flag) => Json::Bool(flag),
            Self::Int(number) => Json::Int(number),
            Self::Uint(number) => Json::Uint(number),
            Self::LongInteger(digits) => Json::LongInteger(Cow::Owned(digits.into_owned())),
            Self::Float(number) => Json::Float(number),
            Self::Str(text) => Json::Str(Cow::Owned(text.into_owned())),
            Self::Array(items) => Json::Array(items.into_iter().map(Json::into_owned).collect()),
            Self::Object(members) => {
                let owned = |(key, value): (Cow<'_, str>, Json<'_>)| {
                    (Cow::Owned(key.into_owned()), value.into_owned())
                };
                Json::Object(members.into_iter().map(owned).collect())
            }
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text))
            }
        }
        deserializer.deserialize_str(TextVisitor).map(Text)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Uint(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Json::Float(value))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Str(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Str(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json<'de>, A::Error> {
        let mut object = Vec::new();
        while let Some((Text(key), value)) = members.next_entry::<Text<'de>, Json<'de>>()? {
            object.push((key, value));
        }
        Ok(Json::Object(object))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Uint(value) => serializer.serialize_u64(*value),
            Self::LongInteger(digits) => {
                let digits = RawValue::from_string(digits.clone().into_owned());
                digits.map_err(S::Error::custom)?.serialize(serializer)
            }
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Str(text) => serializer.serialize_str(text),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Object(members) => {
                serializer.collect_map(members.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_keep_their_order_and_plain_text_is_borrowed() {
        let json: Json<'_> =
            serde_json::from_str(r#"{"z":1,"a":[-2,2.5,"x\n",null,true]}"#).unwrap();
        let Json::Object(members) = &json else { panic!("not an object: {json:?}") };
        assert_eq!(members.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["z", "a"]);
        assert!(matches!(members[0].0, Cow::Borrowed("z")));
        let expected = [
            Json::Int(-2),
            Json::Float(2.5),
            Json::Str("x\n".into()),
            Json::Null,
            Json::Bool(true),
        ];
        assert_eq!(json.get("a"), Some(&Json::Array(expected.to_vec())));
    }
}
