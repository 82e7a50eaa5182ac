//! Why a prompt cannot be made of a request.

/// The reason why an input does not become tokens, for the client who sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The model takes prompts and no conversations.
    #[error("the model {model:?} has no chat template; use /v1/completions")]
    NoTemplate {
        /// The model.
        model: String,
    },
    /// The template refuses the conversation or fails on it.
    #[error("{0}")]
    Template(String),
    /// A part of the conversation is no text.
    #[error(
        "{path} is a part of type {part_type:?}, which is not supported here: the model reads text alone"
    )]
    Media {
        /// The part's place in the request.
        path: String,
        /// The part's type, in the words of its API.
        part_type: &'static str,
    },
    /// The last message has no text that an answer could continue.
    #[error("continue_final_message needs a last message with text")]
    NothingToContinue,
    /// The template leaves out the message that the answer should continue.
    #[error(
        "continue_final_message: the chat template leaves out the last message or a part of it"
    )]
    LastMessageLeftOut,
    /// The model knows no such level of effort.
    #[error("reasoning_effort is {effort:?}, the model knows {known}")]
    Effort {
        /// The level.
        effort: String,
        /// The levels that it knows.
        known: String,
    },
    /// The text cannot fit the model's context, whatever its tokens are.
    #[error(
        "the model's context is {context} tokens; the prompt has {bytes} bytes, which are at least \
         {fewest_tokens} tokens"
    )]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Fewest tokens that the text can have.
        fewest_tokens: usize,
        /// The model's context, in tokens.
        context: usize,
    },
    /// The tokenizer cannot express the text.
    #[error("the text cannot be tokenized: {0}")]
    Tokenizer(String),
}
