//! Element-wise operations, and sums within a row.

use super::{Isa, LANES};
use crate::math;

/// Turns scores into weights, e to the power of the score less the greatest, in place; returns
/// their sum. A score of minus infinity weighs 0. The length is a multiple of [`LANES`].
pub(in super::super) fn softmax(isa: Isa, scores: &mut [f32]) -> f32 {
    match isa {
        // SAFETY: the machine has the instructions of `isa`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { softmax_avx512(scores) },
        // SAFETY: the same.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { softmax_avx2(scores) },
        Isa::Portable => softmax_body::<false>(scores),
    }
}

/// `gate * up / (1 + e^-gate)`, element by element, into `gate`.
pub(in super::super) fn swiglu(isa: Isa, gate: &mut [f32], up: &[f32]) {
    match isa {
        // SAFETY: the machine has the instructions of `isa`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { swiglu_avx512(gate, up) },
        // SAFETY: the same.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { swiglu_avx2(gate, up) },
        Isa::Portable => swiglu_body::<false>(gate, up),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw")]
fn softmax_avx512(scores: &mut [f32]) -> f32 {
    softmax_body::<true>(scores)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn softmax_avx2(scores: &mut [f32]) -> f32 {
    softmax_body::<true>(scores)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw")]
fn swiglu_avx512(gate: &mut [f32], up: &[f32]) {
    swiglu_body::<true>(gate, up);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn swiglu_avx2(gate: &mut [f32], up: &[f32]) {
    swiglu_body::<true>(gate, up);
}

#[inline(always)]
fn softmax_body<const FMA: bool>(scores: &mut [f32]) -> f32 {
    let (lanes, rest) = scores.as_chunks_mut::<LANES>();
    assert!(rest.is_empty(), "scores in whole panels");
    let mut greatest = [f32::NEG_INFINITY; LANES];
    for lanes in lanes.iter() {
        for (greatest, score) in greatest.iter_mut().zip(lanes) {
            *greatest = if *score > *greatest { *score } else { *greatest };
        }
    }
    let max = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for lanes in lanes {
        for (sum, score) in sums.iter_mut().zip(lanes) {
            *score = math::exp::<FMA>(*score - max);
            *sum += *score;
        }
    }
    sum_lanes(sums)
}

#[inline(always)]
fn swiglu_body<const FMA: bool>(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        // Below this the quotient is as good as 0, and e to the power of more is not finite.
        let inside = if *gate < -88.0 { -88.0 } else { *gate };
        *gate = inside / (1.0 + math::exp::<FMA>(-inside)) * up;
    }
}

/// Root mean square normalisation of a row, into `out`.
pub(in super::super) fn rms_norm(row: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = rms_scale(row, eps);
    for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
        *out = value * scale * weight;
    }
}

/// Normalises a row like [`rms_norm`], in place.
pub(in super::super) fn rms_norm_in_place(row: &mut [f32], weight: &[f32], eps: f32) {
    let scale = rms_scale(row, eps);
    for (value, weight) in row.iter_mut().zip(weight) {
        *value = *value * scale * weight;
    }
}

fn rms_scale(row: &[f32], eps: f32) -> f32 {
    let (lanes, rest) = row.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for lanes in lanes {
        for (sum, value) in sums.iter_mut().zip(lanes) {
            *sum += value * value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += value * value;
    }
    1.0 / (sum_lanes(sums) / row.len() as f32 + eps).sqrt()
}

/// Adds up the lanes, always in the same order.
#[inline(always)]
fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}
