//! Least squares over what was seen last.

/// Weight that a sample keeps when the next one comes: about the last thousand count.
const MEMORY: f64 = 1.0 - 1.0 / 1024.0;
/// Pull of coefficients to 0, as a share of the mean square of the features: just enough that
/// features which always came together share the times that they explain.
const RIDGE: f64 = 1e-4;
/// Samples after which one is taken for at most [`SURPRISE_MAX`] times what was expected.
const SETTLED: u64 = 32;
const SURPRISE_MAX: f64 = 8.0;

/// A linear model whose coefficients are never negative.
///
/// Keeps sums of products, not the inverse of them, so that features which do not change for long
/// make it forget, not explode. Features should be of the order of 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit<const N: usize> {
    products: [[f64; N]; N],
    targets: [f64; N],
    coefficients: [f64; N],
    samples: u64,
}

impl<const N: usize> Default for Fit<N> {
    fn default() -> Self {
        Self { products: [[0.0; N]; N], targets: [0.0; N], coefficients: [0.0; N], samples: 0 }
    }
}

impl<const N: usize> Fit<N> {
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Cost of each feature, never negative.
    pub(crate) fn coefficients(&self) -> [f64; N] {
        self.coefficients
    }

    pub(crate) fn predict(&self, features: [f64; N]) -> f64 {
        features.iter().zip(self.coefficients).map(|(feature, each)| feature * each).sum()
    }

    /// Learns that `features` gave `value`; both are finite and not negative.
    pub(crate) fn learn(&mut self, features: [f64; N], value: f64) {
        let expected = self.predict(features);
        let limit = match self.samples >= SETTLED && expected > 0.0 {
            true => expected * SURPRISE_MAX,
            false => f64::INFINITY,
        };
        let value = value.min(limit);
        for row in 0..N {
            for column in 0..N {
                let product = &mut self.products[row][column];
                *product = *product * MEMORY + features[row] * features[column];
            }
            self.targets[row] = self.targets[row] * MEMORY + features[row] * value;
        }
        self.samples += 1;
        self.coefficients = self.solve();
    }

    /// The best coefficients; features whose best one is negative are left out, worst first.
    fn solve(&self) -> [f64; N] {
        let mut used = [true; N];
        loop {
            let found = self.solve_with(&used);
            let least = (0..N).min_by(|&one, &other| found[one].total_cmp(&found[other]));
            match least.filter(|&least| found[least] < 0.0) {
                Some(least) => used[least] = false,
                None => return found,
            }
        }
    }

    /// Gaussian elimination. The ridge makes the matrix positive definite, so no pivot is 0.
    fn solve_with(&self, used: &[bool; N]) -> [f64; N] {
        let trace: f64 = (0..N).map(|at| self.products[at][at]).sum();
        let ridge = RIDGE * trace / N as f64 + f64::MIN_POSITIVE;
        let (mut matrix, mut right) = (self.products, self.targets);
        for row in 0..N {
            matrix[row][row] += ridge;
            for column in 0..N {
                // An unused feature gets a row of the identity, so that its coefficient is 0.
                if !(used[row] && used[column]) {
                    matrix[row][column] = f64::from(u8::from(row == column));
                }
            }
            right[row] = if used[row] { right[row] } else { 0.0 };
        }
        for pivot in 0..N {
            for row in pivot + 1..N {
                let above = matrix[pivot];
                let factor = matrix[row][pivot] / above[pivot];
                for (value, above) in matrix[row].iter_mut().zip(above).skip(pivot) {
                    *value -= factor * above;
                }
                right[row] -= factor * right[pivot];
            }
        }
        let mut found = [0.0; N];
        for row in (0..N).rev() {
            let known: f64 = (row + 1..N).map(|column| matrix[row][column] * found[column]).sum();
            let value = (right[row] - known) / matrix[row][row];
            found[row] = if value.is_finite() { value } else { 0.0 };
        }
        found
    }
}

/// Slowness of one worker against the whole fleet: 1 until it is known, 2 for twice the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerPace {
    log: f64,
    samples: u32,
    factor: f64,
}

/// Samples that a worker's first own one weighs as much as: it is taken to be like the others.
const PACE_PRIOR: f64 = 4.0;
/// Least weight of the latest sample.
const PACE_SHARE_MIN: f64 = 1.0 / 32.0;
/// One sample counts for at most this factor, up or down.
const PACE_SURPRISE_MAX: f64 = 8.0;

impl Default for WorkerPace {
    fn default() -> Self {
        Self { log: 0.0, samples: 0, factor: 1.0 }
    }
}

impl WorkerPace {
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// Learns that something took `actual` where `expected` was expected of any worker.
    pub(crate) fn learn(&mut self, actual: f64, expected: f64) {
        let ratio = actual / expected;
        if !ratio.is_finite() || ratio <= 0.0 {
            return;
        }
        let seen = ratio.clamp(1.0 / PACE_SURPRISE_MAX, PACE_SURPRISE_MAX).ln();
        let share = (1.0 / (f64::from(self.samples) + 1.0 + PACE_PRIOR)).max(PACE_SHARE_MIN);
        self.log += share * (seen - self.log);
        self.samples = self.samples.saturating_add(1);
        self.factor = self.log.exp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::{collection::vec, prelude::*};

    #[test]
    fn coefficients_are_found_through_noise() {
        let (mut fit, mut random) = (Fit::<3>::default(), Random::new(1));
        for _ in 0..3000 {
            let features = [1.0, 3.0 * random.unit(), random.unit()];
            let noise = 0.9 + 0.2 * random.unit();
            fit.learn(features, (0.5 + 2.0 * features[1] + 4.0 * features[2]) * noise);
        }
        for (found, real) in fit.coefficients().into_iter().zip([0.5, 2.0, 4.0]) {
            assert!((found - real).abs() < 0.15 * real, "{found} is far from {real}");
        }
    }

    #[test]
    fn what_changes_is_followed() {
        let mut fit = Fit::<2>::default();
        for (count, slope) in [(2000, 1.0), (6000, 3.0)] {
            (0..count).for_each(|n| fit.learn([1.0, f64::from(n % 7)], slope * f64::from(n % 7)));
        }
        assert!((fit.predict([1.0, 5.0]) - 15.0).abs() < 0.5);
    }

    #[test]
    fn one_absurd_sample_changes_little() {
        let mut fit = Fit::<2>::default();
        (0..500).for_each(|n| fit.learn([1.0, f64::from(n % 7)], 1.0 + f64::from(n % 7)));
        fit.learn([1.0, 3.0], 1e12);
        assert!((fit.predict([1.0, 3.0]) - 4.0).abs() < 0.3);
    }

    #[test]
    fn features_that_never_change_leave_a_right_prediction() {
        let mut fit = Fit::<2>::default();
        (0..5000).for_each(|_| fit.learn([1.0, 2.0], 6.0));
        assert!((fit.predict([1.0, 2.0]) - 6.0).abs() < 0.01);
    }

    #[test]
    fn a_slow_worker_is_found_out_and_absurd_ratios_are_contained() {
        let mut pace = WorkerPace::default();
        (0..100).for_each(|_| pace.learn(3.0, 1.0));
        assert!((pace.factor() - 3.0).abs() < 0.2);
        for (actual, expected) in [(f64::NAN, 1.0), (1.0, 0.0), (0.0, 1.0), (f64::MAX, 1e-300)] {
            pace.learn(actual, expected);
        }
        assert!((pace.factor() - 3.0).abs() < 0.5);
    }

    proptest! {
        /// After any samples, predictions are finite and more of a feature never costs less.
        #[test]
        fn predictions_stay_sane(samples in vec(([0.0..1e6f64, 0.0..1e6, 0.0..1e6], 0.0..1e6f64), 0..200)) {
            let mut fit = Fit::<3>::default();
            for (features, value) in samples {
                fit.learn(features, value);
                prop_assert!(fit.coefficients().iter().all(|each| each.is_finite() && *each >= 0.0));
            }
        }
    }
}
