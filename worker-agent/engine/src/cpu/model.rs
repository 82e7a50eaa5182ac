//! A model's weights, and its forward pass.

use super::attention::Attention;
use super::config::Config;
use super::error::ModelError;
use super::kernel::{self, Isa, Out, Rows};
use super::kv::{Kv, KvSlot};
use super::matrix::Matrix;
use super::parallel::for_rows;
use super::rope::{Rope, rotate};
use super::weights::Weights;
use crate::ModelInfo;
use crate::compute::Item;
use crate::model_files::ModelFiles;
use crate::tiers::KvCopies;
use xxhash_rust::xxh3::Xxh3;

/// A model in memory, to be shared by any number of engines.
#[derive(Debug)]
pub struct Model {
    pub(super) config: Config,
    pub(super) isa: Isa,
    /// Equal where the model and the arithmetic are.
    pub(super) fingerprint: u64,
    rope: Rope,
    /// `None` where the head is also the embedding.
    embedding: Option<Matrix>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Matrix,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    /// Queries, keys and values one below the other.
    qkv: Matrix,
    qkv_bias: Option<Vec<f32>>,
    query_norm: Option<Vec<f32>>,
    key_norm: Option<Vec<f32>>,
    output: Matrix,
    output_bias: Option<Vec<f32>>,
    mlp_norm: Vec<f32>,
    /// Gate and up one below the other.
    gate_up: Matrix,
    down: Matrix,
}

/// Values of one step, a row per token; reused from step to step.
#[derive(Debug, Default)]
pub(super) struct Activations {
    hidden: Vec<f32>,
    normed: Vec<f32>,
    projected: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    angles: Vec<f32>,
    logits: Vec<f32>,
}

impl Model {
    /// Reads a Hugging Face folder: `config.json`, `generation_config.json` and `*.safetensors`.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the file and what in it is missing, wrong or not supported.
    pub fn load(files: &ModelFiles) -> Result<Self, ModelError> {
        let config = Config::load(files)?;
        let weights = Weights::open(files)?;
        let (hidden, vocab) = (config.hidden, config.info.vocab_size as usize);
        let embedding = weights.matrix(hidden, &[("model.embed_tokens.weight", vocab)])?;
        let tied = config.tied.unwrap_or(!weights.has("lm_head.weight"));
        let (embedding, head) = match tied {
            true => (None, embedding),
            false => (Some(embedding), weights.matrix(hidden, &[("lm_head.weight", vocab)])?),
        };
        let layers = (0..config.layers).map(|i| Layer::load(&weights, &config, i));
        let isa = Isa::detect();
        Ok(Self {
            isa,
            fingerprint: fingerprint(files, isa),
            rope: Rope::new(config.head_dim, config.rope_theta, config.rope_scaling),
            embedding,
            layers: layers.collect::<Result<_, _>>()?,
            norm: weights.vector("model.norm.weight", hidden)?,
            head,
            config,
        })
    }

    /// Facts of the model that the rest of the system needs.
    pub fn info(&self) -> &ModelInfo {
        &self.config.info
    }

    /// Computes the tokens of a step: writes their KV, and leaves their hidden values in `step`. Row
    /// 0 is the first token of the first item.
    pub(super) fn forward(
        &self,
        items: &[Item<'_>],
        kv: &mut Kv,
        mut copies: KvCopies<'_>,
        step: &mut Activations,
    ) {
        let tokens = items.iter().map(|item| item.end - item.start).sum();
        self.embed(items, tokens, step);
        let share = copies.leaving().div_ceil(self.layers.len());
        copies.load(kv.layout().layer_bytes(0), kv);
        for (i, layer) in self.layers.iter().enumerate() {
            self.attend(i, layer, items, kv, step);
            if copies.is_empty() {
                self.feed_forward(layer, step);
                continue;
            }
            // Nobody else reads or writes blocks now.
            let copy = || {
                if i + 1 < self.layers.len() {
                    copies.load(kv.layout().layer_bytes(i + 1), kv);
                }
                copies.store(share, kv);
            };
            rayon::join(|| self.feed_forward(layer, step), copy);
        }
    }

    /// Hidden values of a row of the step that was computed, normed as for the vocabulary.
    pub(super) fn normed_row(&self, row: usize, step: &Activations, out: &mut Vec<f32>) {
        let hidden = self.config.hidden;
        out.resize(hidden, 0.0);
        let row = &step.hidden[row * self.hidden_stride()..][..hidden];
        kernel::rms_norm(row, &self.norm, self.config.norm_eps, out);
    }

    /// The tokens' embeddings, and the angles of their positions.
    fn embed(&self, items: &[Item<'_>], tokens: usize, step: &mut Activations) {
        let (hidden, angles) = (self.hidden_stride(), self.config.head_dim);
        let embedding = self.embedding.as_ref().unwrap_or(&self.head);
        step.hidden.resize(tokens * hidden, 0.0);
        step.angles.resize(tokens * angles, 0.0);
        let positions =
            items.iter().flat_map(|item| (item.start..item.end).map(move |p| (item, p)));
        let rows = step.hidden.chunks_exact_mut(hidden).zip(step.angles.chunks_exact_mut(angles));
        for ((item, position), (row, angles)) in positions.zip(rows) {
            embedding.row(item.tokens[position] as usize, &mut row[..self.config.hidden]);
            self.rope.angles(position, angles);
        }
    }

    fn attend(
        &self,
        number: usize,
        layer: &Layer,
        items: &[Item<'_>],
        kv: &mut Kv,
        step: &mut Activations,
    ) {
        let config = &self.config;
        let (width, tokens) = (layer.qkv.width(), self.tokens(step));
        self.norm(&layer.attention_norm, step);
        start(&mut step.projected, tokens, width, layer.qkv_bias.as_deref());
        let out =
            Out { values: &mut step.projected, stride: width, keep: layer.qkv_bias.is_some() };
        layer.qkv.multiply(self.isa, self.rows(&step.normed), out);
        self.turn(layer, step);
        // Before the attention, which reads the keys and values of this step from their blocks.
        self.store(number, items, kv, width, &step.projected);

        let attended = config.heads * config.head_dim;
        step.attended.resize(tokens * attended, 0.0);
        let attention = Attention { config, isa: self.isa, kv, layer: number };
        attention.run(items, &step.projected, width, &mut step.attended);
        if let Some(bias) = &layer.output_bias {
            for row in step.hidden.chunks_exact_mut(self.hidden_stride()) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
        let rows = Rows { values: &step.attended, stride: attended, count: tokens };
        let out = Out { values: &mut step.hidden, stride: self.hidden_stride(), keep: true };
        layer.output.multiply(self.isa, rows, out);
    }

    /// Norms queries and keys where the model does, and turns them by their positions.
    fn turn(&self, layer: &Layer, step: &mut Activations) {
        let config = &self.config;
        let (head_dim, heads) = (config.head_dim, config.heads + config.kv_heads);
        let angles = &step.angles;
        for_rows(&mut step.projected, layer.qkv.width(), |token, row| {
            let angles = &angles[token * head_dim..][..head_dim];
            for (i, head) in row.chunks_exact_mut(head_dim).take(heads).enumerate() {
                let norm = if i < config.heads { &layer.query_norm } else { &layer.key_norm };
                if let Some(norm) = norm {
                    kernel::rms_norm_in_place(head, norm, config.norm_eps);
                }
                rotate(head, angles);
            }
        });
    }

    /// Writes keys and values to their blocks.
    fn store(
        &self,
        layer: usize,
        items: &[Item<'_>],
        kv: &mut Kv,
        width: usize,
        projected: &[f32],
    ) {
        let config = &self.config;
        let (head_dim, block_size) = (config.head_dim, kv.layout().block_size);
        let positions =
            items.iter().flat_map(|item| (item.start..item.end).map(move |p| (item, p)));
        for ((item, position), row) in positions.zip(projected.chunks_exact(width)) {
            let (keys, values) =
                row[config.heads * head_dim..].split_at(config.kv_heads * head_dim);
            for head in 0..config.kv_heads {
                let place = KvSlot {
                    block: item.blocks[position / block_size],
                    slot: position % block_size,
                    layer,
                    head,
                };
                let part = head * head_dim..(head + 1) * head_dim;
                kv.write(place, &keys[part.clone()], &values[part]);
            }
        }
    }

    fn feed_forward(&self, layer: &Layer, step: &mut Activations) {
        let (width, tokens) = (layer.gate_up.width(), self.tokens(step));
        self.norm(&layer.mlp_norm, step);
        start(&mut step.gate_up, tokens, width, None);
        let out = Out { values: &mut step.gate_up, stride: width, keep: false };
        layer.gate_up.multiply(self.isa, self.rows(&step.normed), out);
        for_rows(&mut step.gate_up, width, |_, row| {
            let (gate, up) = row.split_at_mut(self.config.intermediate);
            kernel::swiglu(self.isa, gate, up);
        });
        let rows = Rows { values: &step.gate_up, stride: width, count: tokens };
        let out = Out { values: &mut step.hidden, stride: self.hidden_stride(), keep: true };
        layer.down.multiply(self.isa, rows, out);
    }

    /// The logits of `wanted` rows of the step that was computed, in order.
    pub(super) fn project_to_vocabulary<'a>(
        &self,
        wanted: &[usize],
        step: &'a mut Activations,
    ) -> Logits<'a> {
        let (hidden, stride) = (self.hidden_stride(), self.head.width());
        step.normed.resize(wanted.len() * hidden, 0.0);
        for (&row, out) in wanted.iter().zip(step.normed.chunks_exact_mut(hidden)) {
            let row = &step.hidden[row * hidden..][..self.config.hidden];
            kernel::rms_norm(row, &self.norm, self.config.norm_eps, out);
        }
        start(&mut step.logits, wanted.len(), stride, None);
        if !wanted.is_empty() {
            let out = Out { values: &mut step.logits, stride, keep: false };
            self.head.multiply(self.isa, self.rows(&step.normed), out);
        }
        Logits { values: &step.logits, stride, vocab: self.config.info.vocab_size as usize }
    }

    /// Norms the hidden values of all tokens.
    fn norm(&self, weight: &[f32], step: &mut Activations) {
        let (stride, hidden) = (self.hidden_stride(), &step.hidden);
        step.normed.resize(hidden.len(), 0.0);
        for_rows(&mut step.normed, stride, |token, out| {
            let row = &hidden[token * stride..][..self.config.hidden];
            kernel::rms_norm(row, weight, self.config.norm_eps, out);
        });
    }

    fn rows<'a>(&self, values: &'a [f32]) -> Rows<'a> {
        let stride = self.hidden_stride();
        Rows { values, stride, count: values.len() / stride }
    }

    fn tokens(&self, step: &Activations) -> usize {
        step.hidden.len() / self.hidden_stride()
    }

    /// Hidden values of a token, filled up to what products write.
    fn hidden_stride(&self) -> usize {
        self.config.hidden.next_multiple_of(kernel::LANES)
    }
}

/// Logits of some rows of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logits<'a> {
    values: &'a [f32],
    stride: usize,
    vocab: usize,
}

impl<'a> Logits<'a> {
    /// The logits of one row, a value per token of the vocabulary.
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.vocab]
    }
}

/// Makes room for a product of `rows` rows, which starts from the bias where there is one.
fn start(values: &mut Vec<f32>, rows: usize, width: usize, bias: Option<&[f32]>) {
    values.resize(rows * width, 0.0);
    if let Some(bias) = bias {
        for row in values.chunks_exact_mut(width) {
            row[..bias.len()].copy_from_slice(bias);
            row[bias.len()..].fill(0.0);
        }
    }
}

/// Revision of layout and arithmetic. KV of another revision is of another form, so that no engine
/// reuses what tiers kept of it: raise this where the bits of a block change, and only there.
/// `revision_tests` notices.
pub(super) const KV_REVISION: u32 = 1;

/// Fingerprint of everything that decides the KV of a token.
fn fingerprint(files: &ModelFiles, isa: Isa) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&KV_REVISION.to_le_bytes());
    let decides = |name: &&str| *name == "config.json" || name.ends_with(".safetensors");
    for name in files.names().filter(decides) {
        hash.update(name.as_bytes());
        hash.update(&files.get(name).unwrap_or_default());
    }
    hash.update(format!("{isa:?}").as_bytes());
    hash.digest()
}

impl Layer {
    fn load(weights: &Weights, config: &Config, number: usize) -> Result<Self, ModelError> {
        let name = |part: &str| format!("model.layers.{number}.{part}");
        let vector = |part: &str, len| weights.vector(&name(part), len);
        let matrix = |inputs, parts: &[(&str, usize)]| {
            let names: Vec<_> =
                parts.iter().map(|(part, outputs)| (name(part), *outputs)).collect();
            let parts: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
            weights.matrix(inputs, &parts)
        };
        let Config { hidden, intermediate, head_dim, .. } = *config;
        let (queries, keys) = (config.heads * head_dim, config.kv_heads * head_dim);
        // Queries, keys and values are one product of one matrix: their biases stand in a row too.
        let qkv_bias = || {
            let mut bias = vector("self_attn.q_proj.bias", queries)?;
            bias.extend(vector("self_attn.k_proj.bias", keys)?);
            bias.extend(vector("self_attn.v_proj.bias", keys)?);
            Ok(bias)
        };
        let qk_norm = |part| config.qk_norm.then(|| vector(part, head_dim)).transpose();
        let output_bias = || vector("self_attn.o_proj.bias", hidden);
        Ok(Self {
            attention_norm: vector("input_layernorm.weight", hidden)?,
            qkv: matrix(
                hidden,
                &[
                    ("self_attn.q_proj.weight", queries),
                    ("self_attn.k_proj.weight", keys),
                    ("self_attn.v_proj.weight", keys),
                ],
            )?,
            qkv_bias: config.qkv_bias.then(qkv_bias).transpose()?,
            query_norm: qk_norm("self_attn.q_norm.weight")?,
            key_norm: qk_norm("self_attn.k_norm.weight")?,
            output: matrix(queries, &[("self_attn.o_proj.weight", hidden)])?,
            output_bias: config.output_bias.then(output_bias).transpose()?,
            mlp_norm: vector("post_attention_layernorm.weight", hidden)?,
            gate_up: matrix(
                hidden,
                &[("mlp.gate_proj.weight", intermediate), ("mlp.up_proj.weight", intermediate)],
            )?,
            down: matrix(intermediate, &[("mlp.down_proj.weight", hidden)])?,
        })
    }
}
