//! The inner loops: products of rows with panels of weights, and what is done element by element.
//!
//! **The order of every sum is fixed.** An element of a product is one chain of multiply-adds over
//! the depth, from first to last, in one lane of a vector. The number of rows computed together,
//! the division of rows and panels among threads, and the width of the machine's vectors decide
//! only which chains run side by side. So the result for a row is the same, to the bit, alone or in
//! any batch. (Machines without fused multiply-add round differently from those with it.)
//!
//! The only unsafe code of the engine is here: vector instructions, and threads that write
//! different columns of the same rows.

#![allow(unsafe_code)]

mod elementwise;
mod product;
#[cfg(test)]
mod tests;
mod vector;

pub(super) use elementwise::{rms_norm, rms_norm_in_place, softmax, swiglu};
pub(super) use product::{Out, Panels, Rows, multiply, multiply_parallel};

/// Weights side by side in a panel.
pub(super) const LANES: usize = 16;

/// Vector instructions that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Isa {
    /// All that this machine has, the best first.
    pub(super) fn available() -> Vec<Self> {
        let mut available = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fma && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                available.push(Self::Avx512);
            }
            if fma {
                available.push(Self::Avx2);
            }
        }
        available.push(Self::Portable);
        available
    }

    /// The best that this machine has.
    pub(super) fn detect() -> Self {
        Self::available()[0]
    }
}
