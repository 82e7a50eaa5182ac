//! The forms of questions and answers, as vLLM has them.

use crate::prompt::Prompt;
use serde_json::{Value, json};

/// Tokens of an answer whose length nobody named.
const TOKENS_DEFAULT: u64 = 16;

/// An API of vLLM's.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// Token ids in and out.
    Tokens,
    Chat,
    Completion,
}

impl Form {
    /// The form that is served at a path.
    pub(crate) fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/inference/v1/generate" => Self::Tokens,
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completion,
            _ => return None,
        })
    }

    /// The prompt of a request.
    pub(crate) fn prompt(self, asked: &Value) -> Prompt {
        match self {
            Self::Tokens => Prompt::of_tokens(&asked["token_ids"]),
            Self::Chat => Prompt::of_text(&asked["messages"].to_string()),
            Self::Completion if asked["prompt"].is_array() => Prompt::of_tokens(&asked["prompt"]),
            Self::Completion => Prompt::of_text(asked["prompt"].as_str().unwrap_or_default()),
        }
    }

    /// The length of the answer.
    pub(crate) fn tokens(self, asked: &Value) -> u64 {
        let said = match self {
            Self::Tokens => &asked["sampling_params"]["max_tokens"],
            _ if asked["max_completion_tokens"].is_u64() => &asked["max_completion_tokens"],
            _ => &asked["max_tokens"],
        };
        said.as_u64().unwrap_or(TOKENS_DEFAULT)
    }

    /// An answer as a whole.
    pub(crate) fn whole(self, model: &str, tokens: &[u32]) -> Value {
        let text: String = tokens.iter().map(|token| word(*token)).collect();
        let mut choice = json!({ "index": 0, "finish_reason": "length" });
        match self {
            Self::Tokens => choice["token_ids"] = json!(tokens),
            Self::Chat => choice["message"] = json!({ "role": "assistant", "content": text }),
            Self::Completion => choice["text"] = json!(text),
        }
        self.framed(model, choice, "chat.completion")
    }

    /// A piece of an answer that is streamed.
    pub(crate) fn piece(self, model: &str, token: u32, last: bool) -> Value {
        let mut choice = json!({ "index": 0, "finish_reason": last.then_some("length") });
        match self {
            Self::Tokens => choice["token_ids"] = json!([token]),
            Self::Chat => choice["delta"] = json!({ "content": word(token) }),
            Self::Completion => choice["text"] = json!(word(token)),
        }
        self.framed(model, choice, "chat.completion.chunk")
    }

    fn framed(self, model: &str, choice: Value, of_chat: &str) -> Value {
        match self {
            Self::Tokens => json!({ "request_id": "generate-tokens-0", "choices": [choice] }),
            Self::Chat => json!({ "id": "chatcmpl-0", "object": of_chat, "created": 0,
                "model": model, "choices": [choice] }),
            Self::Completion => json!({ "id": "cmpl-0", "object": "text_completion", "created": 0,
                "model": model, "choices": [choice] }),
        }
    }
}

/// The text of a token.
fn word(token: u32) -> String {
    format!(" w{token}")
}
