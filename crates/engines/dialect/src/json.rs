//! Small pieces of JSON: a writer for request bodies and readers that allocate little.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use stator_protos::worker::LogitBias;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// Writes one JSON object, field by field, straight into bytes.
pub(crate) struct Object {
    bytes: Vec<u8>,
}

impl Object {
    /// An object with room for `tokens` token ids.
    pub(crate) fn with_room_for(tokens: usize) -> Self {
        let mut bytes = Vec::with_capacity(512 + tokens * 7);
        bytes.push(b'{');
        Self { bytes }
    }

    fn key(&mut self, name: &'static str) {
        if self.bytes.last() != Some(&b'{') {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    /// Writes a serialisable value: a string, a flag, a number.
    pub(crate) fn field(&mut self, name: &'static str, value: impl Serialize) {
        self.key(name);
        serde_json::to_writer(&mut self.bytes, &value).expect("plain values go into memory");
    }

    /// Writes the field where there is a value.
    pub(crate) fn optional(&mut self, name: &'static str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    /// Writes the field where the value is not the engine's default.
    pub(crate) fn unless<T: Serialize + PartialEq>(
        &mut self,
        name: &'static str,
        value: T,
        default: T,
    ) {
        if value != default {
            self.field(name, value);
        }
    }

    /// Writes token ids.
    pub(crate) fn ids(&mut self, name: &'static str, ids: &[u32]) {
        self.key(name);
        let mut digits = itoa::Buffer::new();
        self.bytes.push(b'[');
        for (place, id) in ids.iter().enumerate() {
            if place > 0 {
                self.bytes.push(b',');
            }
            self.bytes.extend_from_slice(digits.format(*id).as_bytes());
        }
        self.bytes.push(b']');
    }

    /// Writes an object of token ids and their biases.
    pub(crate) fn biases(&mut self, name: &'static str, biases: &[LogitBias]) {
        if biases.is_empty() {
            return;
        }
        self.key(name);
        let mut digits = itoa::Buffer::new();
        self.bytes.push(b'{');
        for (place, LogitBias { token_id, bias }) in biases.iter().enumerate() {
            self.bytes.extend_from_slice(if place > 0 { b",\"" } else { b"\"" });
            self.bytes.extend_from_slice(digits.format(*token_id).as_bytes());
            self.bytes.extend_from_slice(b"\":");
            serde_json::to_writer(&mut self.bytes, bias).expect("plain values go into memory");
        }
        self.bytes.push(b'}');
    }

    /// Writes JSON as it is.
    pub(crate) fn raw(&mut self, name: &'static str, json: &str) {
        self.key(name);
        self.bytes.extend_from_slice(json.as_bytes());
    }

    /// Writes an object that `fill` fills.
    pub(crate) fn object(&mut self, name: &'static str, fill: impl FnOnce(&mut Self)) {
        self.key(name);
        self.bytes.push(b'{');
        fill(self);
        self.bytes.push(b'}');
    }

    /// The object's bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'}');
        self.bytes
    }
}

/// Any serialisable value as raw JSON.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("plain values serialise")
}

/// The first element of an array, if there is one; the rest is skipped.
pub(crate) struct FirstElement<T>(pub(crate) Option<T>);

impl<T> Default for FirstElement<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FirstElement<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FirstVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstVisitor<T> {
            type Value = FirstElement<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FirstElement<T>, A::Error> {
                let first = seq.next_element()?;
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstElement(first))
            }

            fn visit_unit<E>(self) -> Result<FirstElement<T>, E> {
                Ok(FirstElement(None))
            }
        }

        deserializer.deserialize_any(FirstVisitor(PhantomData))
    }
}

/// An object's entries in their order, keys borrowed where they can be.
pub(crate) struct Entries<'a, V>(pub(crate) Vec<(Cow<'a, str>, V)>);

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Entries<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Entries<'de, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key_seed(Text)? {
                    entries.push((key, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

/// A string, borrowed where it has no escapes; inside an `Option`, serde alone would copy it.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
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
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn an_object_is_valid_json_with_its_fields_in_order() {
        let mut object = Object::with_room_for(3);
        object.ids("ids", &[1, 0, u32::MAX]);
        object.object("sampling", |sampling| {
            sampling.unless("top_p", 1.0, 1.0);
            sampling.unless("temperature", 0.7_f32, 1.0);
            sampling.optional("seed", None::<u64>);
            let bias = |token_id, bias| LogitBias { token_id, bias };
            sampling.biases("logit_bias", &[bias(5, -1.5), bias(6, 100.0)]);
        });
        object.object("none", |_| {});
        object.raw("raw", r#"{"a":[1]}"#);
        object.field("text", "a\"b\n");
        let bytes = object.finish();
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            r#"{"ids":[1,0,4294967295],"sampling":{"temperature":0.7,"logit_bias":{"5":-1.5,"6":100.0}},"none":{},"raw":{"a":[1]},"text":"a\"b\n"}"#,
        );
    }

    #[test]
    fn first_takes_one_element_and_skips_the_rest() {
        let first =
            |json: &str| serde_json::from_str::<FirstElement<u32>>(json).map(|first| first.0);
        assert_eq!(first("[]").unwrap(), None);
        assert_eq!(first("null").unwrap(), None);
        assert_eq!(first(r#"[7,{"a":[1]},"x"]"#).unwrap(), Some(7));
        assert!(first("{}").is_err());
    }

    #[test]
    fn entries_keep_their_order_and_unescape_keys() {
        let entries: Entries<'_, f32> = serde_json::from_str(r#"{"b":1,"\u0061":2.5}"#).unwrap();
        let entries: Vec<_> = entries.0.iter().map(|(k, v)| (k.as_ref(), *v)).collect();
        assert_eq!(entries, [("b", 1.0), ("a", 2.5)]);
    }

    proptest! {
        #[test]
        fn any_text_and_any_ids_survive(text: String, ids: Vec<u32>) {
            let mut object = Object::with_room_for(ids.len());
            object.field("text", &text);
            object.ids("ids", &ids);
            let read: Value = serde_json::from_slice(&object.finish()).unwrap();
            prop_assert_eq!(read, json!({ "text": text, "ids": ids }));
        }
    }
}
