//! Engines, and how far each stays behind the hardware.

use serde::Serialize;

/// An engine that a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

/// Coefficients of the time of an engine's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFit {
    /// Shares that kernels reach, the same for all engines.
    pub shares: HardwareShares,
    /// Overhead that the engine adds.
    pub overhead: EngineOverhead,
}

/// Overhead that an engine adds to the roofline of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineOverhead {
    /// Launching and scheduling, seconds a layer.
    pub layer_s: f64,
    /// One all-reduce of a small batch, seconds; a layer has two.
    pub reduce_s: f64,
    /// Choosing experts and moving tokens to them, seconds a layer with experts.
    pub expert_layer_s: f64,
    /// Launching norms and activations beside operations whose times come from tables, seconds a
    /// layer.
    pub tabled_layer_s: f64,
}

/// Shares of what the datasheet promises that kernels reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HardwareShares {
    /// Of the memory bandwidth, reading weights.
    pub weights: f64,
    /// Of the memory bandwidth, reading KV.
    pub kv: f64,
    /// Of the arithmetic, in a step of decoding.
    pub decode: f64,
    /// Of the arithmetic, in a step over a prompt.
    pub prefill: f64,
    /// Of the link between GPUs.
    pub link: f64,
    /// Tokens that the busiest GPU's experts get, as a multiple of an even spread.
    pub imbalance: f64,
}

/// Shares that kernels reach, whatever the engine. Source: `examples/measured.rs`, fitted to half of the
/// measured rows of models without experts on H100; the imbalance to a fifth of those with experts.
const SHARES: HardwareShares = HardwareShares {
    weights: 0.979,
    kv: 0.866,
    decode: 0.600,
    prefill: 0.743,
    link: 0.6,
    imbalance: 1.314,
};

/// Microseconds of two norms and an activation: three launches of 3 µs, as the AIConfigurator counts
/// them.
const LAUNCHES: f64 = 9.0;

impl EngineKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Vllm, Self::Sglang, Self::Trtllm];

    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }

    /// Its coefficients. Source: as of the shares.
    pub fn fit(self) -> StepFit {
        let microseconds =
            |[layer, reduce, expert_layer]: [f64; 3], tabled_layer: f64| EngineOverhead {
                layer_s: layer * 1e-6,
                reduce_s: reduce * 1e-6,
                expert_layer_s: expert_layer * 1e-6,
                tabled_layer_s: tabled_layer * 1e-6,
            };
        let overhead = match self {
            Self::Vllm => microseconds([76.4, 1.72, 23.2], LAUNCHES),
            Self::Sglang => microseconds([27.2, 4.45, 83.2], LAUNCHES),
            // TensorRT-LLM fuses them with the operations beside them.
            Self::Trtllm => microseconds([66.5, 4.15, 4.16], 0.0),
        };
        StepFit { shares: SHARES, overhead }
    }
}
