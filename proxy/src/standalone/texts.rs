//! Texts to tokens and back, for clients that ask.

use super::catalog::Catalog;
use super::encode::tokens;
use stator_api::FieldNotes;
use stator_api::openai::ApiError;
use stator_api::tokenize::{detokenized, read_detokenize, read_tokenize, tokenized};

/// Answers `/tokenize`.
///
/// # Errors
///
/// 4xx, with the field at fault.
pub(super) fn tokenize(
    body: &[u8],
    catalog: &Catalog,
    notes: &FieldNotes,
) -> Result<Vec<u8>, ApiError> {
    let request = read_tokenize(body, notes)?;
    let served = catalog.find_or_only(request.model.as_deref())?;
    let prompts = tokens(&served.model, &request.input)?;
    let ids: Vec<u32> = prompts.iter().flat_map(|prompt| prompt.iter().copied()).collect();
    let text = |id: &u32| String::from_utf8_lossy(&served.model.token_bytes(*id)).into_owned();
    let texts: Option<Vec<String>> = request.with_text.then(|| ids.iter().map(text).collect());
    Ok(tokenized(&ids, texts.as_deref(), served.pool.record().context_length))
}

/// Answers `/detokenize`.
///
/// # Errors
///
/// 4xx, with the field at fault.
pub(super) fn detokenize(
    body: &[u8],
    catalog: &Catalog,
    notes: &FieldNotes,
) -> Result<Vec<u8>, ApiError> {
    let request = read_detokenize(body, notes)?;
    let served = catalog.find_or_only(request.model.as_deref())?;
    let limit = served.pool.record().vocab_size;
    if let Some(at) = request.tokens.iter().position(|id| *id >= limit) {
        let message = format!("tokens[{at}] is {}, the vocabulary has {limit}", request.tokens[at]);
        return Err(ApiError::invalid("tokens", message));
    }
    let (mut detokenizer, mut text) = (served.model.detokenizer(false), String::new());
    detokenizer.push(&request.tokens, &mut text);
    detokenizer.finish(&mut text);
    Ok(detokenized(&text))
}
