//! The messages of a chat, read from JSON.

use crate::conversation::{Content, Message, Role};
use crate::json::Text;
use crate::object::client_object;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

impl<'de: 'a, 'a> Deserialize<'de> for Message<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MessageVisitor)
    }
}

struct MessageVisitor;

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = Message<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Message<'de>, A::Error> {
        let (mut role, mut content, mut extra) = (None, Content::Null, Vec::new());
        while let Some(Text(key)) = members.next_key()? {
            match &*key {
                "role" => role = Some(members.next_value()?),
                "content" => content = members.next_value()?,
                _ => extra.push((key, members.next_value()?)),
            }
        }
        let role: Role = role.ok_or_else(|| A::Error::missing_field("role"))?;
        if content == Content::Null && role != Role::Assistant {
            return Err(A::Error::custom(format_args!(
                "content is required for role `{}`",
                role.as_str()
            )));
        }
        Ok(Message { role, content, extra })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of text parts")
    }

    fn visit_unit<E>(self) -> Result<Content<'de>, E> {
        Ok(Content::Null)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Content<'de>, E> {
        Ok(Content::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Content<'de>, E> {
        Ok(Content::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content<'de>, A::Error> {
        let mut parts = Vec::new();
        while let Some(Part(text)) = items.next_element()? {
            parts.push(text);
        }
        Ok(Content::Parts(parts))
    }
}

client_object! {
    /// A part of a message's content, as it comes.
    struct PartObject<'a> {
        r#type: Option<Text<'a>>,
        text: Option<Text<'a>>,
        refusal: Option<Text<'a>>,
    }
}

/// One part of a message's content.
struct Part<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = PartObject::deserialize(deserializer)?;
        let Some(Text(kind)) = raw.r#type else { return Err(D::Error::missing_field("type")) };
        match (&*kind, raw.text, raw.refusal) {
            ("text", Some(Text(text)), _) | ("refusal", _, Some(Text(text))) => Ok(Part(text)),
            ("text", None, _) => Err(D::Error::missing_field("text")),
            ("refusal", _, None) => Err(D::Error::missing_field("refusal")),
            (kind, ..) => Err(D::Error::custom(format_args!(
                "content parts of type `{kind:.40}` are not supported, only text"
            ))),
        }
    }
}
