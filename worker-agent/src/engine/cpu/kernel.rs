//! The inner loops: products of rows with panels of weights, and softmax.
//!
//! **The order of every sum is fixed.** An element of a product is one chain of multiply-adds over
//! the depth, from first to last, in one lane of a vector. How many rows are computed together,
//! how rows and panels are divided among threads, and how wide the machine's vectors are decides
//! only which chains run side by side. So the result for a row is the same, to the bit, alone or
//! in any batch. (Machines without fused multiply-add round differently from those with it.)
//!
//! The only unsafe code of the engine is here: vector instructions, and threads that write
//! different columns of the same rows.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::vector::{self, Element, Vector};
use crate::engine::math;

/// Weights side by side in a panel.
pub(super) const LANES: usize = 16;

/// Panels that one task multiplies: they stay in the second-level cache from row to row.
const TASK_PANELS: usize = 8;
/// Rows that one task multiplies.
const TASK_ROWS: usize = 64;
/// Products with fewer multiply-adds than this run on the calling thread: waking another takes
/// longer than they do.
const SERIAL_WORK: usize = 1 << 20;

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

/// Rows of activations, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    pub(super) count: usize,
}

/// Weights as panels of [`LANES`] outputs: for each of `depth` inputs, the lanes of a panel stand
/// together, `depth_stride` after those of the input before.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, E> {
    pub(super) weights: &'a [E],
    pub(super) count: usize,
    pub(super) stride: usize,
    pub(super) depth: usize,
    pub(super) depth_stride: usize,
}

/// Where products go: rows of `LANES` values per panel, `stride` apart.
pub(super) struct Out<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) stride: usize,
    /// Whether the products are added to what stands there; otherwise they replace it.
    pub(super) keep: bool,
}

/// Multiplies every row with every panel, on the calling thread.
pub(super) fn multiply<E: Element>(isa: Isa, rows: Rows<'_>, panels: Panels<'_, E>, out: Out<'_>) {
    let job = Job::new(rows, panels, out);
    // SAFETY: `Job::new` checked the bounds, and the machine has the instructions of `isa`.
    unsafe { job.run(isa) }
}

/// Multiplies every row with every panel, on all threads where that pays.
pub(super) fn multiply_parallel<E: Element>(
    isa: Isa,
    rows: Rows<'_>,
    panels: Panels<'_, E>,
    out: Out<'_>,
) {
    let work = rows.count * panels.count * LANES * panels.depth;
    let job = Job::new(rows, panels, out);
    if work < SERIAL_WORK {
        // SAFETY: as in `multiply`.
        return unsafe { job.run(isa) };
    }
    let panel_tasks = job.panels.div_ceil(TASK_PANELS);
    let row_tasks = job.rows.div_ceil(TASK_ROWS);
    (0..panel_tasks * row_tasks).into_par_iter().for_each(|task| {
        let part = job.part(task / row_tasks * TASK_PANELS, task % row_tasks * TASK_ROWS);
        // SAFETY: a part is within its job, and no two parts write the same element.
        unsafe { part.run(isa) }
    });
}

/// A product in pointers. Its parts may run on different threads, because they write different
/// elements and what they read nobody writes.
#[derive(Clone, Copy)]
struct Job<E> {
    x: *const f32,
    x_stride: usize,
    rows: usize,
    w: *const E,
    panel_stride: usize,
    depth_stride: usize,
    panels: usize,
    depth: usize,
    y: *mut f32,
    y_stride: usize,
    keep: bool,
}

// SAFETY: see `Job`: parts of one job never write what another part reads or writes.
unsafe impl<E: Element> Sync for Job<E> {}

impl<E: Element> Job<E> {
    fn new(rows: Rows<'_>, panels: Panels<'_, E>, out: Out<'_>) -> Self {
        assert!(rows.count > 0 && panels.count > 0 && panels.depth > 0, "an empty product");
        let x_end = (rows.count - 1) * rows.stride + panels.depth;
        let w_end = (panels.count - 1) * panels.stride + (panels.depth - 1) * panels.depth_stride;
        let y_end = (rows.count - 1) * out.stride + panels.count * LANES;
        assert!(x_end <= rows.values.len(), "rows end at {x_end} of {}", rows.values.len());
        let w_end = w_end + LANES;
        assert!(w_end <= panels.weights.len(), "panels end at {w_end} of {}", panels.weights.len());
        assert!(y_end <= out.values.len(), "products end at {y_end} of {}", out.values.len());
        assert!(rows.count == 1 || out.stride >= panels.count * LANES, "rows of products overlap");
        Self {
            x: rows.values.as_ptr(),
            x_stride: rows.stride,
            rows: rows.count,
            w: panels.weights.as_ptr(),
            panel_stride: panels.stride,
            depth_stride: panels.depth_stride,
            panels: panels.count,
            depth: panels.depth,
            y: out.values.as_mut_ptr(),
            y_stride: out.stride,
            keep: out.keep,
        }
    }

    /// The part of a task, from these panels and rows on, which exist.
    fn part(&self, panel: usize, row: usize) -> Self {
        // SAFETY: the first panel and row are within the bounds that `new` checked.
        let (x, w, y) = unsafe {
            (
                self.x.add(row * self.x_stride),
                self.w.add(panel * self.panel_stride),
                self.y.add(row * self.y_stride + panel * LANES),
            )
        };
        let rows = (self.rows - row).min(TASK_ROWS);
        let panels = (self.panels - panel).min(TASK_PANELS);
        Self { x, w, y, rows, panels, ..*self }
    }

    /// # Safety
    ///
    /// The machine has the instructions of `isa`, the pointers and sizes are as [`Job::new`]
    /// checked them, and nobody else touches the products meanwhile.
    unsafe fn run(&self, isa: Isa) {
        // SAFETY: passed on to the caller.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => run_avx512(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => run_avx2(self),
                Isa::Portable => run_narrow::<vector::Portable, E>(self),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw")]
unsafe fn run_avx512<E: Element>(job: &Job<E>) {
    // SAFETY: passed on to the caller.
    unsafe { run_wide::<vector::Avx512, E>(job) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<E: Element>(job: &Job<E>) {
    // SAFETY: passed on to the caller.
    unsafe { run_narrow::<vector::Avx2, E>(job) }
}

/// With 32 vector registers: up to 16 accumulators.
#[inline(always)]
unsafe fn run_wide<V: Vector, E: Element>(job: &Job<E>) {
    let mut row = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while job.rows - row >= 8 {
            strip::<V, E, 8, 2>(job, row);
            row += 8;
        }
        if job.rows - row >= 4 {
            strip::<V, E, 4, 4>(job, row);
            row += 4;
        }
        if job.rows - row >= 2 {
            strip::<V, E, 2, 8>(job, row);
            row += 2;
        }
        if job.rows > row {
            strip::<V, E, 1, 8>(job, row);
        }
    }
}

/// With 16 registers of half the width, or fewer: four accumulators, each of two registers.
#[inline(always)]
unsafe fn run_narrow<V: Vector, E: Element>(job: &Job<E>) {
    let mut row = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while job.rows - row >= 4 {
            strip::<V, E, 4, 1>(job, row);
            row += 4;
        }
        if job.rows - row >= 2 {
            strip::<V, E, 2, 2>(job, row);
            row += 2;
        }
        if job.rows > row {
            strip::<V, E, 1, 4>(job, row);
        }
    }
}

/// `R` rows from `row` on with all panels, `P` at a time.
#[inline(always)]
unsafe fn strip<V: Vector, E: Element, const R: usize, const P: usize>(job: &Job<E>, row: usize) {
    let mut panel = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while job.panels - panel >= P {
            tile::<V, E, R, P>(job, row, panel);
            panel += P;
        }
        while panel < job.panels {
            tile::<V, E, R, 1>(job, row, panel);
            panel += 1;
        }
    }
}

/// `R` rows with `P` panels, all sums in registers.
#[inline(always)]
unsafe fn tile<V: Vector, E: Element, const R: usize, const P: usize>(
    job: &Job<E>,
    row: usize,
    panel: usize,
) {
    // SAFETY: rows and panels are within the job, and so within the bounds that `Job::new`
    // checked; passed on to the caller otherwise.
    unsafe {
        let x = job.x.add(row * job.x_stride);
        let w = job.w.add(panel * job.panel_stride);
        let y = job.y.add(row * job.y_stride + panel * LANES);
        let mut sums = [[V::zero(); P]; R];
        if job.keep {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(y.add(r * job.y_stride + p * LANES));
                }
            }
        }
        for k in 0..job.depth {
            let mut weights = [V::zero(); P];
            for (p, weights) in weights.iter_mut().enumerate() {
                *weights = E::load(w.add(p * job.panel_stride + k * job.depth_stride));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let value = *x.add(r * job.x_stride + k);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = sum.add_product(value, weights);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sum) in sums.into_iter().enumerate() {
                sum.store(y.add(r * job.y_stride + p * LANES));
            }
        }
    }
}

/// Turns scores into weights, e to the power of the score less the greatest, in place; returns
/// their sum. A score of minus infinity weighs 0. The length is a multiple of [`LANES`].
pub(super) fn softmax(isa: Isa, scores: &mut [f32]) -> f32 {
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
pub(super) fn swiglu(isa: Isa, gate: &mut [f32], up: &[f32]) {
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
pub(super) fn rms_norm(row: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = rms_scale(row, eps);
    for ((out, value), weight) in out.iter_mut().zip(row).zip(weight) {
        *out = value * scale * weight;
    }
}

/// The same, in place.
pub(super) fn rms_norm_in_place(row: &mut [f32], weight: &[f32], eps: f32) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use proptest::prelude::*;

    /// Numbers without pattern, near 1 in size.
    fn values(len: usize, seed: u32) -> Vec<f32> {
        let scramble = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(15) % 2001;
        (0..len as u32).map(|i| (scramble(i) as f32 - 1000.0) / 500.0).collect()
    }

    fn panels<E>(weights: &[E], count: usize, depth: usize) -> Panels<'_, E> {
        Panels { weights, count, stride: depth * LANES, depth, depth_stride: LANES }
    }

    fn product<E: Element>(isa: Isa, x: &[f32], rows: usize, panels: Panels<'_, E>) -> Vec<u32> {
        let stride = panels.count * LANES;
        let mut y = values(rows * stride, 99);
        let rows = Rows { values: x, stride: panels.depth, count: rows };
        multiply_parallel(isa, rows, panels, Out { values: &mut y, stride, keep: true });
        y.into_iter().map(f32::to_bits).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every row has the same bits alone as among others, and is the obvious sum.
        #[test]
        fn a_row_is_the_same_alone_and_in_a_batch(
            rows in 1..40_usize, count in 1..20_usize, depth in 1..70_usize, seed: u32,
        ) {
            let (x, w) = (values(rows * depth, seed), values(count * depth * LANES, !seed));
            let short: Vec<bf16> = w.iter().map(|w| bf16::from_f32(*w)).collect();
            let long: Vec<f32> = short.iter().map(|w| w.to_f32()).collect();
            let stride = count * LANES;
            for isa in Isa::available() {
                let together = product(isa, &x, rows, panels(&long, count, depth));
                prop_assert_eq!(&product(isa, &x, rows, panels(&short, count, depth)), &together);
                let added = values(rows * stride, 99);
                for row in 0..rows {
                    let x = &x[row * depth..][..depth];
                    let out = row * stride..(row + 1) * stride;
                    let mut alone = added[out.clone()].to_vec();
                    let one = Rows { values: x, stride: depth, count: 1 };
                    let y = Out { values: &mut alone, stride, keep: true };
                    multiply(isa, one, panels(&long, count, depth), y);
                    let bits: Vec<u32> = alone.iter().map(|value| value.to_bits()).collect();
                    prop_assert_eq!(&bits, &together[out.clone()]);
                    for (i, value) in alone.iter().enumerate() {
                        let panel = &long[i / LANES * depth * LANES..];
                        let terms = x.iter().enumerate().map(|(k, x)| {
                            f64::from(*x) * f64::from(panel[k * LANES + i % LANES])
                        });
                        let sum = terms.sum::<f64>() + f64::from(added[out.start + i]);
                        prop_assert!((f64::from(*value) - sum).abs() < 1e-4);
                    }
                }
            }
        }
    }

    #[test]
    fn vectors_of_any_width_round_alike() {
        let (x, w) = (values(7 * 50, 1), values(9 * 50 * LANES, 2));
        let results = Isa::available()
            .into_iter()
            .filter(|isa| *isa != Isa::Portable)
            .map(|isa| product(isa, &x, 7, panels(&w, 9, 50)));
        let results: Vec<_> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn softmax_is_that_of_the_finite_scores() {
        for isa in Isa::available() {
            let mut scores = values(48, 3);
            scores[37..].fill(f32::NEG_INFINITY);
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum = softmax(isa, &mut scores);
            assert!((sum / expected.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            for (got, expected) in scores.iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-6);
            }
            // What is masked adds nothing, so more of it changes nothing.
            let mut longer = values(48, 3);
            longer[37..].fill(f32::NEG_INFINITY);
            longer.resize(80, f32::NEG_INFINITY);
            assert_eq!(softmax(isa, &mut longer).to_bits(), sum.to_bits());
            assert_eq!(longer[..48], scores);
        }
    }

    #[test]
    fn swiglu_holds_for_small_large_and_extreme_gates() {
        for isa in Isa::available() {
            let gates = [-1e30, -100.0, -87.5, -3.0, 0.0, 0.5, 3.0, 100.0, 1e30];
            let mut got = gates;
            swiglu(isa, &mut got, &[2.0; 9]);
            for (got, gate) in got.iter().zip(gates) {
                let expected = 2.0 * f64::from(gate) / (1.0 + (-f64::from(gate)).exp());
                let off = (f64::from(*got) - expected).abs();
                assert!(off <= 1e-6 * expected.abs().max(1e-20), "{gate}: {got}, not {expected}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "panels end at 64 of 63")]
    fn a_product_out_of_bounds_is_refused() {
        product(Isa::Portable, &values(4, 1), 1, panels(&values(63, 2), 1, 4));
    }
}
