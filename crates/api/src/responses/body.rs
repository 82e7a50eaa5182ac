//! The JSON body of `POST /v1/responses` as it comes.

use crate::cache_control::CacheOptions;
use crate::json::{Json, Text};
use crate::object::client_object;
use crate::openai::body::Extensions;
use crate::openai::fields::{Bias, OneOrMany};

client_object! {
    /// Every field of the Responses API that is read here, unchecked, and those of open models.
    ///
    /// Source: the parameters of `responses.create` in the Python client `openai` 3.52.0, and vLLM's of
    /// sampling and forms.
    #[allow(missing_docs, reason = "the fields are the API's own, described at the checked types")]
    pub struct ResponsesBody<'a> {
        pub model: Option<Text<'a>>,
        pub input: Option<Json<'a>>,
        pub instructions: Option<Text<'a>>,
        pub previous_response_id: Option<Text<'a>>,
        pub store: Option<bool>,
        pub background: Option<bool>,
        pub stream: Option<bool>,
        pub stream_options: Option<ResponseStreamOptions<'a>>,
        pub include: Option<Vec<Text<'a>>>,
        pub max_output_tokens: Option<i64>,
        pub max_tool_calls: Option<i64>,
        pub temperature: Option<f64>,
        pub top_p: Option<f64>,
        pub top_k: Option<i64>,
        pub presence_penalty: Option<f64>,
        pub frequency_penalty: Option<f64>,
        pub top_logprobs: Option<i64>,
        pub min_p: Option<f64>,
        pub repetition_penalty: Option<f64>,
        pub logit_bias: Option<Bias<'a>>,
        pub seed: Option<i64>,
        pub stop: Option<OneOrMany<'a>>,
        pub stop_token_ids: Option<Vec<u32>>,
        pub truncation: Option<Text<'a>>,
        pub parallel_tool_calls: Option<bool>,
        pub text: Option<Json<'a>>,
        pub reasoning: Option<Json<'a>>,
        pub tools: Option<Json<'a>>,
        pub tool_choice: Option<Json<'a>>,
        pub metadata: Option<Json<'a>>,
        pub service_tier: Option<Text<'a>>,
        pub user: Option<Text<'a>>,
        pub safety_identifier: Option<Text<'a>>,
        pub prompt_cache_key: Option<Text<'a>>,
        pub prompt_cache_options: Option<CacheOptions<'a>>,
        pub chat_template_kwargs: Option<Json<'a>>,
        pub cache_salt: Option<Text<'a>>,
        pub ignore_eos: Option<bool>,
        pub skip_special_tokens: Option<bool>,
        pub include_stop_str_in_output: Option<bool>,
        pub include_reasoning: Option<bool>,
        pub structured_outputs: Option<Json<'a>>,
        pub nvext: Option<Extensions<'a>>,
    }
}

client_object! {
    /// `stream_options` of a response.
    pub struct ResponseStreamOptions<'a> {
        /// Pads events; they are not padded here.
        pub include_obfuscation: Option<bool>,
    }
}
