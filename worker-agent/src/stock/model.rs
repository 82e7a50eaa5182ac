//! Facts from a model's folder, for a model that a stock engine runs.

use crate::config::StockSettings;
use anyhow::Context;
use serde::Deserialize;
use stator_dialect::Kind;
use stator_engine::model_files::ModelFiles;

/// Limits of a model, as its `config.json` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Token ids are below this.
    pub(crate) vocab_size: u32,
    /// Longest prompt and answer together, in tokens, where it says so.
    pub(crate) context_length: Option<u32>,
}

/// The fields that are read, of the model or of the text part of a multimodal one.
#[derive(Deserialize)]
struct Config {
    vocab_size: Option<u32>,
    max_position_embeddings: Option<u32>,
    text_config: Option<Box<Config>>,
}

/// The files of the model, and its limits; none of either for an engine that takes no token ids.
///
/// # Errors
///
/// When the folder cannot be read, and as [`limits`].
pub(crate) fn read(settings: &StockSettings) -> anyhow::Result<(ModelFiles, Limits)> {
    if settings.kind == Kind::Openai {
        let limits = Limits { vocab_size: 0, context_length: None };
        return Ok((ModelFiles::default(), limits));
    }
    let files = ModelFiles::open(&settings.model).context("model")?;
    let limits = limits(&files).context("model")?;
    Ok((files, limits))
}

/// Reads the limits.
///
/// # Errors
///
/// When there is no configuration, or it does not say how large the vocabulary is.
pub(crate) fn limits(files: &ModelFiles) -> anyhow::Result<Limits> {
    let json = files.get("config.json").context("config.json: it is missing")?;
    let config: Config = serde_json::from_slice(&json).context("config.json")?;
    let text = config.text_config.as_deref();
    let vocab_size = config.vocab_size.or(text.and_then(|text| text.vocab_size));
    let positions = text.and_then(|text| text.max_position_embeddings);
    Ok(Limits {
        vocab_size: vocab_size.context("config.json: vocab_size is missing")?,
        context_length: config.max_position_embeddings.or(positions),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &'static [u8]) -> Result<Limits, String> {
        let files = ModelFiles::embedded(&[("config.json", config)]);
        limits(&files).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn limits_are_the_models_or_those_of_its_text_part() {
        let plain = br#"{"vocab_size": 10, "max_position_embeddings": 64, "more": []}"#;
        let expected = Limits { vocab_size: 10, context_length: Some(64) };
        assert_eq!(check(plain), Ok(expected));
        let parts = br#"{"text_config": {"vocab_size": 10, "max_position_embeddings": 64}}"#;
        assert_eq!(check(parts), Ok(expected));
    }

    #[test]
    fn a_vocabulary_of_unknown_size_is_refused() {
        assert_eq!(check(b"{}").unwrap_err(), "config.json: vocab_size is missing");
    }
}
