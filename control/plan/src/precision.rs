//! Numbers that weights and KV are kept in.

use serde::Serialize;

/// A format of weights or of KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 16 bits, also for float16.
    Bf16,
    /// 8 bits.
    Fp8,
    /// 4 bits with a scale for each 16 or 32 numbers: NVFP4 and MXFP4.
    Fp4,
    /// 4-bit integers that are unpacked to bf16: AWQ, GPTQ and the like.
    Int4,
}

impl Precision {
    /// Bytes per number, scales included.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Bf16 => 2.0,
            Self::Fp8 => 1.0,
            // A byte of scale for 16 numbers.
            Self::Fp4 => 0.5625,
            // Two bytes of scale for 64 numbers or more.
            Self::Int4 => 0.53,
        }
    }

    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Fp4 => "fp4",
            Self::Int4 => "int4",
        }
    }
}
