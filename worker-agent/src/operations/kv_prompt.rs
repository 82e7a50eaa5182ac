//! A prompt on the command line, as the hashes of its blocks. The prompt's text stays here: the
//! agent hears of hashes alone.

use super::caller::Caller;
use anyhow::{Context, ensure};
use clap::Args;
use stator_model::Tokenizer;
use stator_protos::discovery::ModelRecord;
use stator_protos::hash::{HashSeed, sequence_hashes};
use stator_protos::worker::ModelFilesRequest;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Bytes of memory for parts of prompts that were tokenized already: there is one prompt.
const CACHE_BYTES: u64 = 1 << 20;
const TOKENIZER: &str = "tokenizer.json";

/// A prompt: its text, its tokens, or the hashes of its blocks.
#[derive(Args, Clone, Debug)]
pub struct PromptArgs {
    /// Prompt and how it is given.
    #[command(flatten)]
    words: WordArgs,
    /// Cache salt of the requests.
    #[arg(long, value_name = "SALT")]
    cache_salt: Option<String>,
    /// LoRA adapter of the requests.
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

/// The forms in which a prompt is given, one of them at a time.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct WordArgs {
    /// Text of the prompt, as for `/v1/completions`.
    #[arg(long)]
    text: Option<String>,
    /// File with the text of the prompt.
    #[arg(long, value_name = "FILE")]
    text_file: Option<PathBuf>,
    /// Token ids of the prompt, with commas.
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    tokens: Option<Vec<u32>>,
    /// Sequence hashes of the prompt's blocks, as KV events have them, with commas.
    #[arg(long, value_delimiter = ',', value_name = "HASHES", value_parser = hash)]
    hashes: Option<Vec<u64>>,
}

impl PromptArgs {
    /// The hashes of the prompt's whole blocks, by the model of the agent.
    ///
    /// # Errors
    ///
    /// The agent or the file cannot be read, or the prompt is shorter than a block.
    pub(super) async fn hashes(self, caller: &Caller) -> anyhow::Result<Vec<u64>> {
        let WordArgs { text, text_file, tokens, hashes } = self.words;
        if let Some(hashes) = hashes {
            return Ok(hashes);
        }
        let model = caller.record().await?.model;
        let tokens = match (tokens, text, text_file) {
            (Some(tokens), ..) => tokens,
            (None, Some(text), _) => tokens_of(caller, &model, &text).await?,
            (None, None, Some(file)) => {
                let text = std::fs::read_to_string(&file);
                let text = text.with_context(|| format!("text-file: {}", file.display()))?;
                tokens_of(caller, &model, &text).await?
            }
            (None, None, None) => anyhow::bail!("one of text, text-file, tokens and hashes"),
        };
        let block_size = NonZeroU32::new(model.block_size).context("the agent has no blocks")?;
        let seed = HashSeed::new(self.adapter.as_deref(), self.cache_salt.as_deref());
        let mut hashes = Vec::new();
        sequence_hashes(&tokens, block_size, seed, &mut hashes);
        let count = tokens.len();
        ensure!(!hashes.is_empty(), "{count} tokens are less than a block of {block_size}");
        Ok(hashes.into_iter().map(|hash| hash.0).collect())
    }
}

async fn tokens_of(caller: &Caller, model: &ModelRecord, text: &str) -> anyhow::Result<Vec<u32>> {
    let request = caller.request(ModelFilesRequest { model: model.name.clone() });
    let files = caller.worker().model_files(request).await;
    let files = files.map_err(|status| anyhow::anyhow!("{}", status.message()))?.into_inner().files;
    let tokenizer = files.into_iter().find(|file| file.name == TOKENIZER);
    let tokenizer = tokenizer.with_context(|| format!("the agent's model has no {TOKENIZER}"))?;
    let tokenizer = Tokenizer::new(&tokenizer.content, CACHE_BYTES).map_err(anyhow::Error::msg)?;
    tokenizer.encode(text, true).map_err(anyhow::Error::msg)
}

/// A hash in decimal or, behind `0x`, in hexadecimal digits.
fn hash(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_decimal_or_hexadecimal() {
        assert_eq!((hash("10"), hash("0x10")), (Ok(10), Ok(16)));
        assert!(hash("ten").is_err() && hash("0x").is_err() && hash("-1").is_err());
    }
}
