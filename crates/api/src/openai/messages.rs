//! The messages of a chat, read from JSON.

use super::nested::{self, MESSAGE, PART};
use crate::cache_control::{self, CACHE_CONTROL};
use crate::conversation::{Content, ContentPart, Message, Role};
use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::media;
use crate::object::{MemberWeight, NAME_MAX_BYTES, client_object};
use crate::openai::ApiError;
use crate::tree::JsonPath;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

const TOOL_CALLS: &str = "tool_calls";

/// The messages of a chat, and members of theirs that no template reads.
#[derive(Debug, Default)]
pub struct ChatMessages<'a> {
    /// The messages.
    pub(crate) messages: Vec<Message<'a>>,
    asides: Vec<Aside<'a>>,
}

/// A member of a message, or of a part of its content, that no template reads.
#[derive(Debug)]
struct Aside<'a> {
    message: usize,
    part: Option<usize>,
    member: AsideMember<'a>,
}

#[derive(Debug)]
enum AsideMember<'a> {
    CacheControl(Json<'a>),
    /// A member that no message and no part has here.
    Stranger(String, MemberWeight),
}

impl AsideMember<'_> {
    fn stranger(name: &str, weight: MemberWeight) -> Self {
        let cut = name.floor_char_boundary(NAME_MAX_BYTES);
        Self::Stranger(name[..cut].to_owned(), weight)
    }
}

impl<'a> From<Vec<Message<'a>>> for ChatMessages<'a> {
    fn from(messages: Vec<Message<'a>>) -> Self {
        Self { messages, asides: Vec::new() }
    }
}

impl ChatMessages<'_> {
    /// Notes wishes that the prompt stays cached, as Anthropic's API has them and gateways send them
    /// with chats, and settles members that nobody reads.
    ///
    /// # Errors
    ///
    /// 400 for a wish that is none, and for a member that would change the answer or that no API has.
    pub(crate) fn settle(&mut self, notes: &FieldNotes) -> Result<(), ApiError> {
        let path = JsonPath::Field(notes, "messages");
        for Aside { message, part, member } in &self.asides {
            let message = JsonPath::Item(&path, *message);
            let content = JsonPath::Member(&message, "content");
            let place = part.map_or(message, |part| JsonPath::Item(&content, part));
            match member {
                AsideMember::CacheControl(Json::Null) => {}
                AsideMember::CacheControl(wish) => {
                    let path = JsonPath::Member(&place, CACHE_CONTROL);
                    cache_control::read_member(wish.clone(), path)?;
                }
                AsideMember::Stranger(name, weight) => {
                    let object = if part.is_some() { &PART } else { &MESSAGE };
                    object.stranger(name, *weight, place)?;
                }
            }
        }
        for (at, message) in self.messages.iter_mut().enumerate() {
            let path = JsonPath::Item(&path, at);
            for (_, calls) in message.extra.iter_mut().filter(|(name, _)| name == TOOL_CALLS) {
                nested::settle_calls(calls, JsonPath::Member(&path, TOOL_CALLS))?;
            }
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ChatMessages<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ChatVisitor)
    }
}

struct ChatVisitor;

impl<'de> Visitor<'de> for ChatVisitor {
    type Value = ChatMessages<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ChatMessages<'de>, A::Error> {
        let ChatMessages { mut messages, mut asides } = ChatMessages::default();
        while let Some(message) = items
            .next_element_seed(MessageReader { message: messages.len(), asides: &mut asides })?
        {
            messages.push(message);
        }
        Ok(ChatMessages { messages, asides })
    }
}

/// Reads one message, whose place it knows.
struct MessageReader<'s, 'a> {
    message: usize,
    asides: &'s mut Vec<Aside<'a>>,
}

impl<'de> DeserializeSeed<'de> for MessageReader<'_, 'de> {
    type Value = Message<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Message<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageReader<'_, 'de> {
    type Value = Message<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Message<'de>, A::Error> {
        let Self { message, asides } = self;
        let (mut role, mut content, mut extra) = (None, Content::Null, Vec::new());
        let mut refusal: Option<Text<'de>> = None;
        while let Some(Text(key)) = members.next_key()? {
            match &*key {
                "role" => role = Some(members.next_value()?),
                "content" => {
                    content =
                        members.next_value_seed(ContentReader { message, asides: &mut *asides })?;
                }
                "refusal" => refusal = members.next_value()?,
                CACHE_CONTROL => {
                    let wish = AsideMember::CacheControl(members.next_value()?);
                    asides.push(Aside { message, part: None, member: wish });
                }
                known if MESSAGE.members.contains(&known) => {
                    extra.push((key, members.next_value()?));
                }
                _ => match members.next_value()? {
                    MemberWeight::Null => {}
                    weight => {
                        let member = AsideMember::stranger(&key, weight);
                        asides.push(Aside { message, part: None, member });
                    }
                },
            }
        }
        if let Some(Text(said)) = refusal.filter(|said| !said.0.is_empty()) {
            if content == Content::Null && role == Some(Role::Assistant) {
                content = Content::Text(said);
            } else {
                let member = AsideMember::stranger("refusal", MemberWeight::Full);
                asides.push(Aside { message, part: None, member });
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

/// Reads the content of one message.
struct ContentReader<'s, 'a> {
    message: usize,
    asides: &'s mut Vec<Aside<'a>>,
}

impl<'de> DeserializeSeed<'de> for ContentReader<'_, 'de> {
    type Value = Content<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ContentReader<'_, 'de> {
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
        let Self { message, asides } = self;
        let mut parts = Vec::new();
        while let Some(Part { mut content, members }) = items.next_element()? {
            let part = parts.len();
            let aside = |member| Aside { message, part: Some(part), member };
            asides.extend(members.into_iter().map(aside));
            if let ContentPart::Media(medium) = &mut content {
                medium.path = format!("messages[{message}].content[{part}]");
            }
            parts.push(content);
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
        cache_control: Option<Json<'a>>,
        image_url: Option<Json<'a>>,
        input_audio: Option<Json<'a>>,
        audio_url: Option<Json<'a>>,
        video_url: Option<Json<'a>>,
        file: Option<Json<'a>>,
    }
}

/// One part of a message's content.
struct Part<'a> {
    content: ContentPart<'a>,
    /// Members that no template reads.
    members: Vec<AsideMember<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = PartObject::deserialize(deserializer)?;
        let Some(Text(kind)) = raw.r#type else { return Err(D::Error::missing_field("type")) };
        let strangers = raw.strangers.iter().filter(|(_, weight)| *weight != MemberWeight::Null);
        let strangers = strangers.map(|(name, weight)| AsideMember::stranger(name, weight));
        let wish = raw.cache_control.map(AsideMember::CacheControl);
        let mut members: Vec<_> = wish.into_iter().chain(strangers).collect();
        let holders = [raw.image_url, raw.input_audio, raw.audio_url, raw.video_url, raw.file];
        let mut own = None;
        for ((name, _), holder) in media::CHAT_TYPES.into_iter().zip(holders) {
            match holder {
                holder if name == &*kind => own = holder,
                None | Some(Json::Null) => {}
                // A medium in a part of another type is none.
                Some(_) => members.push(AsideMember::stranger(name, MemberWeight::Full)),
            }
        }
        let content = match (&*kind, raw.text, raw.refusal) {
            ("text", Some(Text(text)), _) | ("refusal", _, Some(Text(text))) => text.into(),
            ("text", None, _) => return Err(D::Error::missing_field("text")),
            ("refusal", _, None) => return Err(D::Error::missing_field("refusal")),
            (kind, ..) => match media::of_chat(kind, own) {
                Some(medium) => ContentPart::Media(medium.map_err(D::Error::custom)?),
                None => {
                    return Err(D::Error::custom(format_args!(
                        "content parts of type `{kind:.40}` are not known"
                    )));
                }
            },
        };
        Ok(Part { content, members })
    }
}
