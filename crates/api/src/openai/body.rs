//! The JSON body of both completion routes as it comes, and what is wrong with one that does not
//! parse.

use super::error::ApiError;
use super::fields::{Bias, FlagOrCount, OneOrMany, RawPrompt};
use super::messages::ChatMessages;
use super::nested;
use crate::cache_control::{self, CACHE_CONTROL, CacheOptions};
use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::object::client_object;
use crate::tree::JsonPath;
use crate::wording;
use serde::de::Deserialize;
use stator_body::Api;
use stator_protos::sampling::Number;

/// Path of the tokens that replace a request's prompt, in the words of error messages.
pub const TOKEN_DATA: &str = "nvext.token_data";
/// Path of NVIDIA Dynamo's cache salt in a request, in the words of error messages.
pub const EXTENSION_SALT: &str = "nvext.cache_salt";
/// Path of an agent's wish for its next turn, in the words of error messages.
const SPECULATIVE_PREFILL: &str = "nvext.agent_hints.speculative_prefill";

client_object! {
    /// Every field of `/v1/chat/completions` and `/v1/completions` that is read here, unchecked.
    ///
    /// One struct serves both routes, because nearly all fields are common. Fields that are not
    /// here are settled by [`crate::field_rules`].
    #[allow(missing_docs, reason = "the fields are the API's own, described at the checked types")]
    pub struct Body<'a> {
        pub model: Option<Text<'a>>,
        pub messages: Option<ChatMessages<'a>>,
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
        pub stop: Option<OneOrMany<'a>>,
        pub stop_token_ids: Option<Vec<u32>>,
        pub logit_bias: Option<Bias<'a>>,
        pub logprobs: Option<FlagOrCount>,
        pub top_logprobs: Option<i64>,
        pub ignore_eos: Option<bool>,
        pub skip_special_tokens: Option<bool>,
        pub include_stop_str_in_output: Option<bool>,
        pub return_token_ids: Option<bool>,
        pub stream: Option<bool>,
        pub stream_options: Option<StreamOptions<'a>>,
        pub cache_salt: Option<Text<'a>>,
        pub add_special_tokens: Option<bool>,
        pub echo: Option<bool>,

        pub tools: Option<Json<'a>>,
        pub tool_choice: Option<Json<'a>>,
        pub parallel_tool_calls: Option<bool>,
        pub include_reasoning: Option<bool>,
        pub documents: Option<Json<'a>>,
        pub chat_template_kwargs: Option<Json<'a>>,
        pub reasoning_effort: Option<Text<'a>>,
        pub thinking: Option<Json<'a>>,
        pub thinking_token_budget: Option<i64>,
        pub thinking_budget: Option<i64>,
        pub response_format: Option<Json<'a>>,
        pub structured_outputs: Option<Json<'a>>,
        pub guided_json: Option<Json<'a>>,
        pub guided_regex: Option<Json<'a>>,
        pub guided_choice: Option<Json<'a>>,
        pub guided_grammar: Option<Json<'a>>,
        pub json_schema: Option<Json<'a>>,
        pub regex: Option<Json<'a>>,
        pub ebnf: Option<Json<'a>>,
        pub structural_tag: Option<Json<'a>>,
        pub modalities: Option<Vec<Text<'a>>>,
        pub add_generation_prompt: Option<bool>,
        pub continue_final_message: Option<bool>,
        pub nvext: Option<Extensions<'a>>,
        pub service_tier: Option<Text<'a>>,
        pub prompt_cache_key: Option<Text<'a>>,
        pub prompt_cache_options: Option<CacheOptions<'a>>,
        pub cache_control: Option<Json<'a>>,
    }
}

client_object! {
    /// `stream_options`.
    pub struct StreamOptions<'a> {
        /// Ends the stream with a chunk that has the usage.
        pub include_usage: Option<bool>,
        /// Puts the usage so far into every chunk.
        pub continuous_usage_stats: Option<bool>,
    }
}

client_object! {
    /// `nvext`, as far as it is read here; a router in front of us adds it to a client's request.
    ///
    /// Source: NVIDIA Dynamo's request extensions.
    pub struct Extensions<'a> {
        /// Tokens of the prompt, which need not be computed again.
        pub token_data: Option<Vec<u32>>,
        /// A cache salt beside the request's own.
        pub cache_salt: Option<Text<'a>>,
        /// Most tokens of thoughts.
        pub max_thinking_tokens: Option<i64>,
        /// Hints of an agent about its request; [`crate::steering`] obeys them.
        pub agent_hints: Option<AgentHints<'a>>,
        /// A wish that the prompt stays cached.
        pub cache_control: Option<Json<'a>>,
    }
}

client_object! {
    /// `nvext.agent_hints`.
    pub struct AgentHints<'a> {
        /// Larger is sooner.
        pub priority: Option<i64>,
        /// Larger is sooner, before any other priority; zero says nothing.
        pub strict_priority: Option<i64>,
        /// Tokens that the answer is expected to have.
        pub osl: Option<i64>,
        /// Has the next turn of the conversation computed before it is asked for.
        pub speculative_prefill: Option<bool>,
    }
}

impl Extensions<'_> {
    /// Settles the members that nobody reads, and notes the wish that the prompt stays cached.
    ///
    /// # Errors
    ///
    /// 400 for the first that would change the answer, or that no API has, and for a wish that is none.
    pub(crate) fn settle(&self, api: Api, notes: &FieldNotes) -> Result<(), ApiError> {
        notes.settle(api, "nvext.", &self.strangers, Self::FIELDS)?;
        if let Some(wish) = self.cache_control.clone().filter(|wish| *wish != Json::Null) {
            cache_control::read_extension(wish, notes)?;
        }
        match &self.agent_hints {
            Some(hints) => hints.settle(api, notes),
            None => Ok(()),
        }
    }
}

impl AgentHints<'_> {
    /// Settles the members that nobody reads.
    ///
    /// # Errors
    ///
    /// As [`Extensions::settle`].
    pub(crate) fn settle(&self, api: Api, notes: &FieldNotes) -> Result<(), ApiError> {
        notes.settle(api, "nvext.agent_hints.", &self.strangers, Self::FIELDS)?;
        let has_turns =
            [Api::ChatCompletions, Api::Responses, Api::Messages, Api::CountTokens].contains(&api);
        if self.speculative_prefill == Some(true) && !has_turns {
            let message =
                format!("{SPECULATIVE_PREFILL}: only chats, responses and messages have turns");
            return Err(ApiError::unsupported(SPECULATIVE_PREFILL, message));
        }
        Ok(())
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

    /// Settles the fields that nobody reads.
    ///
    /// # Errors
    ///
    /// 400 for the first that would change the answer, or that no API has.
    pub(crate) fn settle(&mut self, api: Api, notes: &FieldNotes) -> Result<(), ApiError> {
        notes.settle(api, "", &self.strangers, Self::FIELDS)?;
        nested::settle(self, notes)?;
        if let Some(options) = &self.stream_options {
            notes.settle(api, "stream_options.", &options.strangers, StreamOptions::FIELDS)?;
        }
        if let Some(extensions) = &self.nvext {
            extensions.settle(api, notes)?;
        }
        if let Some(options) = &self.prompt_cache_options {
            options.settle(api, notes)?;
        }
        if let Some(wish) = self.cache_control.clone().filter(|wish| *wish != Json::Null) {
            cache_control::read_member(wish, JsonPath::Field(notes, CACHE_CONTROL))?;
        }
        if let Some(messages) = &mut self.messages {
            messages.settle(notes)?;
        }
        match self.service_tier.as_ref().map(|tier| &*tier.0) {
            None => Ok(()),
            // There is one tier here, and a client that lets the server choose gets it.
            Some("auto" | "default") => {
                notes.ignore("service_tier");
                Ok(())
            }
            Some(tier) => {
                let message = format!("service_tier {tier:?} is not supported, only \"auto\" is");
                Err(ApiError::unsupported("service_tier", message))
            }
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
/// 400: with line and column for bytes that are not JSON, with the path of the field for a value of
/// the wrong type.
pub fn parse(bytes: &[u8]) -> Result<Body<'_>, ApiError> {
    parse_as(bytes)
}

/// Parses the body of any API.
///
/// # Errors
///
/// 400: with line and column for bytes that are not JSON, with the path of the field for a value
/// of the wrong type. The path is found in a second pass, so that it costs nothing otherwise.
pub(crate) fn parse_as<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

fn explain<'a, T: Deserialize<'a>>(bytes: &'a [u8], error: &serde_json::Error) -> ApiError {
    if !error.is_data() {
        return ApiError::invalid_json(format!("the body is not valid JSON: {error}"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(error) if error.path().iter().next().is_some() => {
            let path = error.path().to_string();
            let message = wording::fault(&path, &error.inner().to_string());
            ApiError::bad_request(message).with_code("invalid_type").with_param(path)
        }
        _ => {
            ApiError::bad_request(wording::fault("", &error.to_string())).with_code("invalid_type")
        }
    }
}
