//! A request's prompt in the terms of scheduling: tokens and block hashes where there is a
//! tokenizer, blocks of text where there is none.

use stator_api::openai::{ApiError, chat};
use stator_api::responses::request::ResponsePlace;
use stator_api::{FieldNotes, GenerateRequest, responses};
use stator_body::{Api, Field, ParsedBody, unquote};
use stator_model::Model;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_protos::text::{BYTES_PER_TOKEN, estimated_tokens, text_hashes, text_seed};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::SystemTime;

/// Unit in which a prompt was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Measure {
    /// In tokens: by the model's tokenizer, or as the client sent them.
    Exact,
    /// In bytes: there is no tokenizer, or not for this API.
    Text,
    /// Not at all: there is no prompt, or nobody may read it.
    None,
}

/// A measured prompt, owned by its request.
#[derive(Debug)]
pub(crate) struct MeasuredPrompt {
    /// Unit of the measures below.
    pub measure: Measure,
    /// Token ids, if exact.
    pub token_ids: Option<Vec<u32>>,
    /// Tokens, exact or estimated.
    pub tokens: u32,
    /// Hashes of the complete blocks, of tokens or of text.
    pub sequence: Vec<SequenceHash>,
}

impl MeasuredPrompt {
    /// The measure of a request without a prompt.
    pub(crate) fn nothing() -> Self {
        Self { measure: Measure::None, token_ids: None, tokens: 0, sequence: Vec::new() }
    }

    /// Counts these media: in a prompt that was measured as text, their estimated tokens replace
    /// those of their bytes.
    pub(crate) fn with(self, media: MediaSize) -> Self {
        if self.measure != Measure::Text {
            return self;
        }
        let text = self.tokens.saturating_sub(estimated_tokens(media.bytes));
        let media = u32::try_from(media.tokens).unwrap_or(u32::MAX);
        Self { tokens: text.saturating_add(media), ..self }
    }
}

/// Size of the images and videos of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MediaSize {
    /// Bytes of their data or addresses in the body.
    pub bytes: usize,
    /// Tokens that they count for.
    pub tokens: u64,
}

/// The means by which a pool's prompts are measured.
pub(crate) struct PromptMeter {
    /// The model's tokenizer, where there is one.
    pub tokenizer: Option<Arc<Model>>,
    /// Tokens per KV block.
    pub block_size: u32,
}

impl PromptMeter {
    /// Measures the prompt of a parsed body. `adapter` is the LoRA adapter that is asked for, if it
    /// is one.
    ///
    /// A request that the tokenizer cannot express, or that its template refuses, is measured as
    /// text: whether it can be served is for the engine to say.
    pub(crate) fn measure(
        &self,
        parsed: &ParsedBody,
        body: &[u8],
        adapter: Option<&str>,
    ) -> MeasuredPrompt {
        let tokenizer = self.tokenizer.as_deref();
        let token_ids = parsed.token_ids(body).or_else(|| tokenize(tokenizer?, parsed, body));
        if let Some(ids) = token_ids {
            return self.of_tokens(parsed, ids, adapter);
        }
        // Strings and numbers are nearly all of a body.
        let block_bytes = self.block_size as usize * BYTES_PER_TOKEN;
        let mut sequence = Vec::with_capacity(body.len() / block_bytes);
        let salt = text_seed(adapter, parsed.cache_salt.as_deref());
        let bytes = text_hashes(parsed.prompt_bytes(body), self.block_size, salt, &mut sequence);
        let measure = if bytes == 0 { Measure::None } else { Measure::Text };
        MeasuredPrompt { measure, token_ids: None, tokens: estimated_tokens(bytes), sequence }
    }

    /// A prompt whose tokens are known.
    pub(crate) fn of_tokens(
        &self,
        parsed: &ParsedBody,
        ids: Vec<u32>,
        adapter: Option<&str>,
    ) -> MeasuredPrompt {
        let block_size = NonZeroU32::new(self.block_size).unwrap_or(NonZeroU32::MIN);
        let seed = HashSeed::new(adapter, parsed.cache_salt.as_deref());
        let mut sequence = Vec::new();
        sequence_hashes(&ids, block_size, seed, &mut sequence);
        let tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        MeasuredPrompt { measure: Measure::Exact, tokens, token_ids: Some(ids), sequence }
    }
}

/// The prompt's tokens; `None` where the tokenizer does not know how to make them.
fn tokenize(model: &Model, parsed: &ParsedBody, body: &[u8]) -> Option<Vec<u32>> {
    let (text, fields) = parsed.json(body)?;
    let tokens = match parsed.api {
        Some(Api::ChatCompletions) => {
            let request = chat::read(text).inspect_err(|error| unmeasured(error)).ok()?;
            model.encode_chat(request.input.conversation()?, SystemTime::now())
        }
        // A list of prompts is several requests to the engine, and measured as text.
        Some(Api::Completions) => {
            model.encode_prompt(&fields.raw(text, Field::Prompt).and_then(unquote)?, true)
        }
        Some(Api::Embeddings) => {
            model.encode_prompt(&fields.raw(text, Field::Input).and_then(unquote)?, true)
        }
        Some(api @ Api::Messages) => {
            let request = stator_api::read(api, text, &FieldNotes::lenient());
            let request = request.inspect_err(|error| unmeasured(error)).ok()?;
            model.encode_chat(request.input.conversation()?, SystemTime::now())
        }
        Some(Api::Responses) => {
            let request = response(text).inspect_err(|error| unmeasured(error)).ok()??;
            model.encode_chat(request.input.conversation()?, SystemTime::now())
        }
        _ => return None,
    };
    tokens.inspect_err(|error| unmeasured(error)).ok()
}

/// The request for a response; none where it continues one that only its server knows.
fn response(text: &[u8]) -> Result<Option<GenerateRequest<'_>>, ApiError> {
    let notes = FieldNotes::lenient();
    let body = responses::parse(text, &notes)?;
    if body.previous_response_id.is_some() {
        return Ok(None);
    }
    let place = ResponsePlace { id: "", keeps: true, seal: None };
    Ok(Some(responses::check(body, &[], place, &notes)?.request))
}

fn unmeasured(error: &dyn std::fmt::Display) {
    tracing::debug!(%error, "a prompt is measured as text");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_count_for_their_tokens_and_not_for_their_bytes() {
        let media = MediaSize { bytes: 3_600, tokens: 225 };
        let measured =
            |measure, tokens| MeasuredPrompt { measure, tokens, ..MeasuredPrompt::nothing() };
        assert_eq!(measured(Measure::Text, 1_000).with(media).tokens, 325);
        assert_eq!(measured(Measure::Text, 3).with(media).tokens, 225);
        assert_eq!(measured(Measure::Exact, 1_000).with(media).tokens, 1_000);
    }
}
