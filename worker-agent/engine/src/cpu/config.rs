//! `config.json` and `generation_config.json`, turned into what the model needs.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::ModelError;
use super::rope::RopeScaling;
use crate::ModelInfo;
use crate::model_files::ModelFiles;

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// Shape of a model. A value of this type is consistent and can be computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) info: ModelInfo,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Divides `heads`.
    pub(super) kv_heads: usize,
    /// Even.
    pub(super) head_dim: usize,
    pub(super) norm_eps: f32,
    pub(super) rope_theta: f32,
    pub(super) rope_scaling: RopeScaling,
    /// Biases of the query, key and value projections, and of the output projection.
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    /// Queries and keys are normed per head.
    pub(super) qk_norm: bool,
    /// The head is the embedding; `None` where the file leaves it to the weights.
    pub(super) tied: Option<bool>,
}

/// The fields of `config.json` that matter here, as they stand there.
#[derive(Deserialize)]
struct RawConfig {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: u32,
    max_position_embeddings: u32,
    rms_norm_eps: f32,
    hidden_act: Option<String>,
    rope_theta: Option<f32>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    quantization_config: Option<serde_json::Value>,
    eos_token_id: Option<TokenIds>,
}

#[derive(Clone, Deserialize)]
struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
    partial_rotary_factor: Option<f32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Deserialize)]
struct RawGenerationConfig {
    eos_token_id: Option<TokenIds>,
}

impl Config {
    /// Reads a model's configuration.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the file and the field that is missing, wrong or not supported.
    pub(super) fn load(files: &ModelFiles) -> Result<Self, ModelError> {
        let raw: RawConfig =
            parse(files, CONFIG)?.ok_or_else(|| ModelError::MissingFile { file: CONFIG.into() })?;
        let generation: Option<RawGenerationConfig> = parse(files, GENERATION_CONFIG)?;
        refuse_unsupported(&raw)?;
        let eos = generation.and_then(|raw| raw.eos_token_id).or(raw.eos_token_id);
        let (rope_theta, rope_scaling) =
            rope(raw.rope_theta, raw.rope_parameters, raw.rope_scaling)?;
        let qwen2 = raw.model_type == "qwen2";
        // A Qwen configuration names a window even where it does not use it.
        let has_window = raw.use_sliding_window.unwrap_or(!raw.model_type.starts_with("qwen"));
        let window = raw.sliding_window.filter(|_| has_window).unwrap_or(u32::MAX);
        let attention_bias = raw.attention_bias.unwrap_or(false);
        let heads = raw.num_attention_heads;
        let config = Self {
            info: ModelInfo {
                // Within the window, sliding attention is full attention.
                context_length: raw.max_position_embeddings.min(window),
                vocab_size: raw.vocab_size,
                eos_token_ids: match eos {
                    None => Vec::new(),
                    Some(TokenIds::One(id)) => vec![id],
                    Some(TokenIds::Many(ids)) => ids,
                },
            },
            hidden: raw.hidden_size,
            intermediate: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads,
            kv_heads: raw.num_key_value_heads.unwrap_or(heads),
            head_dim: raw.head_dim.or_else(|| raw.hidden_size.checked_div(heads)).unwrap_or(0),
            norm_eps: raw.rms_norm_eps,
            rope_theta,
            rope_scaling,
            qkv_bias: qwen2 || attention_bias,
            output_bias: attention_bias && !qwen2,
            qk_norm: raw.model_type == "qwen3",
            tied: raw.tie_word_embeddings,
        };
        config.check()?;
        Ok(config)
    }

    /// Query heads that share a key-value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn check(&self) -> Result<(), ModelError> {
        /// More than any model has; keeps products of sizes far from overflow.
        const MOST: usize = 1 << 24;
        let sizes = [
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.info.vocab_size as usize),
        ];
        for (field, size) in sizes {
            if !(1..=MOST).contains(&size) {
                return Err(field_error(field, format!("{size} is not in 1..={MOST}")));
            }
        }
        // One token of prompt and one of answer are the least.
        if self.info.context_length < 2 {
            let message = format!("{} is less than 2", self.info.context_length);
            return Err(field_error("max_position_embeddings", message));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let message = format!("{} does not divide {} heads", self.kv_heads, self.heads);
            return Err(field_error("num_key_value_heads", message));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(field_error("head_dim", format!("{} is odd", self.head_dim)));
        }
        Ok(())
    }
}

fn parse<T: DeserializeOwned>(
    files: &ModelFiles,
    file: &'static str,
) -> Result<Option<T>, ModelError> {
    let parsed = files.get(file).map(|bytes| serde_json::from_slice(&bytes)).transpose();
    parsed.map_err(|error| ModelError::Malformed { file: file.into(), message: error.to_string() })
}

fn field_error(field: &'static str, message: String) -> ModelError {
    ModelError::Field { file: CONFIG, field, message }
}

fn unsupported(field: &'static str, value: impl ToString, supported: &'static str) -> ModelError {
    ModelError::Unsupported { file: CONFIG, field, value: value.to_string(), supported }
}

fn refuse_unsupported(raw: &RawConfig) -> Result<(), ModelError> {
    if !matches!(raw.model_type.as_str(), "llama" | "qwen2" | "qwen3" | "mistral") {
        return Err(unsupported("model_type", &raw.model_type, "llama, qwen2, qwen3, mistral"));
    }
    if let Some(act) = raw.hidden_act.as_deref().filter(|act| *act != "silu") {
        return Err(unsupported("hidden_act", act, "silu"));
    }
    if raw.mlp_bias == Some(true) {
        return Err(unsupported("mlp_bias", true, "false"));
    }
    if let Some(quantization) = &raw.quantization_config {
        return Err(unsupported("quantization_config", quantization, "null"));
    }
    Ok(())
}

/// Base frequency and scaling: newer files hold both in `rope_parameters`.
fn rope(
    theta: Option<f32>,
    parameters: Option<RawRope>,
    scaling: Option<RawRope>,
) -> Result<(f32, RopeScaling), ModelError> {
    /// Default of configurations that omit it.
    const THETA: f32 = 10_000.0;
    let field = if parameters.is_some() { "rope_parameters" } else { "rope_scaling" };
    let Some(rope) = parameters.or(scaling) else {
        return Ok((theta.unwrap_or(THETA), RopeScaling::None));
    };
    // Files that have both were converted, and the inner one is the newer.
    let theta = rope.rope_theta.or(theta).unwrap_or(THETA);
    if let Some(factor) = rope.partial_rotary_factor.filter(|factor| *factor != 1.0) {
        return Err(unsupported("partial_rotary_factor", factor, "1"));
    }
    let required = |value: Option<f32>, name: &str| match value {
        Some(value) if value > 0.0 => Ok(value),
        Some(value) => Err(field_error(field, format!("{name}: {value} is not above 0"))),
        None => Err(field_error(field, format!("{name}: missing"))),
    };
    let scaling = match rope.rope_type.as_deref() {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: required(rope.factor, "factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: required(rope.factor, "factor")?,
            low: required(rope.low_freq_factor, "low_freq_factor")?,
            high: required(rope.high_freq_factor, "high_freq_factor")?,
            original_context: required(
                rope.original_max_position_embeddings,
                "original_max_position_embeddings",
            )?,
        },
        Some(other) => return Err(unsupported(field, other, "default, linear, llama3")),
    };
    Ok((theta, scaling))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "eos_token_id": 2}"#;

    /// Loads the configuration above with some fields added or changed.
    fn load(changes: &str, generation: Option<&'static str>) -> Result<Config, ModelError> {
        let mut config: serde_json::Map<_, _> = serde_json::from_str(LLAMA).unwrap();
        config.extend(serde_json::from_str::<serde_json::Map<_, _>>(changes).unwrap());
        let config = serde_json::to_vec(&config).unwrap().leak();
        let mut files: Vec<(&str, &'static [u8])> = vec![(CONFIG, config)];
        files.extend(generation.map(|text| (GENERATION_CONFIG, text.as_bytes())));
        Config::load(&ModelFiles::embedded(&files))
    }

    #[track_caller]
    fn check_refused(changes: &str, message: &str) {
        assert_eq!(load(changes, None).unwrap_err().to_string(), message);
    }

    #[test]
    fn what_is_left_out_has_the_usual_value() {
        let config = load("{}", None).unwrap();
        assert_eq!((config.kv_heads, config.head_dim, config.rope_theta), (4, 16, 10_000.0));
        assert_eq!((config.tied, config.qkv_bias, config.qk_norm), (None, false, false));
    }

    #[test]
    fn generation_config_decides_what_ends_an_answer() {
        assert_eq!(load("{}", None).unwrap().info.eos_token_ids, [2]);
        let list = load("{}", Some(r#"{"eos_token_id": [7, 8]}"#)).unwrap();
        assert_eq!(list.info.eos_token_ids, [7, 8]);
        let silent = load("{}", Some("{}")).unwrap();
        assert_eq!(silent.info.eos_token_ids, [2]);
    }

    #[test]
    fn both_places_of_rope_settings_are_read() {
        let old = r#"{"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}"#;
        let new = r#"{"rope_parameters":
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}}"#;
        for text in [old, new] {
            let config = load(text, None).unwrap();
            assert_eq!(config.rope_theta, 5e5);
            assert_eq!(config.rope_scaling, RopeScaling::Linear { factor: 4.0 });
        }
    }

    #[test]
    fn a_window_shortens_the_context_only_where_it_is_used() {
        let mistral = r#"{"model_type": "mistral", "sliding_window": 32}"#;
        assert_eq!(load(mistral, None).unwrap().info.context_length, 32);
        let none = r#"{"model_type": "mistral", "sliding_window": null}"#;
        assert_eq!(load(none, None).unwrap().info.context_length, 128);
        let qwen = r#"{"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": false}"#;
        assert_eq!(load(qwen, None).unwrap().info.context_length, 128);
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        check_refused(
            r#"{"model_type": "gpt2"}"#,
            "config.json: model_type: gpt2 is not supported, only llama, qwen2, qwen3, mistral",
        );
        check_refused(
            r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#,
            "config.json: rope_scaling: yarn is not supported, only default, linear, llama3",
        );
        check_refused(
            r#"{"rope_scaling": {"rope_type": "linear"}}"#,
            "config.json: rope_scaling: factor: missing",
        );
        check_refused(
            r#"{"num_key_value_heads": 3}"#,
            "config.json: num_key_value_heads: 3 does not divide 4 heads",
        );
        check_refused(r#"{"head_dim": 0}"#, "config.json: head_dim: 0 is not in 1..=16777216");
        check_refused(
            r#"{"num_attention_heads": 0}"#,
            "config.json: num_attention_heads: 0 is not in 1..=16777216",
        );
        check_refused(
            r#"{"mlp_bias": true}"#,
            "config.json: mlp_bias: true is not supported, only false",
        );
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let error = Config::load(&ModelFiles::default()).unwrap_err();
        assert_eq!(error.to_string(), "config.json: not found");
        let error = Config::load(&ModelFiles::embedded(&[(CONFIG, b"{")])).unwrap_err();
        assert!(error.to_string().starts_with("config.json: EOF"), "{error}");
    }
}
