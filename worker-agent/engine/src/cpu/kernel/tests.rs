use half::bf16;
use proptest::prelude::*;

use super::vector::Element;
use super::*;

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
