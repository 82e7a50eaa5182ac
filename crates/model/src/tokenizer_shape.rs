//! Shape of a tokenizer: the steps that its file names around the model.

use serde_json::Value;

/// The steps around the model in a `tokenizer.json`. The vocabulary, nearly all of the file, is left
/// out.
#[derive(serde::Deserialize)]
pub(crate) struct TokenizerShape {
    /// First step: changes of the text.
    #[serde(default)]
    pub(crate) normalizer: Value,
    /// Second step: splitting into words.
    #[serde(default)]
    pub(crate) pre_tokenizer: Value,
    /// Way from tokens to text.
    #[serde(default)]
    pub(crate) decoder: Value,
}
