//! Shape of a model, as its `config.json` tells it.

use crate::precision::Precision;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Sizes that decide what a step reads and multiplies. Counts are of the whole model, not of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream, in numbers.
    pub hidden: u32,
    /// Query heads: tensor parallelism must divide them.
    pub heads: u32,
    /// Key-value heads that can be split between GPUs; 1 if every GPU needs the whole KV (MLA).
    pub kv_heads: u32,
    /// Numbers of KV for each token in one layer.
    pub kv_layer_numbers: u32,
    /// Query heads times the width of a head, a mean of its key and its value.
    pub attention_width: f64,
    /// Layers that attend to the whole context; the others attend to `window` tokens.
    pub full_layers: u32,
    /// Tokens that the other layers attend to.
    pub window: u32,
    /// Weights that every token uses: attention, dense layers, shared experts, routers.
    pub dense_weights: f64,
    /// Weights of the embedding and of the head, which are one table or two.
    pub embedding_weights: f64,
    /// Weights of the head alone, which a step reads.
    pub head_weights: f64,
    /// Inner width of the layers without experts.
    pub inner: u32,
    /// Experts, if the model has some.
    pub experts: Option<Experts>,
    /// Widths of latent attention, if the model has that.
    pub latent: Option<LatentWidths>,
    /// Whether weights of 8 bits have a scale for each block, rather than for each tensor or row.
    pub has_block_scales: bool,
    /// Format of the weights of layers.
    pub weights: Precision,
    /// Longest context, tokens.
    pub context_max: u32,
}

/// Experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Layers with experts.
    pub layers: u32,
    /// Experts of a layer that a token may go to.
    pub count: u32,
    /// Experts of a layer that a token goes to.
    pub active: u32,
    /// Experts that every token goes to.
    pub shared: u32,
    /// Inner width of one expert.
    pub inner: u32,
    /// Weights of one expert.
    pub weights: f64,
}

/// Widths of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentWidths {
    /// Vector that queries come from; the residual stream's if the model has none.
    pub query_rank: Option<u32>,
    /// Vector that keys and values come from.
    pub rank: u32,
    /// Part of a head's key that comes from the vector.
    pub key: u32,
    /// Part of a key that knows its position, the same for all heads.
    pub rope: u32,
    /// Value of a head.
    pub value: u32,
}

/// A model whose shape cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file cannot be read.
    #[error("model: {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a model's configuration.
    #[error("model: {}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field and what is wrong with it.
        reason: String,
    },
}

/// Fields of models whose cost is of another form than attention over a growing context.
const NOT_UNDERSTOOD: [(&str, &str); 9] = [
    ("linear_conv_kernel_dim", "linear attention"),
    ("linear_attn_config", "linear attention"),
    ("ssm_state_size", "state-space layers"),
    ("mamba_num_heads", "state-space layers"),
    ("hybrid_layer_pattern", "a pattern of layers"),
    ("block_configs", "layers of different shapes"),
    ("compress_ratios", "compressed KV"),
    ("index_topk", "sparse attention"),
    ("is_encoder_decoder", "an encoder"),
];

/// The fields that count, by the names that model families give them.
#[derive(Deserialize)]
struct Config {
    num_hidden_layers: u32,
    hidden_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    vocab_size: u32,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "context_default")]
    max_position_embeddings: u32,
    #[serde(default)]
    intermediate_size: u32,
    moe_intermediate_size: Option<u32>,
    // Some files have several of these names.
    num_experts: Option<u32>,
    n_routed_experts: Option<u32>,
    num_local_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    experts_per_token: Option<u32>,
    n_shared_experts: Option<u32>,
    #[serde(default)]
    first_k_dense_replace: u32,
    #[serde(default)]
    layer_types: Vec<String>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    kv_lora_rank: Option<u32>,
    q_lora_rank: Option<u32>,
    qk_nope_head_dim: Option<u32>,
    qk_rope_head_dim: Option<u32>,
    v_head_dim: Option<u32>,
}

fn context_default() -> u32 {
    8_192
}

/// Weights and KV of one layer's attention.
struct Attention {
    weights: f64,
    kv_numbers: u32,
    width: f64,
    kv_heads: u32,
    latent: Option<LatentWidths>,
}

impl ModelShape {
    /// The shape of the model in a folder or of a `config.json`.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the file and the field.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ModelError::Unreadable { path: path.clone(), source })?;
        Self::parse(&text).map_err(|reason| ModelError::Malformed { path, reason })
    }

    /// The shape that a `config.json` tells.
    ///
    /// # Errors
    ///
    /// A text that names the field and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let whole: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
        // Models that also see have the language model's shape in a section of its own.
        let section = whole.get("text_config").and_then(Value::as_object).unwrap_or(&whole);
        for (field, what) in NOT_UNDERSTOOD {
            if section
                .get(field)
                .is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
            {
                return Err(format!("{field}: {what} is not understood"));
            }
        }
        let config: Config = serde_json::from_value(Value::Object(section.clone()))
            .map_err(|error| error.to_string())?;
        let quantization = ["quantization_config", "compression_config"]
            .iter()
            .find_map(|name| whole.get(*name).or_else(|| section.get(*name)));
        let shape = config.shape(quantization.map_or(Ok(Precision::Bf16), precision)?)?;
        let has_block_scales =
            quantization.is_some_and(|section| section["weight_block_size"].is_array());
        Ok(ModelShape { has_block_scales, ..shape })
    }

    /// Layers with experts.
    pub fn expert_layers(&self) -> f64 {
        self.experts.map_or(0.0, |experts| f64::from(experts.layers))
    }

    /// Weights of all layers and tables, in numbers.
    pub fn parameters(&self) -> f64 {
        let experts = |experts: Experts| {
            f64::from(experts.layers) * f64::from(experts.count) * experts.weights
        };
        self.dense_weights + self.embedding_weights + self.experts.map_or(0.0, experts)
    }

    /// Bytes of all weights. Tables stay in 16 bits.
    pub fn weight_bytes(&self) -> f64 {
        let layers = self.parameters() - self.embedding_weights;
        layers * self.weights.bytes() + self.embedding_weights * Precision::Bf16.bytes()
    }

    /// Numbers of KV that a sequence of `tokens` tokens keeps, over all layers.
    pub fn kv_numbers(&self, tokens: f64) -> f64 {
        let windowed =
            f64::from(self.layers - self.full_layers) * tokens.min(f64::from(self.window));
        (f64::from(self.full_layers) * tokens + windowed) * f64::from(self.kv_layer_numbers)
    }
}

impl Config {
    fn shape(&self, weights: Precision) -> Result<ModelShape, String> {
        let layers = positive("num_hidden_layers", self.num_hidden_layers)?;
        let hidden = positive("hidden_size", self.hidden_size)?;
        positive("num_attention_heads", self.num_attention_heads)?;
        let attention = self.attention()?;
        let wide = f64::from(hidden);
        let dense_layer = 3.0 * wide * f64::from(self.intermediate_size);
        let mut dense_weights = f64::from(layers) * attention.weights;
        let experts = self.experts(wide)?;
        match experts {
            Some(experts) => {
                let shared = f64::from(experts.shared) * experts.weights;
                let router = wide * f64::from(experts.count);
                dense_weights += f64::from(layers - experts.layers) * dense_layer;
                dense_weights += f64::from(experts.layers) * (shared + router);
            }
            None => {
                positive("intermediate_size", self.intermediate_size)?;
                dense_weights += f64::from(layers) * dense_layer;
            }
        }
        let table = f64::from(positive("vocab_size", self.vocab_size)?) * wide;
        let full_layers = self.full_layers();
        Ok(ModelShape {
            layers,
            hidden,
            heads: self.num_attention_heads,
            kv_heads: attention.kv_heads,
            kv_layer_numbers: attention.kv_numbers,
            attention_width: attention.width,
            full_layers,
            window: self.sliding_window.unwrap_or(0),
            dense_weights,
            embedding_weights: if self.tie_word_embeddings { table } else { 2.0 * table },
            head_weights: table,
            inner: self.intermediate_size,
            experts,
            latent: attention.latent,
            has_block_scales: false,
            weights,
            context_max: self.max_position_embeddings,
        })
    }

    fn attention(&self) -> Result<Attention, String> {
        let (hidden, heads) = (f64::from(self.hidden_size), f64::from(self.num_attention_heads));
        let Some(rank) = self.kv_lora_rank else {
            let kv_heads = self.num_key_value_heads.unwrap_or(self.num_attention_heads);
            let width = self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads);
            positive("num_key_value_heads", kv_heads)?;
            let kv_numbers = 2 * kv_heads * positive("head_dim", width)?;
            let queries = heads * f64::from(width);
            let weights = 2.0 * hidden * queries + hidden * f64::from(kv_numbers);
            let latent = None;
            return Ok(Attention { weights, kv_numbers, width: queries, kv_heads, latent });
        };
        // Multi-head latent attention: keys and values come from one short vector for each token.
        let field = |name: &str, value: Option<u32>| {
            value.ok_or_else(|| format!("{name}: missing beside kv_lora_rank"))
        };
        let widths = LatentWidths {
            query_rank: self.q_lora_rank,
            rank,
            key: field("qk_nope_head_dim", self.qk_nope_head_dim)?,
            rope: field("qk_rope_head_dim", self.qk_rope_head_dim)?,
            value: field("v_head_dim", self.v_head_dim)?,
        };
        let [latent, key, rope, value] =
            [widths.rank, widths.key, widths.rope, widths.value].map(f64::from);
        let query_width = heads * (key + rope);
        let queries = match self.q_lora_rank {
            Some(rank) => f64::from(rank) * (hidden + query_width),
            None => hidden * query_width,
        };
        let weights = queries
            + hidden * (latent + rope)
            + latent * heads * (key + value)
            + heads * value * hidden;
        Ok(Attention {
            weights,
            kv_numbers: (latent + rope) as u32,
            width: heads * (key + rope + value) / 2.0,
            kv_heads: 1,
            latent: Some(widths),
        })
    }

    fn experts(&self, hidden: f64) -> Result<Option<Experts>, String> {
        let count = self.num_experts.or(self.n_routed_experts).or(self.num_local_experts);
        let Some(count) = count.filter(|count| *count > 0) else { return Ok(None) };
        let active = self.num_experts_per_tok.or(self.experts_per_token);
        let active = active.ok_or("num_experts_per_tok: missing beside experts")?;
        if active == 0 || active > count {
            return Err(format!("num_experts_per_tok: {active} is not in 1..={count}"));
        }
        let inner = self.moe_intermediate_size.unwrap_or(self.intermediate_size);
        positive("moe_intermediate_size", inner)?;
        let layers = self.num_hidden_layers.checked_sub(self.first_k_dense_replace);
        let layers = layers.ok_or("first_k_dense_replace: above num_hidden_layers")?;
        let shared = self.n_shared_experts.unwrap_or(0);
        let weights = 3.0 * hidden * f64::from(inner);
        Ok(Some(Experts { layers, count, active, shared, inner, weights }))
    }

    /// Layers whose attention has no window.
    fn full_layers(&self) -> u32 {
        let windowed = |kind: &&String| kind.contains("sliding");
        match (self.sliding_window, self.use_sliding_window) {
            (None, _) | (_, Some(false)) => self.num_hidden_layers,
            // Without a list every layer has the window.
            _ if self.layer_types.is_empty() => 0,
            _ => {
                let windowed = self.layer_types.iter().filter(windowed).count() as u32;
                self.num_hidden_layers.saturating_sub(windowed)
            }
        }
    }
}

fn positive(field: &str, value: u32) -> Result<u32, String> {
    if value == 0 { Err(format!("{field}: 0 is not above 0")) } else { Ok(value) }
}

/// Format of the weights, from the section that quantisers write.
fn precision(section: &Value) -> Result<Precision, String> {
    let text = |name: &str| section.get(name).and_then(Value::as_str).map(str::to_ascii_lowercase);
    let method = text("quant_method").unwrap_or_default();
    let algorithm = text("quant_algo").unwrap_or_default();
    let format = text("format").unwrap_or_default();
    let bits = section.get("bits").and_then(Value::as_u64);
    let says = |word: &str| [&method, &algorithm, &format].iter().any(|said| said.contains(word));
    if says("fp4") || says("nvfp4") {
        Ok(Precision::Fp4)
    } else if says("fp8") || says("float-quantized") {
        Ok(Precision::Fp8)
    } else if matches!(bits, Some(4)) || says("pack-quantized") {
        Ok(Precision::Int4)
    } else if method.is_empty() && algorithm.is_empty() {
        Ok(Precision::Bf16)
    } else {
        Err(format!("quantization_config: {method:?} is not understood; say --weights"))
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
pub(crate) mod tests;
