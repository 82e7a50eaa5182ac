//! Percentiles, medians, and ratios of paired trials.

/// Two-sided 95 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The value below which the part `q` of `values` lies; NaN of nothing. Sorts them.
pub fn percentile(values: &mut [f64], q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let at = ((values.len() - 1) as f64 * q).round() as usize;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// The middle value, the mean of two where there are two; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The mean; NaN of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// How two subjects compare over paired trials: a geometric mean and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Geometric mean of the pairs' ratios.
    pub mean: f64,
    /// Lower end of the interval; the mean itself of a single pair.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// The ratio of the first of each pair to the second; `None` unless all are positive.
///
/// Source: Student's t interval of the mean of the logarithms.
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    if pairs.is_empty() || pairs.iter().any(|&(a, b)| !(a > 0.0 && b > 0.0)) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    let (n, center) = (logs.len(), mean(&logs));
    let squares: f64 = logs.iter().map(|log| (log - center).powi(2)).sum();
    let half = match n {
        1 => 0.0,
        n => {
            let t = STUDENT_T.get(n - 2).copied().unwrap_or(1.96);
            t * (squares / (n - 1) as f64 / n as f64).sqrt()
        }
    };
    Some(Ratio { mean: center.exp(), low: (center - half).exp(), high: (center + half).exp() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let mut values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.5), 50.0);
        assert_eq!(percentile(&mut values, 0.99), 99.0);
        assert!(percentile(&mut [], 0.5).is_nan());
    }

    #[test]
    fn the_median_of_two_lies_between_them() {
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[5.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn equal_ratios_have_no_spread() {
        let ratio = paired_ratio(&[(2.0, 1.0), (4.0, 2.0)]).expect("all are positive");
        assert!((ratio.mean - 2.0).abs() < 1e-9 && (ratio.high - ratio.low).abs() < 1e-9);
    }

    #[test]
    fn the_interval_is_students() {
        let ratio = paired_ratio(&[(1.0, 1.0), (4.0, 1.0), (2.0, 1.0)]).expect("positive");
        assert!((ratio.mean - 2.0).abs() < 1e-9);
        // The logarithms 0, ln 2 and ln 4 have a standard error of ln 2 / √3.
        let half = 4.303 * 2f64.ln() / 3f64.sqrt();
        assert!((ratio.high - 2.0 * half.exp()).abs() < 1e-6);
        assert_eq!(paired_ratio(&[(0.0, 1.0)]), None);
    }
}
