//! From the input of a request to tokens.

use stator_api::openai::ApiError;
use stator_api::{Input, Prompt};
use stator_model::{Model, PromptError};
use std::sync::Arc;
use std::time::SystemTime;

/// The tokens of each prompt.
pub(super) fn tokens(model: &Model, input: &Input<'_>) -> Result<Vec<Arc<[u32]>>, ApiError> {
    match input {
        Input::Conversation(conversation) => {
            let ids = model.encode_chat(conversation, SystemTime::now());
            Ok(vec![ids.map_err(|error| refusal("messages", &error))?.into()])
        }
        Input::Prompts { prompts, add_special_tokens, .. } => {
            let encode = |prompt: &Prompt<'_>| match prompt {
                Prompt::Text(text) => {
                    let ids = model.encode_prompt(text, *add_special_tokens);
                    Ok(ids.map_err(|error| refusal("prompt", &error))?.into())
                }
                Prompt::Tokens(ids) => Ok(ids.as_slice().into()),
            };
            prompts.iter().map(encode).collect()
        }
    }
}

/// The client's error for an input that does not become tokens. `param` has the text.
fn refusal(param: &str, error: &PromptError) -> ApiError {
    let message = error.to_string();
    match error {
        PromptError::NoTemplate { .. } => ApiError::invalid("model", message),
        PromptError::Media { path, .. } => ApiError::unsupported(path, message),
        PromptError::Template(_) => ApiError::invalid("messages", message),
        PromptError::Effort { .. } => ApiError::invalid("reasoning_effort", message),
        PromptError::NothingToContinue => ApiError::impossible("continue_final_message", message),
        PromptError::LastMessageLeftOut => ApiError::invalid("continue_final_message", message),
        PromptError::TooLong { .. } => {
            ApiError::bad_request(message).with_code("context_length_exceeded").with_param(param)
        }
        PromptError::Tokenizer(_) => ApiError::invalid(param, message),
    }
}
