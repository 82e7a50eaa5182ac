//! A request for text, whichever API it came by.

use crate::conversation::Conversation;
use crate::tools::ToolUse;
use stator_protos::sampling::OpenSampling;
use stator_protos::worker::Sampling;
use std::borrow::Cow;

/// A request for text within its API's limits; texts borrow from the body where they can.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest<'a> {
    /// The model asked for.
    pub model: Cow<'a, str>,
    /// The prompt or prompts.
    pub input: Input<'a>,
    /// The field that the prompts' tokens come from, in the words of error messages.
    pub prompt_field: &'static str,
    /// Name of what the request continues, in the client's words: requests of one name share
    /// prefixes.
    pub affinity: Option<Cow<'a, str>>,
    /// Tools that the answer may call; none for an answer that is text alone.
    pub tools: Option<ToolUse<'a>>,
    /// Sampling and shape of the answer.
    pub options: GenerateOptions,
}

/// The input of a request, still to become tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Input<'a> {
    /// A conversation, which the model's template makes one prompt of.
    Conversation(Conversation<'a>),
    /// Prompts, at least one; choice `i * n + j` is answer `j` to prompt `i`.
    Prompts {
        /// The prompts.
        prompts: Vec<Prompt<'a>>,
        /// Whether the tokenizer adds its special tokens to those of a text.
        add_special_tokens: bool,
        /// Repeats the prompt before each answer.
        echo: bool,
    },
}

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt<'a> {
    /// A text, still to be tokenized.
    Text(Cow<'a, str>),
    /// Token ids, at least one.
    Tokens(Vec<u32>),
}

/// Sampling and shape of the answer. A value of this type is within the API's limits.
///
/// The precedence of sampling parameters is: the request, then the model's `generation_config.json`,
/// then the API's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The parameters that the request may leave open. Without `max_tokens` the answer has what the
    /// context leaves.
    pub open: OpenSampling,
    /// All other parameters.
    pub sampling: Sampling,
    /// The field that asks for the form of the answer, in the words of the request.
    pub guide_field: Option<&'static str>,
    /// Makes the choice of tokens repeatable.
    pub seed: Option<u64>,
    /// Completions of each prompt, 1 to 128.
    pub n: u32,
    /// Texts that end the answer, none of them empty.
    pub stop: Vec<String>,
    /// Leaves special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Keeps the stop text at the end of the answer.
    pub include_stop_str_in_output: bool,
    /// Reports the model's thoughts; otherwise they are left out of the answer.
    pub include_reasoning: bool,
    /// Bounds the model's thoughts.
    pub thought_budget: Option<ThoughtBudget>,
    /// Keeps the prompt cached for a time.
    pub pin: Option<PromptPin>,
    /// Reports the token ids beside the text.
    pub return_token_ids: bool,
    /// Answers with an event stream.
    pub stream: bool,
    /// Ends the stream with the usage.
    pub include_usage: bool,
    /// Puts the usage so far into every chunk.
    pub continuous_usage_stats: bool,
    /// Requests with different salts share no cached prefix.
    pub cache_salt: Option<String>,
    /// NVIDIA Dynamo's `nvext.cache_salt`, with the same meaning; never empty.
    pub extension_salt: Option<String>,
}

/// A bound of a model's thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtBudget {
    /// Most tokens of thoughts.
    pub tokens: u32,
    /// The field that asks for it, in the words of the request.
    pub field: &'static str,
    /// Whether clients send a budget whatever the model is: one that cannot be held is no fault then.
    pub is_usual: bool,
}

/// A wish that a prompt stays cached for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptPin {
    /// The time in seconds, 1 to 86,400.
    pub seconds: u32,
    /// The field that asks for it, in the words of the request.
    pub field: &'static str,
    /// Whether clients ask for it whatever the server is: to do without is no fault then.
    pub is_usual: bool,
}

impl<'a> Input<'a> {
    /// One prompt whose tokens are known.
    pub fn tokens(ids: Vec<u32>) -> Self {
        Self::Prompts { prompts: vec![Prompt::Tokens(ids)], add_special_tokens: false, echo: false }
    }

    /// The conversation, if the input is one.
    pub fn conversation(&self) -> Option<&Conversation<'a>> {
        match self {
            Self::Conversation(conversation) => Some(conversation),
            Self::Prompts { .. } => None,
        }
    }
}
