//! The JSON body of both completion routes as it comes, and what is wrong with one that does not
//! parse.

use super::error::ApiError;
use super::fields::{Bias, FlagOrCount, Meaning, OneOrMany, RawPrompt};
use crate::conversation::Message;
use crate::json::{Json, Text};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use stator_protos::sampling::Number;
use std::fmt;

/// Path of the tokens that replace a request's prompt, in the words of error messages.
pub const TOKEN_DATA: &str = "nvext.token_data";
/// Path of NVIDIA Dynamo's cache salt in a request, in the words of error messages.
pub const EXTENSION_SALT: &str = "nvext.cache_salt";

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
    pub parallel_tool_calls: Option<bool>,
    pub include_reasoning: Option<bool>,
    #[serde(borrow)]
    pub documents: Option<Json<'a>>,
    #[serde(borrow)]
    pub chat_template_kwargs: Option<Json<'a>>,
    #[serde(borrow)]
    pub reasoning_effort: Option<Text<'a>>,
    #[serde(borrow)]
    pub response_format: Option<Json<'a>>,
    #[serde(borrow)]
    pub structured_outputs: Option<Json<'a>>,
    #[serde(borrow)]
    pub guided_json: Option<Json<'a>>,
    #[serde(borrow)]
    pub guided_regex: Option<Json<'a>>,
    #[serde(borrow)]
    pub guided_choice: Option<Json<'a>>,
    #[serde(borrow)]
    pub guided_grammar: Option<Json<'a>>,
    #[serde(borrow)]
    pub json_schema: Option<Json<'a>>,
    #[serde(borrow)]
    pub regex: Option<Json<'a>>,
    #[serde(borrow)]
    pub ebnf: Option<Json<'a>>,
    #[serde(borrow)]
    pub structural_tag: Option<Json<'a>>,
    #[serde(borrow)]
    pub modalities: Option<Vec<Text<'a>>>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    #[serde(borrow)]
    pub nvext: Option<Extensions<'a>>,

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

/// `nvext`, as far as it is known here; a router in front of us adds it to a client's request.
///
/// Source: NVIDIA Dynamo's request extensions.
#[derive(Clone, Debug, Default)]
pub struct Extensions<'a> {
    /// Tokens of the prompt, which need not be computed again.
    pub token_data: Option<Vec<u32>>,
    /// A cache salt beside the request's own.
    pub cache_salt: Option<Text<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Extensions<'a> {
    /// By hand, because a derived one would take a list for an object.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ExtensionsVisitor;
        impl<'de> Visitor<'de> for ExtensionsVisitor {
            type Value = Extensions<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut extensions = Extensions::default();
                while let Some(Text(name)) = members.next_key()? {
                    match &*name {
                        "token_data" => extensions.token_data = members.next_value()?,
                        "cache_salt" => extensions.cache_salt = members.next_value()?,
                        _ => drop(members.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(extensions)
            }
        }
        deserializer.deserialize_map(ExtensionsVisitor)
    }
}

impl Body<'_> {
    /// The value of a sampling parameter that is a plain number.
    pub(crate) fn number(&self, number: Number) -> Option<f64> {
        match number {
            Number::Temperature => self.temperature,
            Number::TopP => self.top_p,
            Number::MinP => self.min_p,
            Number::RepetitionPenalty => self.repetition_penalty,
            Number::PresencePenalty => self.presence_penalty,
            Number::FrequencyPenalty => self.frequency_penalty,
        }
    }

    /// Takes the tokens that came with the prompt; an empty list is as none.
    pub(crate) fn take_token_data(&mut self) -> Option<Vec<u32>> {
        self.nvext.take()?.token_data.filter(|ids| !ids.is_empty())
    }
}

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
        _ => ApiError::bad_request(format!("the body is not a valid request: {error}"))
            .with_code("invalid_type"),
    }
}
