//! A request's prompt in the terms of scheduling: tokens and block hashes where there is a
//! tokenizer, blocks of text where there is none.

use crate::pool::Pool;
use stator_epp_body::{Api, Field, ParsedBody, unquote};
use stator_model::Model;
use stator_model::openai::ChatRequest;
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use std::num::NonZeroU32;
use std::time::SystemTime;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text that count as one token where there is no tokenizer.
///
/// Source: the `estimate` of the llm-d router's `token-producer`.
const BYTES_PER_TOKEN: usize = 4;

/// How a prompt was measured.
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
pub(crate) struct Measured {
    /// How.
    pub measure: Measure,
    /// Token ids, if exact.
    pub token_ids: Option<Vec<u32>>,
    /// Tokens, exact or estimated.
    pub tokens: u32,
    /// Hashes of the complete blocks, of tokens or of text.
    pub sequence: Vec<SequenceHash>,
}

impl Measured {
    /// The measure of a request without a prompt.
    pub(crate) fn nothing() -> Self {
        Self { measure: Measure::None, token_ids: None, tokens: 0, sequence: Vec::new() }
    }
}

/// Measures the prompt of a parsed body for a pool. `adapter` is the LoRA adapter that is asked
/// for, if it is one.
///
/// A request that the tokenizer cannot express, or that its template refuses, is measured as
/// text: whether it can be served is for the engine to say.
pub(crate) fn measure(
    pool: &Pool,
    parsed: &ParsedBody,
    body: &[u8],
    adapter: Option<&str>,
) -> Measured {
    let token_ids = parsed.token_ids(body).or_else(|| tokenize(&*pool.tokenizer()?, parsed, body));
    if let Some(ids) = token_ids {
        return measured(pool, parsed, ids, adapter);
    }
    // Strings and numbers are nearly all of a body.
    let mut sequence =
        Vec::with_capacity(body.len() / (pool.block_size() as usize * BYTES_PER_TOKEN));
    let salt = text_seed(adapter, parsed.cache_salt.as_deref());
    let bytes_per_block = pool.block_size() as usize * BYTES_PER_TOKEN;
    let bytes = text_blocks(parsed.prompt_bytes(body), bytes_per_block, salt, &mut sequence);
    let tokens = u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX);
    let measure = if bytes == 0 { Measure::None } else { Measure::Text };
    Measured { measure, token_ids: None, tokens, sequence }
}

/// A prompt whose tokens are known.
pub(crate) fn measured(
    pool: &Pool,
    parsed: &ParsedBody,
    ids: Vec<u32>,
    adapter: Option<&str>,
) -> Measured {
    let block_size = NonZeroU32::new(pool.block_size()).unwrap_or(NonZeroU32::MIN);
    let seed = HashSeed::new(adapter, parsed.cache_salt.as_deref());
    let mut sequence = Vec::new();
    sequence_hashes(&ids, block_size, seed, &mut sequence);
    let tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    Measured { measure: Measure::Exact, tokens, token_ids: Some(ids), sequence }
}

/// The prompt's tokens; `None` where the tokenizer does not know how to make them.
fn tokenize(model: &Model, parsed: &ParsedBody, body: &[u8]) -> Option<Vec<u32>> {
    let (text, fields) = parsed.json(body)?;
    let tokens = match parsed.api {
        Api::ChatCompletions => ChatRequest::parse(text)
            .and_then(|request| model.encode_chat(&request, SystemTime::now())),
        // A list of prompts is several requests to the engine, and measured as text.
        Api::Completions => {
            model.encode_prompt(&fields.raw(text, Field::Prompt).and_then(unquote)?, None)
        }
        _ => return None,
    };
    tokens.inspect_err(|error| tracing::debug!(%error, "a prompt is measured as text")).ok()
}

fn text_seed(adapter: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let seed = xxh3_64_with_seed(adapter.unwrap_or_default().as_bytes(), 1);
    xxh3_64_with_seed(cache_salt.unwrap_or_default().as_bytes(), seed)
}

/// Appends the chained hashes of the complete blocks of `pieces`, taken as one text; returns how
/// many bytes there are.
fn text_blocks<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    bytes_per_block: usize,
    seed: u64,
    sequence: &mut Vec<SequenceHash>,
) -> usize {
    let (mut total, mut parent) = (0, seed);
    // What the pieces so far left over, always less than a block.
    let mut rest: Vec<u8> = Vec::with_capacity(bytes_per_block);
    let mut push = |block: &[u8]| {
        parent = xxh3_64_with_seed(block, parent);
        sequence.push(SequenceHash(parent));
    };
    for mut piece in pieces {
        total += piece.len();
        if !rest.is_empty() {
            let (head, tail) = piece.split_at(piece.len().min(bytes_per_block - rest.len()));
            rest.extend_from_slice(head);
            piece = tail;
            if rest.len() < bytes_per_block {
                continue;
            }
            push(&rest);
            rest.clear();
        }
        let blocks = piece.chunks_exact(bytes_per_block);
        rest.extend_from_slice(blocks.remainder());
        blocks.for_each(&mut push);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn blocks(pieces: &[Vec<u8>], size: usize) -> (usize, Vec<SequenceHash>) {
        let mut sequence = Vec::new();
        let total = text_blocks(pieces.iter().map(|piece| &piece[..]), size, 7, &mut sequence);
        (total, sequence)
    }

    proptest! {
        /// How a text is cut into pieces does not matter, and longer texts keep their beginning.
        #[test]
        fn pieces_make_one_text(
            pieces in vec(vec(any::<u8>(), 0..40), 0..12),
            more in vec(any::<u8>(), 0..40),
            size in 1usize..20,
        ) {
            let (total, sequence) = blocks(&pieces, size);
            let mut text = pieces.concat();
            prop_assert_eq!((total, &sequence), (text.len(), &blocks(&[text.clone()], size).1));
            prop_assert_eq!(sequence.len(), text.len() / size);
            text.extend(more);
            prop_assert!(blocks(&[text], size).1.starts_with(&sequence));
        }
    }

    #[test]
    fn adapters_and_salts_keep_texts_apart() {
        let seeds = [(None, None), (Some("a"), None), (None, Some("a")), (Some("b"), Some("a"))];
        let seeds: std::collections::HashSet<_> =
            seeds.map(|(adapter, salt)| text_seed(adapter, salt)).into_iter().collect();
        assert_eq!(seeds.len(), 4);
    }
}
