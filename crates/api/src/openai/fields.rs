//! Fields of a request that come in more than one shape.

use super::error::ApiError;
use crate::json::Text;
use crate::request::Prompt;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// `prompt` in its four shapes.
#[derive(Debug, PartialEq)]
pub enum RawPrompt<'a> {
    /// A text.
    Text(Text<'a>),
    /// Several texts; also the empty list.
    Texts(Vec<Text<'a>>),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

impl<'a> RawPrompt<'a> {
    /// The prompts of a field, at least one.
    ///
    /// # Errors
    ///
    /// 400 for an empty list.
    pub fn prompts(self, field: &str) -> Result<Vec<Prompt<'a>>, ApiError> {
        let prompts: Vec<_> = match self {
            Self::Text(text) => vec![Prompt::Text(text.0)],
            Self::Texts(texts) => texts.into_iter().map(|text| Prompt::Text(text.0)).collect(),
            Self::Tokens(ids) => vec![Prompt::Tokens(ids)],
            Self::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        };
        match prompts.is_empty() {
            true => Err(ApiError::invalid(field, format!("{field} must not be an empty list"))),
            false => Ok(prompts),
        }
    }
}

/// A string or a list of strings.
#[derive(Debug, PartialEq)]
pub struct OneOrMany<'a>(pub Vec<Text<'a>>);

/// `logit_bias`: token ids as strings, to biases.
#[derive(Debug, PartialEq)]
pub struct Bias<'a>(pub Vec<(Text<'a>, f64)>);

/// `logprobs`: a flag in chats, a number in completions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlagOrCount {
    /// Chats.
    Flag(bool),
    /// Completions.
    Count(i64),
}

/// Implements `Deserialize` by a visitor that accepts whatever it has a method for.
macro_rules! deserialize_any {
    ($type:ty, $visitor:ident) => {
        impl<'de: 'a, 'a> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($visitor)
            }
        }
    };
}

deserialize_any!(RawPrompt<'a>, PromptVisitor);
deserialize_any!(OneOrMany<'a>, OneOrManyVisitor);

struct PromptVisitor;

/// An element of a `prompt` list, which decides what the list is.
enum PromptItem<'a> {
    Text(Text<'a>),
    Token(u32),
    Tokens(Vec<u32>),
}

struct PromptItemVisitor;

deserialize_any!(PromptItem<'a>, PromptItemVisitor);

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id or a list of token ids")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(PromptItem::Text(Text(text.into())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(PromptItem::Text(Text(text.to_owned().into())))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Self::Value, E> {
        let id = u32::try_from(id)
            .map_err(|_| E::custom(format_args!("token id {id} is not below 2^32")))?;
        Ok(PromptItem::Token(id))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = items.next_element()? {
            ids.push(id);
        }
        Ok(PromptItem::Tokens(ids))
    }
}

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = RawPrompt<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of strings, a list of token ids or a list of such lists")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(RawPrompt::Text(Text(text.into())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(RawPrompt::Text(Text(text.to_owned().into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        // The first item says what the list is of; a list of several kinds fails at the next item.
        let mut prompt = match items.next_element()? {
            None => return Ok(RawPrompt::Texts(Vec::new())),
            Some(PromptItem::Text(text)) => RawPrompt::Texts(vec![text]),
            Some(PromptItem::Token(id)) => RawPrompt::Tokens(vec![id]),
            Some(PromptItem::Tokens(ids)) => RawPrompt::TokenLists(vec![ids]),
        };
        match &mut prompt {
            RawPrompt::Texts(texts) => {
                while let Some(text) = items.next_element()? {
                    texts.push(text);
                }
            }
            RawPrompt::Tokens(ids) => {
                while let Some(id) = items.next_element()? {
                    ids.push(id);
                }
            }
            RawPrompt::TokenLists(lists) => {
                while let Some(ids) = items.next_element()? {
                    lists.push(ids);
                }
            }
            RawPrompt::Text(_) => {}
        }
        Ok(prompt)
    }
}

struct OneOrManyVisitor;

impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(OneOrMany(vec![Text(text.into())]))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(OneOrMany(vec![Text(text.to_owned().into())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = items.next_element()? {
            texts.push(text);
        }
        Ok(OneOrMany(texts))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bias<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BiasVisitor;
        impl<'de> Visitor<'de> for BiasVisitor {
            type Value = Bias<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token ids to biases")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut bias = Vec::new();
                while let Some(entry) = members.next_entry()? {
                    bias.push(entry);
                }
                Ok(Bias(bias))
            }
        }
        deserializer.deserialize_map(BiasVisitor)
    }
}

impl<'de> Deserialize<'de> for FlagOrCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagOrCountVisitor;
        impl Visitor<'_> for FlagOrCountVisitor {
            type Value = FlagOrCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boolean or an integer")
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
                Ok(FlagOrCount::Flag(flag))
            }

            fn visit_i64<E>(self, count: i64) -> Result<Self::Value, E> {
                Ok(FlagOrCount::Count(count))
            }

            fn visit_u64<E>(self, count: u64) -> Result<Self::Value, E> {
                Ok(FlagOrCount::Count(i64::try_from(count).unwrap_or(i64::MAX)))
            }
        }
        deserializer.deserialize_any(FlagOrCountVisitor)
    }
}
