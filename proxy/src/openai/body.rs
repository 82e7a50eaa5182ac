//! The JSON body of both completion routes as it comes, and what is wrong with one that does not
//! parse.

use super::error::ApiError;
use super::json::{Json, Text};
use super::message::Message;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Every field of `/v1/chat/completions` and `/v1/completions` that is known here, unchecked.
///
/// One struct serves both routes, because nearly all fields are common and flattening structs
/// would buffer the whole body. Fields that are in neither API are ignored, as the official
/// servers do; those that would change the answer and are not implemented are [`Meaning`]s.
#[derive(Debug, serde::Deserialize)]
#[allow(missing_docs, reason = "the fields are the API's own, described at the checked types")]
pub struct Body<'a> {
    #[serde(borrow)]
    pub model: Option<Text<'a>>,
    #[serde(borrow)]
    pub messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    pub prompt: Option<RawPrompt<'a>>,

    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: Option<i64>,
    pub n: Option<i64>,
    pub best_of: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub seed: Option<i64>,
    #[serde(borrow)]
    pub stop: Option<OneOrMany<'a>>,
    pub stop_token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    pub logit_bias: Option<Bias<'a>>,
    pub logprobs: Option<FlagOrCount>,
    pub top_logprobs: Option<i64>,
    pub ignore_eos: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub include_stop_str_in_output: Option<bool>,
    pub return_token_ids: Option<bool>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[serde(borrow)]
    pub cache_salt: Option<Text<'a>>,
    pub add_special_tokens: Option<bool>,
    pub echo: Option<bool>,

    #[serde(borrow)]
    pub tools: Option<Json<'a>>,
    #[serde(borrow)]
    pub tool_choice: Option<Json<'a>>,
    #[serde(borrow)]
    pub documents: Option<Json<'a>>,
    #[serde(borrow)]
    pub chat_template_kwargs: Option<Json<'a>>,
    #[serde(borrow)]
    pub reasoning_effort: Option<Text<'a>>,
    #[serde(borrow)]
    pub response_format: Option<Json<'a>>,
    #[serde(borrow)]
    pub modalities: Option<Vec<Text<'a>>>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,

    #[serde(default)]
    pub suffix: Meaning,
    #[serde(default)]
    pub audio: Meaning,
    #[serde(default)]
    pub chat_template: Meaning,
    #[serde(default)]
    pub functions: Meaning,
    #[serde(default)]
    pub function_call: Meaning,
    #[serde(default)]
    pub web_search_options: Meaning,
    #[serde(default)]
    pub guided_json: Meaning,
    #[serde(default)]
    pub guided_regex: Meaning,
    #[serde(default)]
    pub guided_choice: Meaning,
    #[serde(default)]
    pub guided_grammar: Meaning,
    #[serde(default)]
    pub structured_outputs: Meaning,
    #[serde(default)]
    pub prompt_logprobs: Meaning,
    #[serde(default)]
    pub prompt_embeds: Meaning,
    #[serde(default)]
    pub use_beam_search: Meaning,
    #[serde(default)]
    pub bad_words: Meaning,
    #[serde(default)]
    pub allowed_token_ids: Meaning,
    #[serde(default)]
    pub truncate_prompt_tokens: Meaning,
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
pub struct StreamOptions {
    /// Ends the stream with a chunk that has the usage.
    pub include_usage: Option<bool>,
    /// Puts the usage so far into every chunk.
    pub continuous_usage_stats: Option<bool>,
}

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

/// Whether a field that is not implemented asks for something: it is neither absent nor `null`,
/// `false`, zero or empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meaning(pub bool);

/// Parses a body.
///
/// # Errors
///
/// 400: with line and column for bytes that are not JSON, with the path of the field for a value
/// of the wrong type. The path is found in a second pass, so that it costs nothing otherwise.
pub fn parse(bytes: &[u8]) -> Result<Body<'_>, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| explain(bytes, &error))
}

fn explain(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    if !error.is_data() {
        return ApiError::invalid_json(format!("the body is not valid JSON: {error}"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, Body<'_>>(&mut deserializer) {
        Err(error) if error.path().iter().next().is_some() => {
            let path = error.path().to_string();
            let message = format!("invalid value at {path}: {}", error.inner());
            ApiError::bad_request(message).with_code("invalid_type").with_param(path)
        }
        _ => ApiError::bad_request(format!("the body is not a valid request: {error}")).with_code("invalid_type"),
    }
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
        let id = u32::try_from(id).map_err(|_| E::custom(format_args!("token id {id} is not below 2^32")))?;
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

impl<'de> Deserialize<'de> for Meaning {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MeaningVisitor;
        impl<'de> Visitor<'de> for MeaningVisitor {
            type Value = bool;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }

            fn visit_unit<E>(self) -> Result<bool, E> {
                Ok(false)
            }

            fn visit_bool<E>(self, flag: bool) -> Result<bool, E> {
                Ok(flag)
            }

            fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
                Ok(true)
            }

            fn visit_u64<E>(self, number: u64) -> Result<bool, E> {
                Ok(number != 0)
            }

            fn visit_f64<E>(self, number: f64) -> Result<bool, E> {
                Ok(number != 0.0)
            }

            fn visit_str<E>(self, text: &str) -> Result<bool, E> {
                Ok(!text.is_empty())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
                let mut any = false;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    any = true;
                }
                Ok(any)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
                let mut any = false;
                while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    any = true;
                }
                Ok(any)
            }
        }
        deserializer.deserialize_any(MeaningVisitor).map(Meaning)
    }
}
