//! Operations of a step by measured times, for a model on a worker.

use crate::model::{LatentWidths, ModelShape};
use crate::operation::StepWork;
use crate::precision::Precision;
use crate::worker::WorkerShape;
use stator_tables::{AttentionShape, EngineTables, ExpertShape, KvFormat, LatentShape};

/// Widths of the only latent attention that was measured: DeepSeek V3's, which Kimi K2 has too.
const MEASURED_LATENT: LatentWidths =
    LatentWidths { query_rank: Some(1_536), rank: 512, key: 128, rope: 64, value: 128 };

/// A model on a worker whose operations were measured one by one.
#[derive(Clone, Copy)]
pub(crate) struct TabledWorker<'a> {
    pub(crate) tables: &'a EngineTables,
    pub(crate) model: &'a ModelShape,
    pub(crate) worker: WorkerShape,
    pub(crate) kv: Precision,
}

/// Seconds of a step's operations over all layers; `None` for those that no table has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TabledTimes {
    pub(crate) products: Option<f64>,
    pub(crate) attention: Option<f64>,
    pub(crate) experts: Option<f64>,
    pub(crate) exchange: Option<f64>,
}

impl TabledWorker<'_> {
    /// The operations of a step. Fewer tokens than one were not measured: they take as long as one.
    pub(crate) fn times(&self, work: StepWork) -> TabledTimes {
        let attention = self.attention_s(work);
        let has_products = self.model.latent.is_some() && self.tables.latent_includes_products();
        let products = self.products_s(work, has_products && attention.is_some());
        let (routed, shared) = (self.experts_s(work), self.shared_experts_s(work));
        let experts = routed.zip(shared).map(|(routed, shared)| match work {
            StepWork::Prompt { .. } => routed + shared,
            // Engines compute both at once where neither fills the GPU.
            StepWork::Decode { .. } => routed.max(shared),
        });
        TabledTimes {
            // The roofline of experts has none that are shared.
            products: match experts {
                Some(_) => products,
                None => products.zip(shared).map(|(products, shared)| products + shared),
            },
            // Without a table of the other products, the roofline has those of the attention too.
            attention: attention.filter(|_| products.is_some() || !has_products),
            // Without one the roofline of products has the shared experts.
            experts: experts.filter(|_| products.is_some()),
            exchange: self.exchange_s(work),
        }
    }

    /// Products of all tokens but those of shared experts; `attention_apart` leaves those of the
    /// attention out too.
    fn products_s(&self, work: StepWork, attention_apart: bool) -> Option<f64> {
        let Self { tables, model, worker, .. } = *self;
        let (hidden, layers) = (f64::from(model.hidden), f64::from(model.layers));
        let tokens = work.tokens().max(1.0);
        let mut seconds = 0.0;
        if !attention_apart {
            for (outputs, inputs) in self.attention_products() {
                let formats = product_formats(model);
                seconds += layers * tables.product_s(formats, tokens, outputs, inputs)?;
            }
        }
        if layers > model.expert_layers() {
            seconds += (layers - model.expert_layers()) * self.gated_s(work, model.inner)?;
        }
        // Quantisers leave the router and the head alone.
        let whole = &["bfloat16"];
        if let Some(experts) = model.experts {
            let router = tables.product_s(whole, tokens, experts.count.into(), hidden)?;
            seconds += model.expert_layers() * router;
        }
        let words = model.head_weights / hidden / f64::from(worker.tensor);
        Some(seconds + tables.product_s(whole, work.answers().max(1.0), words, hidden)?)
    }

    /// Experts that every token goes to; no time if the model has none.
    fn shared_experts_s(&self, work: StepWork) -> Option<f64> {
        match self.model.experts {
            Some(of) if of.shared > 0 => {
                Some(f64::from(of.layers) * self.gated_s(work, of.shared * of.inner)?)
            }
            _ => Some(0.0),
        }
    }

    /// The three products around a gate of this width in one layer; two of them are computed as
    /// one.
    fn gated_s(&self, work: StepWork, inner: u32) -> Option<f64> {
        let hidden = f64::from(self.model.hidden);
        let inner = f64::from(inner) / f64::from(self.worker.tensor);
        let (formats, tokens) = (product_formats(self.model), work.tokens().max(1.0));
        let product = |outputs, inputs| self.tables.product_s(formats, tokens, outputs, inputs);
        Some(product(2.0 * inner, hidden)? + product(hidden, inner)?)
    }

    /// Outputs and inputs of the attention's products in one layer, on one GPU.
    fn attention_products(&self) -> Vec<(f64, f64)> {
        let Self { model, worker, .. } = self;
        let (hidden, tensor) = (f64::from(model.hidden), f64::from(worker.tensor));
        let Some(latent) = model.latent else {
            let queries = model.attention_width / tensor;
            // Heads are split between GPUs, but never one head.
            let keys = f64::from(model.kv_layer_numbers) / tensor.min(model.kv_heads.into());
            return vec![(queries + keys, hidden), (hidden, queries)];
        };
        let heads = f64::from(model.heads) / tensor;
        let [rank, key, rope, value] =
            [latent.rank, latent.key, latent.rope, latent.value].map(f64::from);
        let queries = heads * (key + rope);
        let mut products = vec![(heads * (key + value), rank), (hidden, heads * value)];
        match latent.query_rank.map(f64::from) {
            Some(query) => products.extend([(query + rank + rope, hidden), (queries, query)]),
            None => products.extend([(rank + rope, hidden), (queries, hidden)]),
        }
        products
    }

    fn attention_s(&self, work: StepWork) -> Option<f64> {
        let Self { tables, model, worker, .. } = *self;
        let kv = match self.kv {
            Precision::Bf16 => KvFormat::Bf16,
            Precision::Fp8 => KvFormat::Fp8,
            Precision::Fp4 | Precision::Int4 => return None,
        };
        let heads = model.heads / worker.tensor;
        if let Some(latent) = model.latent {
            let shape = LatentShape { heads, kv, formats: latent_formats(model.weights) };
            let layer_s = match work {
                StepWork::Decode { sequences, context } => {
                    tables.latent_decode_s(shape, sequences.max(1.0), context)
                }
                // Most of the time are products, which only new tokens have.
                StepWork::Prompt { tokens, cached } => {
                    let whole = tables.latent_prompt_s(shape, tokens + cached)?;
                    Some(whole * tokens / (tokens + cached))
                }
            };
            return Some(f64::from(model.layers) * layer_s?).filter(|_| latent == MEASURED_LATENT);
        }
        let shape = |window| AttentionShape {
            heads,
            kv_heads: (model.kv_heads / worker.tensor).max(1),
            head_dim: (model.attention_width / f64::from(model.heads)) as u32,
            window,
            kv,
        };
        let layer_s = |window: u32| match work {
            StepWork::Decode { sequences, context } => {
                tables.decode_attention_s(shape(window), sequences.max(1.0), context)
            }
            StepWork::Prompt { tokens, cached } => {
                let (whole, before) = (tokens + cached, cached / (tokens + cached));
                // Pairs of the new tokens among all pairs; within a window all tokens have as many.
                let share = if window == 0 { 1.0 - before * before } else { 1.0 - before };
                Some(tables.prompt_attention_s(shape(window), whole)? * share)
            }
        };
        let windowed = model.layers - model.full_layers;
        let mut seconds = 0.0;
        for (layers, window) in [(model.full_layers, 0), (windowed, model.window)] {
            if layers > 0 {
                seconds += f64::from(layers) * layer_s(window)?;
            }
        }
        Some(seconds)
    }

    fn experts_s(&self, work: StepWork) -> Option<f64> {
        let Self { tables, model, worker, .. } = self;
        let experts = model.experts?;
        let gpus = worker.gpus() / worker.pipeline;
        let tokens = (work.tokens() * f64::from(worker.data)).max(1.0);
        let time = |tensor: u32, spread: u32| {
            let shape = ExpertShape {
                hidden: model.hidden,
                inner: experts.inner,
                active: experts.active,
                count: experts.count,
                tensor,
                spread,
            };
            tables.experts_s(shape, expert_formats(model), tokens)
        };
        // The commands of a plan spread experts over copies of the attention, and only there.
        let (shared, spread) = (|| time(gpus, 1), || time(1, gpus));
        let layer_s =
            if worker.data > 1 { spread().or_else(shared) } else { shared().or_else(spread) }?;
        Some(f64::from(experts.layers) * layer_s)
    }

    /// Two sums a layer: one over the GPUs that share the attention; the other over those that
    /// share the layer's second half, which with experts are all.
    fn exchange_s(&self, work: StepWork) -> Option<f64> {
        let Self { tables, model, worker, .. } = self;
        let gpus = worker.gpus() / worker.pipeline;
        if gpus == 1 {
            return None;
        }
        let numbers = work.tokens().max(1.0) * f64::from(model.hidden);
        let expert_layers = model.expert_layers();
        let mut seconds = 0.0;
        if worker.tensor > 1 {
            let sums = 2.0 * f64::from(model.layers) - expert_layers;
            seconds += sums * tables.reduce_s(worker.tensor, numbers)?;
        }
        if expert_layers > 0.0 {
            seconds += expert_layers * tables.reduce_s(gpus, numbers * f64::from(worker.data))?;
        }
        Some(seconds)
    }
}

/// Names of the formats of a model's products in tables; the first that a table has counts.
fn product_formats(model: &ModelShape) -> &'static [&'static str] {
    match model.weights {
        Precision::Bf16 => &["bfloat16"],
        // Quantisers to 4 bits mostly leave all but the experts alone.
        Precision::Int4 if model.experts.is_some() => &["bfloat16"],
        Precision::Fp4 if model.experts.is_some() => &["nvfp4", "bfloat16"],
        Precision::Fp8 if model.has_block_scales => &["fp8_block", "fp8"],
        Precision::Fp8 => &["fp8", "fp8_block"],
        Precision::Fp4 => &["nvfp4"],
        Precision::Int4 => &["int4_wo"],
    }
}

/// Names of the formats of a model's experts.
fn expert_formats(model: &ModelShape) -> &'static [&'static str] {
    match model.weights {
        Precision::Fp4 => &["nvfp4", "w4a8_mxfp4_mxfp8", "w4a16_mxfp4"],
        Precision::Int4 => &["int4_wo"],
        Precision::Bf16 | Precision::Fp8 => product_formats(model),
    }
}

/// Names of the formats of latent attention's products, which quantisers of integers leave alone.
fn latent_formats(weights: Precision) -> &'static [&'static str] {
    match weights {
        Precision::Bf16 | Precision::Int4 => &["bfloat16"],
        Precision::Fp8 => &["fp8_block"],
        Precision::Fp4 => &["nvfp4"],
    }
}

#[cfg(test)]
#[path = "tabled_tests.rs"]
pub(crate) mod tests;
