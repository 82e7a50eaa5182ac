//! Time of an engine's steps: a roofline with few fitted coefficients.
//!
//! A step of decoding reads all weights once and the KV of every sequence; a step over a prompt
//! multiplies every weight with every token. What the hardware could do is divided by the share
//! that kernels reach, and the engine's own time for each layer is added ([`StepFit`]). `docs/benchmarks/plan.md` says how far the result is from measured times.

use crate::engine::{EngineKind, StepFit};
use crate::gpu::Gpu;
use crate::model::ModelShape;
use crate::precision::Precision;
use serde::Serialize;
use stator_timing::Timing;

/// An engine over its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerShape {
    /// The engine.
    pub engine: EngineKind,
    /// GPUs that share every layer.
    pub tensor: u32,
    /// Groups of GPUs with a part of the layers each.
    pub pipeline: u32,
    /// Copies of the attention, each with sequences of its own; experts are spread over all.
    pub data: u32,
}

/// A model on one worker.
#[derive(Clone, Copy, Debug)]
pub struct StepModel<'a> {
    /// The model.
    pub model: &'a ModelShape,
    /// Its hardware.
    pub gpu: &'a Gpu,
    /// Format of the KV.
    pub kv: Precision,
    /// The worker.
    pub worker: WorkerShape,
    /// The engine's coefficients.
    pub fit: StepFit,
    /// Times that were measured on such a worker, in the place of the coefficients.
    pub measured: Option<Timing>,
}

/// Work of one step.
#[derive(Clone, Copy)]
struct StepWork {
    /// Tokens that each copy of the attention computes.
    tokens: f64,
    /// Bytes of KV that each GPU reads.
    kv_bytes: f64,
    /// Pairs of a prompt's token and a token before it, of each copy of the attention.
    pairs: f64,
    /// Share of the arithmetic that its products reach.
    flops_share: f64,
}

impl WorkerShape {
    /// GPUs of the worker.
    pub fn gpus(self) -> u32 {
        self.tensor * self.pipeline * self.data
    }

    /// Its parallelism in a word: `tp4`, `tp2 pp2`, `tp1 dp8`.
    pub fn parallelism(self) -> String {
        let mut text = format!("tp{}", self.tensor);
        for (name, ways) in [("pp", self.pipeline), ("dp", self.data)] {
            if ways > 1 {
                text += &format!(" {name}{ways}");
            }
        }
        text
    }
}

impl<'a> StepModel<'a> {
    /// A model on a worker, with the coefficients of its engine.
    pub fn new(model: &'a ModelShape, gpu: &'a Gpu, kv: Precision, worker: WorkerShape) -> Self {
        Self { model, gpu, kv, worker, fit: worker.engine.fit(), measured: None }
    }

    /// These step times with what was measured on such a worker, if anything was.
    pub fn measured(self, measured: Option<Timing>) -> Self {
        Self { measured, ..self }
    }

    /// Bytes of one GPU's part of a sequence's KV at this length.
    pub fn kv_bytes(&self, tokens: f64) -> f64 {
        // Heads are split between GPUs, but never one head.
        let ways = self.worker.tensor.min(self.model.kv_heads) * self.worker.pipeline;
        self.model.kv_numbers(tokens) * self.kv.bytes() / f64::from(ways)
    }

    /// Bytes of one GPU's part of the weights.
    pub fn weight_bytes(&self) -> f64 {
        let Self { model, worker, .. } = self;
        let table = model.embedding_weights * Precision::Bf16.bytes() / f64::from(worker.tensor);
        let bytes = model.weights.bytes();
        let dense = model.dense_weights * bytes / f64::from(worker.tensor * worker.pipeline);
        let experts = model.experts.map_or(0.0, |experts| {
            f64::from(experts.layers) * f64::from(experts.count) * experts.weights * bytes
        });
        dense + table + experts / f64::from(worker.gpus())
    }

    /// Seconds of a step in which `sequences` of the worker decode, each with `context` tokens.
    ///
    /// With a pipeline the sequences take turns in its stages, so that each of them gets a token
    /// in the time of one pass of its part of the batch.
    pub fn decode_s(&self, sequences: f64, context: f64) -> f64 {
        if let Some(timing) = self.measured {
            let sequence_s = timing.token_s + timing.decode_kv_token_s * context;
            return timing.step_s + sequences * sequence_s;
        }
        let WorkerShape { pipeline, data, .. } = self.worker;
        let batch = sequences / f64::from(pipeline * data);
        self.step_s(StepWork {
            tokens: batch,
            kv_bytes: batch * self.kv_bytes(context) * f64::from(pipeline),
            pairs: 0.0,
            flops_share: self.fit.shares.decode,
        })
    }

    /// Seconds of a step over `tokens` tokens of one prompt that follow `cached` others.
    pub fn prefill_s(&self, tokens: f64, cached: f64) -> f64 {
        if let Some(timing) = self.measured {
            let pairs = tokens * (cached + tokens / 2.0);
            return timing.step_s + timing.token_s * tokens + timing.prefill_pair_s * pairs;
        }
        self.step_s(StepWork {
            tokens,
            kv_bytes: 0.0,
            pairs: tokens * (cached + tokens / 2.0),
            flops_share: self.fit.shares.prefill,
        })
    }

    /// Step times as straight lines through the step of `sequences` and of a prompt of
    /// `prompt` tokens, as the simulated fleet wants them.
    pub fn timing(&self, sequences: f64, context: f64, prompt: f64) -> Timing {
        if let Some(timing) = self.measured {
            return timing;
        }
        let WorkerShape { pipeline, data, .. } = self.worker;
        let full = self.decode_s(sequences, context);
        let shallow = self.decode_s(sequences, context / 2.0);
        let decode_kv_token_s = (full - shallow) / (sequences * context / 2.0);
        // A worker with copies of the attention, or with stages, computes several prompts at once.
        let at_once = f64::from(pipeline * data);
        let (long, short) = (self.prefill_s(prompt, 0.0), self.prefill_s(prompt / 2.0, 0.0));
        // t(n) = a + b n + c n²/2, through two lengths and the length 0.
        let start = self.prefill_s(1.0, 0.0);
        let slope = (4.0 * (short - start) - (long - start)) / prompt;
        let bend = 4.0 * (long - 2.0 * short + start) / (prompt * prompt);
        let token_s = slope.max(0.0) / at_once;
        let step_s = full - sequences * (token_s + decode_kv_token_s * context);
        Timing {
            step_s: step_s.max(0.0),
            token_s,
            prefill_pair_s: bend.max(0.0) / at_once,
            decode_kv_token_s: decode_kv_token_s.max(0.0),
        }
    }

    fn step_s(&self, work: StepWork) -> f64 {
        let Self { model, gpu, worker, .. } = self;
        let (layers, tensor) = (f64::from(model.layers), f64::from(worker.tensor));
        let flops = gpu.flops(model.weights) * work.flops_share;
        let bandwidth = gpu.bandwidth * self.fit.shares.weights;
        let table = model.head_weights * Precision::Bf16.bytes();
        let bytes = (model.dense_weights * model.weights.bytes() + table) / tensor;
        let products = 2.0 * model.dense_weights * work.tokens / tensor;
        let mut seconds = (bytes / bandwidth).max(products / flops);
        seconds += self.experts_s(work.tokens, bandwidth, flops);
        seconds += work.kv_bytes / (gpu.bandwidth * self.fit.shares.kv);
        // Attention is computed in 16 bits whatever the weights are.
        let attention = 4.0 * layers * model.attention_width * self.window_share(work) * work.pairs;
        seconds += attention / tensor / (gpu.flops(Precision::Bf16) * self.fit.shares.prefill);
        seconds + layers * self.fit.overhead.layer_s + self.exchange_s(work.tokens)
    }

    /// Share of the pairs of a prompt that are within the window, over all layers.
    fn window_share(&self, work: StepWork) -> f64 {
        let model = self.model;
        let windowed = f64::from(model.layers - model.full_layers) / f64::from(model.layers);
        if windowed == 0.0 || work.pairs == 0.0 {
            return 1.0;
        }
        let mean = work.pairs / work.tokens;
        1.0 - windowed * (1.0 - (f64::from(model.window) / mean).min(1.0))
    }

    fn experts_s(&self, tokens: f64, bandwidth: f64, flops: f64) -> f64 {
        let Some(experts) = self.model.experts else { return 0.0 };
        let WorkerShape { pipeline, data, .. } = self.worker;
        let gpus = f64::from(self.worker.gpus() / pipeline);
        let tokens = tokens * f64::from(data);
        let (count, active) = (f64::from(experts.count), f64::from(experts.active));
        let layers = f64::from(experts.layers);
        // Experts that at least one of the tokens goes to.
        let read = count * (1.0 - (1.0 - active / count).powf(tokens));
        let bytes = layers * experts.weights * read * self.model.weights.bytes() / gpus;
        let products = 2.0 * layers * experts.weights * active * tokens / gpus;
        self.fit.shares.imbalance * (bytes / bandwidth).max(products / flops)
            + layers * self.fit.overhead.expert_layer_s
    }

    /// Two all-reduces a layer between the GPUs of a stage.
    fn exchange_s(&self, tokens: f64) -> f64 {
        let gpus = self.worker.gpus() / self.worker.pipeline;
        if gpus == 1 {
            return 0.0;
        }
        let width = tokens * f64::from(self.model.hidden) * Precision::Bf16.bytes();
        let moved = 2.0 * width * f64::from(gpus - 1) / f64::from(gpus);
        let reduce = self.fit.overhead.reduce_s + moved / (self.gpu.link * self.fit.shares.link);
        2.0 * f64::from(self.model.layers) * reduce
    }
}
