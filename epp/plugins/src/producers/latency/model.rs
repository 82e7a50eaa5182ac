//! A linear model that learns as it goes.

/// Weight that older observations keep at each new one: half is left after about 700.
const FORGETTING: f64 = 0.999;
/// Observations before the first prediction.
const MIN_OBSERVATIONS: u64 = 20;
/// Uncertainty about the weights before anything is known.
const INITIAL: f64 = 1000.0;
/// Uncertainty about one weight beyond which nothing more is forgotten: where a feature never
/// changes, forgetting would otherwise let it grow without end.
const MAX_UNCERTAINTY: f64 = 1e6;

/// Weights of `N` features, fitted by recursive least squares.
///
/// Source: Haykin, Adaptive Filter Theory, the exponentially weighted RLS algorithm.
pub(super) struct LinearModel<const N: usize> {
    weights: [f64; N],
    covariance: [[f64; N]; N],
    observations: u64,
}

impl<const N: usize> LinearModel<N> {
    /// A model that goes by the first `used` features and learns nothing of the others.
    pub(super) fn of(used: usize) -> Self {
        let mut covariance = [[0.0; N]; N];
        for (position, row) in covariance.iter_mut().enumerate().take(used) {
            row[position] = INITIAL;
        }
        Self { weights: [0.0; N], covariance, observations: 0 }
    }

    /// The expected value, at least 0; `None` after too few observations.
    pub(super) fn predict(&self, features: &[f64; N]) -> Option<f64> {
        let enough = self.observations >= MIN_OBSERVATIONS;
        enough.then(|| dot(&self.weights, features).max(0.0))
    }

    /// Learns that these features gave this value. A value that is not finite is passed over.
    pub(super) fn observe(&mut self, features: &[f64; N], value: f64) {
        if !value.is_finite() || !features.iter().all(|feature| feature.is_finite()) {
            return;
        }
        let spread: [f64; N] = self.covariance.each_ref().map(|row| dot(row, features));
        let largest = (0..N).map(|at| self.covariance[at][at]).fold(0.0, f64::max);
        let forgetting = if largest > MAX_UNCERTAINTY { 1.0 } else { FORGETTING };
        let scale = forgetting + dot(features, &spread);
        let error = value - dot(&self.weights, features);
        for (weight, spread) in self.weights.iter_mut().zip(spread) {
            *weight += spread / scale * error;
        }
        for (row, along) in self.covariance.iter_mut().zip(spread) {
            for (cell, across) in row.iter_mut().zip(spread) {
                *cell = (*cell - along * across / scale) / forgetting;
            }
        }
        self.observations += 1;
    }
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stator_epp_scheduler::Random;

    /// Feeds a model random features and what `truth` makes of them.
    fn trained(truth: impl Fn(&[f64; 3]) -> f64, count: u64) -> LinearModel<3> {
        let mut random = Random::new(11);
        let mut model = LinearModel::of(3);
        for _ in 0..count {
            let features = [1.0, random.unit() * 10.0, random.unit()];
            model.observe(&features, truth(&features));
        }
        model
    }

    fn check(model: &LinearModel<3>, features: [f64; 3], wanted: f64) {
        let predicted = model.predict(&features).expect("enough was observed");
        assert!((predicted - wanted).abs() < 0.01 * wanted.max(1.0), "{predicted} is not {wanted}");
    }

    #[test]
    fn a_linear_truth_is_found() {
        let model = trained(|[_, queue, usage]| 20.0 + 5.0 * queue + 30.0 * usage, 200);
        check(&model, [1.0, 4.0, 0.5], 55.0);
        check(&model, [1.0, 20.0, 1.0], 150.0);
    }

    #[test]
    fn a_feature_that_is_not_used_changes_nothing() {
        let (mut all, mut two) = (LinearModel::of(2), LinearModel::of(2));
        let mut random = Random::new(7);
        for _ in 0..100 {
            let queue = random.unit();
            all.observe(&[1.0, queue, random.unit()], 10.0 * queue);
            two.observe(&[1.0, queue, 0.0], 10.0 * queue);
        }
        assert_eq!(all.predict(&[1.0, 0.5, 9.0]), two.predict(&[1.0, 0.5, 0.0]));
    }

    #[test]
    fn nothing_is_predicted_too_early_or_below_zero() {
        assert_eq!(trained(|_| 1.0, 19).predict(&[1.0, 0.0, 0.0]), None);
        let model = trained(|[_, queue, _]| 10.0 - 5.0 * queue, 200);
        check(&model, [1.0, 9.0, 0.5], 0.0);
    }

    proptest! {
        /// Whatever is observed, predictions stay finite.
        #[test]
        fn predictions_are_finite(
            observed in prop::collection::vec((prop::array::uniform3(0.0..1e6f64), 0.0..1e6f64), 20..200),
        ) {
            let mut model = LinearModel::of(3);
            for (features, value) in &observed {
                model.observe(features, *value);
            }
            let predicted = model.predict(&observed[0].0);
            prop_assert!(predicted.is_some_and(f64::is_finite), "{predicted:?}");
        }
    }
}
