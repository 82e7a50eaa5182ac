//! The body of `POST /v1/completions`.

use super::body::{self, Body, TOKEN_DATA};
use super::error::ApiError;
use super::fields::{FlagOrCount, RawPrompt};
use super::options::{self, CHOICES_MAX, integer};
use crate::field_notes::FieldNotes;
use crate::request::{GenerateRequest, Input, Prompt};
use stator_body::Api;

/// Most alternatives per token; chats allow more, as in the official API.
pub const LOGPROBS_MAX: i64 = 5;
/// The official API's answer length where the request gives none.
pub const DEFAULT_MAX_TOKENS: u32 = 16;

/// Reads and checks a body; fields that no API has change nothing.
///
/// # Errors
///
/// 400 for what is not JSON, of the wrong type, out of range or not supported; 422 for fields that
/// exclude each other, such as more choices than one request may have.
pub fn read(bytes: &[u8]) -> Result<GenerateRequest<'_>, ApiError> {
    read_noting(bytes, &FieldNotes::lenient())
}

/// Reads and checks a body, with notes on the fields that nobody reads.
///
/// # Errors
///
/// As [`read`], and 400 for fields that the notes refuse.
pub fn read_noting<'a>(
    bytes: &'a [u8],
    notes: &FieldNotes,
) -> Result<GenerateRequest<'a>, ApiError> {
    let mut body = body::parse(bytes)?;
    body.settle(Api::Completions, notes)?;
    refuse_fields_of_chats(&body)?;
    if body.messages.is_some() {
        let message = "completions take a prompt; messages belongs to /v1/chat/completions";
        return Err(ApiError::unsupported("messages", message));
    }
    let mut options = options::check(&body, logprobs(&body)?)?;
    let min_tokens = options.sampling.min_tokens;
    // OpenAI's default for completions; a chat without a limit goes on to the end of the context.
    options.open.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS.max(min_tokens));
    let model = options::model(&mut body)?.0;
    let mut prompts = prompts(body.prompt.take().ok_or_else(|| ApiError::missing("prompt"))?)?;
    let choices = prompts.len() as u64 * u64::from(options.n);
    if choices > CHOICES_MAX.cast_unsigned() {
        let message = format!(
            "{} prompts with n = {} make {choices} choices, the limit is {CHOICES_MAX}",
            prompts.len(),
            options.n
        );
        return Err(ApiError::impossible("n", message));
    }
    let token_data = body.take_token_data();
    if token_data.is_some() && prompts.len() > 1 {
        let message =
            format!("{TOKEN_DATA} is one prompt, but prompt is a list of {}", prompts.len());
        return Err(ApiError::impossible(TOKEN_DATA, message));
    }
    let prompt_field = if token_data.is_some() { TOKEN_DATA } else { "prompt" };
    if let Some(ids) = token_data {
        prompts = vec![Prompt::Tokens(ids)];
    }
    let add_special_tokens = body.add_special_tokens.unwrap_or(true);
    let echo = body.echo.unwrap_or(false);
    let input = Input::Prompts { prompts, add_special_tokens, echo };
    let affinity = body.prompt_cache_key.take().map(|key| key.0);
    Ok(GenerateRequest { model, input, prompt_field, affinity, tools: None, options })
}

/// Refuses fields that say something about a conversation, or about calls of tools.
fn refuse_fields_of_chats(body: &Body<'_>) -> Result<(), ApiError> {
    let extensions = body.nvext.as_ref();
    let bounds_thoughts = extensions.is_some_and(|it| it.max_thinking_tokens.is_some());
    let fields = [
        ("tools", body.tools.is_some()),
        ("tool_choice", body.tool_choice.is_some()),
        ("parallel_tool_calls", body.parallel_tool_calls.is_some()),
        ("documents", body.documents.is_some()),
        ("chat_template_kwargs", body.chat_template_kwargs.is_some()),
        ("reasoning_effort", body.reasoning_effort.is_some()),
        ("thinking", body.thinking.is_some()),
        ("thinking_token_budget", body.thinking_token_budget.is_some()),
        ("thinking_budget", body.thinking_budget.is_some()),
        ("nvext.max_thinking_tokens", bounds_thoughts),
        ("add_generation_prompt", body.add_generation_prompt.is_some()),
        ("continue_final_message", body.continue_final_message.is_some()),
    ];
    match fields.iter().find(|(_, is_there)| *is_there) {
        None => Ok(()),
        Some((field, _)) => {
            let message = format!("{field} belongs to /v1/chat/completions");
            Err(ApiError::unsupported(field, message))
        }
    }
}

fn logprobs(body: &Body<'_>) -> Result<Option<u32>, ApiError> {
    if body.top_logprobs.is_some() {
        let message =
            "top_logprobs belongs to /v1/chat/completions; completions take a number in logprobs";
        return Err(ApiError::unsupported("top_logprobs", message));
    }
    match body.logprobs {
        None | Some(FlagOrCount::Flag(false)) => Ok(None),
        Some(FlagOrCount::Flag(true)) => Err(ApiError::invalid(
            "logprobs",
            "logprobs is true, in completions it must be an integer",
        )),
        Some(FlagOrCount::Count(count)) => integer("logprobs", Some(count), 0..=LOGPROBS_MAX),
    }
}

fn prompts(raw: RawPrompt<'_>) -> Result<Vec<Prompt<'_>>, ApiError> {
    let prompts = raw.prompts("prompt")?;
    match prompts.iter().position(|prompt| matches!(prompt, Prompt::Tokens(ids) if ids.is_empty()))
    {
        Some(at) => Err(ApiError::invalid("prompt", format!("prompt[{at}] has no tokens"))),
        None => Ok(prompts),
    }
}

#[cfg(test)]
#[path = "completion_tests.rs"]
mod tests;
