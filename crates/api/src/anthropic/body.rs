//! The JSON body of `POST /v1/messages` as it comes.

use crate::json::{Json, Text};
use crate::object::client_object;
use crate::openai::fields::OneOrMany;

client_object! {
    /// Every field of the Messages API that is known here, unchecked.
    ///
    /// Source: the Messages API of Anthropic's API reference, and the types of its Python client.
    pub struct MessagesBody<'a> {
        /// The model asked for.
        pub model: Option<Text<'a>>,
        /// Most tokens of the answer.
        pub max_tokens: Option<i64>,
        /// The conversation.
        pub messages: Option<Json<'a>>,
        /// Instructions: a text or text blocks.
        pub system: Option<Json<'a>>,
        /// Texts that end the answer.
        pub stop_sequences: Option<OneOrMany<'a>>,
        /// Whether the answer is an event stream.
        pub stream: Option<bool>,
        /// Sampling temperature, 0 to 1 at Anthropic and 0 to 2 here.
        pub temperature: Option<f64>,
        /// Nucleus sampling.
        pub top_p: Option<f64>,
        /// Most likely tokens to choose from.
        pub top_k: Option<i64>,
        /// Tools that the model may call.
        pub tools: Option<Json<'a>>,
        /// Tools that the model may or must call.
        pub tool_choice: Option<Json<'a>>,
        /// Whether the model thinks before it answers.
        pub thinking: Option<Json<'a>>,
        /// Effort and form of the answer.
        pub output_config: Option<Json<'a>>,
        /// Tier of service; there is one here.
        pub service_tier: Option<Text<'a>>,
        /// Speed of the answer; there is one here.
        pub speed: Option<Text<'a>>,
        /// Variables of the chat template; a field of open models.
        pub chat_template_kwargs: Option<Json<'a>>,
        /// Salt of the cached prefixes; a field of open models.
        pub cache_salt: Option<Text<'a>>,
        /// A wish that the prompt stays cached.
        pub cache_control: Option<Json<'a>>,
        /// Edits of the conversation before the model reads it.
        pub context_management: Option<Json<'a>>,
        /// Hints of NVIDIA Dynamo's clients.
        pub nvext: Option<crate::openai::body::Extensions<'a>>,
    }
}
