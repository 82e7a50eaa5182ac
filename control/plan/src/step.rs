//! Time of an engine's steps: a roofline with few fitted coefficients, or measured times.
//!
//! A step of decoding reads all weights once and the KV of every sequence; a step over a prompt
//! multiplies every weight with every token. What the hardware could do is divided by the share
//! that kernels reach, and the engine's own time for each layer is added ([`StepFit`]). Where tables
//! have an operation, their time is in the place of the roofline's. `docs/benchmarks/plan.md` says
//! how far the results are from measured times.

use crate::engine::StepFit;
use crate::gpu::Gpu;
use crate::model::ModelShape;
use crate::operation::{OperationKind, OperationTime, StepWork};
use crate::precision::Precision;
use crate::tabled::{TabledTimes, TabledWorker};
use crate::worker::WorkerShape;
use stator_tables::EngineTables;
use stator_timing::Timing;

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
    /// Times of the engine's operations that were measured one by one; the coefficients have the
    /// rest.
    pub tables: Option<&'a EngineTables>,
}

impl<'a> StepModel<'a> {
    /// A model on a worker, with the coefficients of its engine.
    pub fn new(model: &'a ModelShape, gpu: &'a Gpu, kv: Precision, worker: WorkerShape) -> Self {
        Self { model, gpu, kv, worker, fit: worker.engine.fit(), measured: None, tables: None }
    }

    /// Replaces the step times by those that were measured on such a worker, if some were.
    pub fn measured(self, measured: Option<Timing>) -> Self {
        Self { measured, ..self }
    }

    /// Adds the measured times of operations, if there are some, which go before the roofline's.
    pub fn tabled(self, tables: Option<&'a EngineTables>) -> Self {
        Self { tables, ..self }
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
        self.step_s(self.decode_work(sequences, context))
    }

    /// Seconds of a step over `tokens` tokens of one prompt that follow `cached` others.
    pub fn prefill_s(&self, tokens: f64, cached: f64) -> f64 {
        if let Some(timing) = self.measured {
            let pairs = tokens * (cached + tokens / 2.0);
            return timing.step_s + timing.token_s * tokens + timing.prefill_pair_s * pairs;
        }
        self.step_s(StepWork::Prompt { tokens, cached })
    }

    /// Operations of a step in which `sequences` of the worker decode.
    pub(crate) fn decode_operations(&self, sequences: f64, context: f64) -> [OperationTime; 5] {
        self.operations(self.decode_work(sequences, context))
    }

    /// Operations of a step over `tokens` tokens of one prompt that follow `cached` others.
    pub(crate) fn prompt_operations(&self, tokens: f64, cached: f64) -> [OperationTime; 5] {
        self.operations(StepWork::Prompt { tokens, cached })
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
        let decode_kv_token_s = ((full - shallow) / (sequences * context / 2.0)).max(0.0);
        // A worker with copies of the attention, or with stages, computes several prompts at once.
        let at_once = f64::from(pipeline * data);
        let (long, short) = (self.prefill_s(prompt, 0.0), self.prefill_s(prompt / 2.0, 0.0));
        // t(n) = a + b n + c n²/2, through two lengths and the length 0.
        let start = self.prefill_s(1.0, 0.0);
        let bend = (4.0 * (long - 2.0 * short + start) / (prompt * prompt)).max(0.0);
        // Measured kernels may do better with longer prompts: then a straight line.
        let slope = (long - start) / prompt - bend * prompt / 2.0;
        let token_s = slope.max(0.0) / at_once;
        let step_s = full - sequences * (token_s + decode_kv_token_s * context);
        Timing {
            step_s: step_s.max(0.0),
            token_s,
            prefill_pair_s: bend / at_once,
            decode_kv_token_s,
        }
    }

    /// With a pipeline the sequences take turns in its stages, so that each copy of the attention
    /// has its part of them in one of the stages.
    fn decode_work(&self, sequences: f64, context: f64) -> StepWork {
        let WorkerShape { pipeline, data, .. } = self.worker;
        StepWork::Decode { sequences: sequences / f64::from(pipeline * data), context }
    }

    fn step_s(&self, work: StepWork) -> f64 {
        self.operations(work).iter().map(|operation| operation.seconds).sum()
    }

    fn operations(&self, work: StepWork) -> [OperationTime; 5] {
        let Self { model, worker, kv, .. } = *self;
        let tables = self.tables.map(|tables| TabledWorker { tables, model, worker, kv });
        let tabled = tables.map_or_else(TabledTimes::default, |tables| tables.times(work));
        let of = |kind, tabled: Option<f64>, roofline: f64| OperationTime {
            kind,
            seconds: tabled.unwrap_or(roofline),
            is_tabled: tabled.is_some(),
        };
        let overhead = tabled.products.map(|_| self.tabled_overhead_s(work));
        let layers = f64::from(model.layers);
        [
            of(OperationKind::Products, tabled.products, self.products_s(work)),
            of(OperationKind::Attention, tabled.attention, self.attention_s(work)),
            of(OperationKind::Experts, tabled.experts, self.experts_s(work)),
            of(OperationKind::Exchange, tabled.exchange, self.exchange_s(work.tokens())),
            of(OperationKind::Overhead, overhead, layers * self.fit.overhead.layer_s),
        ]
    }

    /// Seconds of what no table has: norms and activations, which read and write memory, and the
    /// engine between operations.
    fn tabled_overhead_s(&self, work: StepWork) -> f64 {
        let Self { model, worker, .. } = self;
        let (layers, expert_layers) = (f64::from(model.layers), model.expert_layers());
        let norms = 8.0 * f64::from(model.hidden) * layers;
        // Tables of experts include their activations.
        let activations =
            3.0 * f64::from(model.inner) * (layers - expert_layers) / f64::from(worker.tensor);
        let bytes = (norms + activations) * work.tokens() * Precision::Bf16.bytes();
        layers * self.fit.overhead.tabled_layer_s
            + bytes / (self.gpu.bandwidth * self.fit.shares.weights)
    }

    /// Share of the arithmetic that a step's products reach.
    fn flops_share(&self, work: StepWork) -> f64 {
        match work {
            StepWork::Prompt { .. } => self.fit.shares.prefill,
            StepWork::Decode { .. } => self.fit.shares.decode,
        }
    }

    fn products_s(&self, work: StepWork) -> f64 {
        let Self { model, gpu, worker, .. } = self;
        let tensor = f64::from(worker.tensor);
        let flops = gpu.flops(model.weights) * self.flops_share(work);
        let table = model.head_weights * Precision::Bf16.bytes();
        let bytes = (model.dense_weights * model.weights.bytes() + table) / tensor;
        let products = 2.0 * model.dense_weights * work.tokens() / tensor;
        (bytes / (gpu.bandwidth * self.fit.shares.weights)).max(products / flops)
    }

    fn attention_s(&self, work: StepWork) -> f64 {
        let Self { model, gpu, worker, .. } = self;
        match work {
            StepWork::Decode { sequences, context } => {
                let bytes = sequences * self.kv_bytes(context) * f64::from(worker.pipeline);
                bytes / (gpu.bandwidth * self.fit.shares.kv)
            }
            // Attention is computed in 16 bits whatever the weights are.
            StepWork::Prompt { tokens, cached } => {
                let pairs = tokens * (cached + tokens / 2.0);
                let width = f64::from(model.layers) * model.attention_width;
                let products = 4.0 * width * self.window_share(pairs / tokens) * pairs;
                let flops = gpu.flops(Precision::Bf16) * self.fit.shares.prefill;
                products / f64::from(worker.tensor) / flops
            }
        }
    }

    /// Share of the pairs of a prompt that are within the window, over all layers; a token has
    /// `mean` tokens before it.
    fn window_share(&self, mean: f64) -> f64 {
        let model = self.model;
        let windowed = f64::from(model.layers - model.full_layers) / f64::from(model.layers);
        if windowed == 0.0 || mean == 0.0 {
            return 1.0;
        }
        1.0 - windowed * (1.0 - (f64::from(model.window) / mean).min(1.0))
    }

    fn experts_s(&self, work: StepWork) -> f64 {
        let Some(experts) = self.model.experts else { return 0.0 };
        let bandwidth = self.gpu.bandwidth * self.fit.shares.weights;
        let flops = self.gpu.flops(self.model.weights) * self.flops_share(work);
        let WorkerShape { pipeline, data, .. } = self.worker;
        let gpus = f64::from(self.worker.gpus() / pipeline);
        let tokens = work.tokens() * f64::from(data);
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
