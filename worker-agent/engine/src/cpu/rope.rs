//! Rotary position embedding.

/// Method that stretches a model's frequencies beyond the context it was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RopeScaling {
    /// No stretching.
    None,
    /// All by the same factor.
    Linear {
        /// Divides every frequency.
        factor: f32,
    },
    /// Long wavelengths by the factor, short ones not, those between gradually.
    ///
    /// Source: the reference code of Llama 3.1.
    Llama3 {
        /// Divides low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low` are stretched in full.
        low: f32,
        /// Wavelengths below `original_context / high` are left alone.
        high: f32,
        /// Context the model was trained on, in tokens.
        original_context: f32,
    },
}

/// Angles per position of each pair of a head's elements.
#[derive(Clone, Debug)]
pub(super) struct Rope {
    frequencies: Vec<f32>,
}

impl Rope {
    pub(super) fn new(head_dim: usize, theta: f32, scaling: RopeScaling) -> Self {
        let frequency = |pair: usize| {
            let plain = 1.0 / theta.powf((2 * pair) as f32 / head_dim as f32);
            scale(plain, scaling)
        };
        Self { frequencies: (0..head_dim / 2).map(frequency).collect() }
    }

    /// Writes the cosines of a position's angles, then their sines, `head_dim / 2` each.
    pub(super) fn angles(&self, position: usize, out: &mut [f32]) {
        let (cosines, sines) = out.split_at_mut(self.frequencies.len());
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&self.frequencies) {
            (*sine, *cosine) = (position as f32 * frequency).sin_cos();
        }
    }
}

/// Turns a head's elements: element i and element i + half are a pair.
pub(super) fn rotate(head: &mut [f32], angles: &[f32]) {
    let half = head.len() / 2;
    let (cosines, sines) = angles.split_at(half);
    let (left, right) = head.split_at_mut(half);
    for (((a, b), cosine), sine) in left.iter_mut().zip(right).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}

fn scale(frequency: f32, scaling: RopeScaling) -> f32 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low, high, original_context } => {
            let wavelength = 2.0 * std::f32::consts::PI / frequency;
            if wavelength < original_context / high {
                return frequency;
            }
            if wavelength > original_context / low {
                return frequency / factor;
            }
            let share = (original_context / wavelength - low) / (high - low);
            (1.0 - share) * frequency / factor + share * frequency
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_zero_turns_nothing_and_turning_keeps_lengths() {
        let rope = Rope::new(8, 10_000.0, RopeScaling::None);
        let mut angles = [0.0; 8];
        let start = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rope.angles(0, &mut angles);
        let mut head = start;
        rotate(&mut head, &angles);
        assert_eq!(head, start);
        rope.angles(17, &mut angles);
        rotate(&mut head, &angles);
        assert_ne!(head, start);
        for i in 0..4 {
            let length = |v: &[f32; 8]| v[i].hypot(v[i + 4]);
            assert!((length(&head) - length(&start)).abs() < 1e-5);
        }
    }

    #[test]
    fn llama3_leaves_short_waves_and_stretches_long_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        assert_eq!(scale(1.0, scaling), 1.0);
        assert_eq!(scale(1e-5, scaling), 1e-5 / 8.0);
        let between = scale(2e-3, scaling);
        assert!(between < 2e-3 && between > 2e-3 / 8.0);
    }
}
