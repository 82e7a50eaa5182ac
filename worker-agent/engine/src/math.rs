//! Elementary functions that compile to a few vector instructions, the same for every lane.

/// Multiplies and adds, in one rounding where `FMA` says that the machine has it.
#[inline(always)]
pub(super) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// e to the power of `x`, within two units in the last place; 0 below -87.3, where the result
/// would not be a normal number; `x` is at most 88.
///
/// No branches, so that a loop over it becomes vector code: `x` is split into a multiple of ln 2,
/// which moves the exponent, and a rest of at most 0.35, for which seven terms of the Taylor
/// series suffice.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    /// Adding and subtracting this rounds to an integer, whose bits then stand at the bottom.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; multiples of the first below 2^9 are exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const LEAST: f32 = -87.3;

    let inside = if x > LEAST { x } else { LEAST };
    let rounded = mul_add::<FMA>(inside, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let rest = mul_add::<FMA>(n, -LN2_LOW, mul_add::<FMA>(n, -LN2_HIGH, inside));
    let mut sum = 1.0 / 5040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = mul_add::<FMA>(sum, rest, term);
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x > LEAST { sum * f32::from_bits(exponent) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_agrees_with_the_standard_library() {
        for i in -8_700..8_800 {
            let x = i as f32 / 100.0;
            let expected = f64::from(x).exp();
            for got in [exp::<true>(x), exp::<false>(x)] {
                let error = (f64::from(got) / expected - 1.0).abs();
                assert!(error < 2.5e-7, "exp({x}) = {got}, expected {expected}");
            }
        }
        assert_eq!(exp::<true>(0.0), 1.0);
        assert_eq!(exp::<false>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<true>(-100.0), 0.0);
    }
}
