//! An answer on its way to a client, whichever API writes it.

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context length.
    Length,
    /// The model calls tools and waits for their results.
    ToolCalls,
    /// A filter withheld the rest of the answer.
    ContentFilter,
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Tokens generated for all choices.
    pub completion_tokens: u32,
    /// Tokens of thoughts, which are among the completion tokens; their marks are not.
    pub reasoning_tokens: u32,
    /// Tokens of the prompts whose KV was already there.
    pub cached_tokens: u32,
    /// Tokens of the prompts that stay cached for the time that the client wished.
    pub pinned_tokens: u32,
}

impl Usage {
    /// Tokens of the prompts that were computed, and stay cached for the time that the client wished.
    pub fn written_tokens(self) -> u32 {
        self.pinned_tokens.min(self.prompt_tokens).saturating_sub(self.cached_tokens)
    }
}

/// The identity of a response.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// Unique; the API puts its own prefix before it.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model, as the request named it.
    pub model: &'a str,
}

/// New output of one choice: all of it in a single body, a part of it in a stream.
///
/// A delta is in the order of its members: thoughts, text, calls. Output in another order, as text
/// behind a call, comes in several deltas of a stream; in a single body all text is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta<'a> {
    /// The choice, from 0.
    pub choice: u32,
    /// The text; may be empty.
    pub text: &'a str,
    /// The model's thoughts before its answer; may be empty. Completions have none.
    pub reasoning: &'a str,
    /// Calls of tools, in order. Completions have none.
    pub tool_calls: &'a [ToolCallDelta<'a>],
    /// The logprobs of the delta's tokens, where the request asked for them.
    pub logprobs: Option<&'a [TokenLogprob]>,
    /// The ids of the delta's tokens, where the request asked for them.
    pub token_ids: Option<&'a [u32]>,
    /// Set on a choice's last delta.
    pub finish: Option<FinishReason>,
    /// With `finish`: the stop string that ended the choice, if one did.
    pub stop_string: Option<&'a str>,
}

/// New output of one call of a tool: all of it in a single body, a part of it in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCallDelta<'a> {
    /// The call, from 0.
    pub index: u32,
    /// The call's identity, in the call's first delta.
    pub start: Option<ToolCallStart<'a>>,
    /// The arguments as text of JSON, or the input of a custom tool; may be empty.
    pub arguments: &'a str,
    /// Whether a custom tool is called.
    pub custom: bool,
}

/// The identity of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCallStart<'a> {
    /// The id under which the client reports the call's result.
    pub id: &'a str,
    /// The tool's name.
    pub name: &'a str,
}

/// A token, as text and bytes, and its logprob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenText {
    /// The token's text; replacement characters where its bytes are part of a character.
    pub token: String,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// One token of an answer (or of an echoed prompt) with its alternatives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub chosen: TokenText,
    /// False for the first token of a prompt, which nothing came before: written as `null`.
    pub known: bool,
    /// The most likely tokens, best first.
    pub top: Vec<TokenText>,
    /// Position of the token in the choice's text, in characters; for completions.
    pub text_offset: u32,
}
