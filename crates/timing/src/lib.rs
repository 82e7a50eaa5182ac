//! Times of an engine's steps on hardware that is not here.
//!
//! The simulated engine and the simulated fleet share this model, so that the fleet's predictions
//! agree with the engine's times.

mod profile;

pub use profile::{DecodeTime, EngineProfile, PROFILE_VERSION, PrefillTime, TooFewTimes};

use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Duration;

/// A roofline of one engine step, in seconds.
///
/// A step reads the weights once; each prompt token adds its matrix products and its attention to
/// the tokens before it, which are bound by arithmetic; each decoding sequence adds its matrix
/// products and the reading of its KV, which is bound by memory. The parts are added, not
/// overlapped, which is somewhat slow for a step that prefills and decodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Any step: reading the weights, launching, and communication between GPUs.
    pub step_s: f64,
    /// Each token that is computed: the matrix products.
    pub token_s: f64,
    /// Each pair of a prompt token and a token that it attends to.
    pub prefill_pair_s: f64,
    /// Each token of KV that a decoding sequence reads.
    pub decode_kv_token_s: f64,
}

impl Timing {
    /// Takes no time at all.
    pub const NONE: Self =
        Self { step_s: 0.0, token_s: 0.0, prefill_pair_s: 0.0, decode_kv_token_s: 0.0 };

    /// Every step takes the same time, whatever is in it.
    pub fn fixed(step: Duration) -> Self {
        Self { step_s: step.as_secs_f64(), ..Self::NONE }
    }

    /// The timing of a preset, by its name in [`PRESETS`] or `none`.
    pub fn preset(name: &str) -> Option<Self> {
        if name == "none" {
            return Some(Self::NONE);
        }
        PRESETS.iter().find(|preset| preset.name == name).map(Preset::timing)
    }

    /// Checks that all times are usable.
    ///
    /// # Errors
    ///
    /// The field, its value and what it may be.
    pub fn check(&self) -> Result<(), String> {
        let Self { step_s, token_s, prefill_pair_s, decode_kv_token_s } = *self;
        let fields = [
            ("step_s", step_s),
            ("token_s", token_s),
            ("prefill_pair_s", prefill_pair_s),
            ("decode_kv_token_s", decode_kv_token_s),
        ];
        match fields.iter().find(|(_, value)| !(0.0..=60.0).contains(value)) {
            Some((field, value)) => Err(format!("{field}: {value} is not in 0..=60")),
            None => Ok(()),
        }
    }

    /// Time of a step that computes these tokens, one range of positions per sequence.
    pub fn step(&self, sequences: impl IntoIterator<Item = Range<usize>>) -> Duration {
        let mut seconds = self.step_s;
        for Range { start, end } in sequences {
            let tokens = (end - start) as f64;
            seconds += self.token_s * tokens;
            if tokens == 1.0 {
                seconds += self.decode_kv_token_s * end as f64;
            } else {
                // Token i attends to i + 1 tokens: the sum of start + 1 ..= end.
                let pairs = tokens * (start + end + 1) as f64 / 2.0;
                seconds += self.prefill_pair_s * pairs;
            }
        }
        Duration::from_secs_f64(seconds)
    }
}

/// An accelerator, as its maker describes it.
#[derive(Clone, Copy, Debug)]
struct Gpu {
    /// Memory bandwidth, bytes per second.
    bandwidth: f64,
    /// Dense bf16 arithmetic, operations per second.
    flops: f64,
}

/// 80 GB SXM. Source: NVIDIA A100 datasheet.
const A100: Gpu = Gpu { bandwidth: 2.039e12, flops: 312e12 };
/// 80 GB SXM. Source: NVIDIA H100 datasheet; its figure with sparsity is halved.
const H100: Gpu = Gpu { bandwidth: 3.35e12, flops: 989e12 };
/// 141 GB SXM. Source: NVIDIA H200 datasheet; its figure with sparsity is halved.
const H200: Gpu = Gpu { bandwidth: 4.8e12, flops: 989e12 };
/// 180 GB SXM. Source: NVIDIA DGX B200 datasheet, an eighth of it, without sparsity.
const B200: Gpu = Gpu { bandwidth: 8.0e12, flops: 2_250e12 };

/// A model in bf16, as its `config.json` describes it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    parameters: f64,
    layers: f64,
    /// Query heads times head dimension, and the same of the key-value heads.
    query_width: f64,
    kv_width: f64,
}

/// Source: `config.json` of Meta Llama 3.1 8B.
const LLAMA_8B: Shape =
    Shape { parameters: 8.03e9, layers: 32.0, query_width: 4096.0, kv_width: 1024.0 };
/// Source: `config.json` of Meta Llama 3.1 70B.
const LLAMA_70B: Shape =
    Shape { parameters: 70.6e9, layers: 80.0, query_width: 8192.0, kv_width: 1024.0 };
/// Source: `config.json` of Qwen 2.5 32B.
const QWEN_32B: Shape =
    Shape { parameters: 32.8e9, layers: 64.0, query_width: 5120.0, kv_width: 1024.0 };

/// Share of the memory bandwidth that good kernels reach in decode. An assumption, at the upper
/// end of what published roofline studies of LLM inference report (60 to 80 percent).
const BANDWIDTH_SHARE: f64 = 0.75;
/// Share of the peak arithmetic that good kernels reach in prefill. An assumption, in the middle
/// of what is published for dense bf16 prefill (40 to 60 percent).
const FLOPS_SHARE: f64 = 0.5;
/// Launching a step and sampling. An assumption: the host's part with captured graphs.
const LAUNCH_S: f64 = 0.5e-3;
/// One all-reduce of a decode step between GPUs of one node; a layer needs two. An assumption:
/// the latency of a small message over NVLink.
const ALL_REDUCE_S: f64 = 8e-6;

/// A model on one or more GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    gpu: Gpu,
    gpus: f64,
    shape: Shape,
}

/// The known presets: `tpN` is tensor-parallel over N GPUs.
pub const PRESETS: &[Preset] = &[
    Preset { name: "a100-llama-8b", gpu: A100, gpus: 1.0, shape: LLAMA_8B },
    Preset { name: "h100-llama-8b", gpu: H100, gpus: 1.0, shape: LLAMA_8B },
    Preset { name: "h200-llama-8b", gpu: H200, gpus: 1.0, shape: LLAMA_8B },
    Preset { name: "h100-llama-70b-tp4", gpu: H100, gpus: 4.0, shape: LLAMA_70B },
    Preset { name: "h200-llama-70b-tp4", gpu: H200, gpus: 4.0, shape: LLAMA_70B },
    Preset { name: "b200-qwen-32b", gpu: B200, gpus: 1.0, shape: QWEN_32B },
];

impl Preset {
    /// Bytes of KV per token: keys and values of every layer in bf16. Llama 8B: 131,072.
    pub fn kv_token_bytes(&self) -> f64 {
        2.0 * self.shape.layers * self.shape.kv_width * 2.0
    }

    /// The roofline.
    ///
    /// - `step`: 2 bytes per parameter through the memory, the launch, two all-reduces per layer.
    ///   Llama 8B on H100: 16.06 GB / 2.51 TB/s + 0.5 ms = 6.9 ms.
    /// - `token`: 2 operations per parameter. Llama 8B on H100: 16.06 G / 494 T/s = 32 us.
    /// - `prefill_pair`: a dot product and a weighted sum over the query width, 2 operations per
    ///   element each, in every layer. Llama 8B on H100: 524,288 / 494 T/s = 1.1 ns.
    /// - `decode_kv_token`: the KV bytes through the memory. Llama 8B on H100: 52 ns.
    pub fn timing(&self) -> Timing {
        let bandwidth = self.gpu.bandwidth * BANDWIDTH_SHARE * self.gpus;
        let flops = self.gpu.flops * FLOPS_SHARE * self.gpus;
        let shape = &self.shape;
        let reduces = if self.gpus > 1.0 { 2.0 * shape.layers } else { 0.0 };
        Timing {
            step_s: 2.0 * shape.parameters / bandwidth + LAUNCH_S + reduces * ALL_REDUCE_S,
            token_s: 2.0 * shape.parameters / flops,
            prefill_pair_s: 4.0 * shape.layers * shape.query_width / flops,
            decode_kv_token_s: self.kv_token_bytes() / bandwidth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::once;

    #[test]
    fn documented_figures_hold() {
        let timing = Timing::preset("h100-llama-8b").expect("a known preset");
        let check = |value: f64, expected: f64| {
            assert!((value / expected - 1.0).abs() < 0.02, "{value} is not about {expected}");
        };
        check(timing.step_s, 6.9e-3);
        check(timing.token_s, 32.5e-6);
        check(timing.prefill_pair_s, 1.06e-9);
        check(timing.decode_kv_token_s, 52.2e-9);
    }

    #[test]
    fn a_chunked_prompt_costs_the_same_attention() {
        let timing = Timing { prefill_pair_s: 1e-6, ..Timing::NONE };
        let whole = timing.step(once(0..600));
        let chunks = timing.step(once(0..100)) + timing.step(once(100..600));
        assert_eq!(whole, chunks);
        assert_eq!(whole, Duration::from_micros(600 * 601 / 2));
    }

    #[test]
    fn decode_grows_with_batch_and_active_kv() {
        let timing = Timing::preset("h100-llama-8b").expect("a known preset");
        let one = timing.step(once(999..1000));
        let two = timing.step([999..1000, 999..1000]);
        let long = timing.step(once(99_999..100_000));
        assert!(one < two && two < long);
    }

    #[test]
    fn a_fixed_step_takes_its_time_and_none_takes_none() {
        let step = Duration::from_millis(5);
        assert_eq!(Timing::fixed(step).step([0..512, 7..8]), step);
        assert_eq!(
            Timing::preset("none").expect("a known preset").step(once(0..512)),
            Duration::ZERO
        );
        assert_eq!(Timing::preset("abacus"), None);
    }
}
