//! A histogram of durations with bounded memory and bounded relative error.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Binary digits kept of a value: 128 buckets per power of two.
const PRECISION: u32 = 7;
/// Buckets that cover every 64-bit number of nanoseconds.
const BUCKETS: usize = ((64 - PRECISION as usize) + 1) << PRECISION;

/// Counts durations in logarithmic buckets: 58 KiB, whatever the number of values.
///
/// A quantile is at most 0.4 % off the exact one (the middle of a bucket whose width is 1/128 of
/// its value); count, mean, minimum and maximum are exact. Resolution 1 ns, range 0 to 584 years.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

/// The usual figures of a distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Values counted; if 0, everything else is 0 too.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Smallest value.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest value.
    pub max_ms: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), count: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: Duration) {
        let ns = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value below or at which a share `q` of the values lies, `q` in 0.0 to 1.0. Zero where
    /// nothing was counted.
    pub fn quantile(&self, q: f64) -> Duration {
        if self.count == 0 {
            return Duration::ZERO;
        }
        // The nearest rank, so that the quantile is one of the values and not between two.
        let rank = ((q * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for (index, &n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return self.middle(index);
            }
        }
        Duration::from_nanos(self.max_ns)
    }

    /// The usual figures.
    pub fn summary(&self) -> Summary {
        if self.count == 0 {
            return Summary::default();
        }
        let quantile_ms = |q| ms(self.quantile(q).as_nanos() as f64);
        Summary {
            count: self.count,
            mean_ms: ms(self.sum_ns as f64 / self.count as f64),
            min_ms: ms(self.min_ns as f64),
            p50_ms: quantile_ms(0.50),
            p90_ms: quantile_ms(0.90),
            p95_ms: quantile_ms(0.95),
            p99_ms: quantile_ms(0.99),
            max_ms: ms(self.max_ns as f64),
        }
    }

    /// The cumulative distribution as `(milliseconds, share of values up to it)`, ascending, with
    /// at most `points` points (at least 2); empty where nothing was counted.
    pub fn distribution(&self, points: usize) -> Vec<(f64, f64)> {
        if self.count == 0 {
            return Vec::new();
        }
        let step = 1.0 / (points.max(2) - 1) as f64;
        let mut curve = vec![(ms(self.min_ns as f64), 0.0)];
        let (mut seen, mut next) = (0, step);
        for (index, &n) in self.buckets.iter().enumerate().filter(|(_, n)| **n > 0) {
            seen += n;
            let share = seen as f64 / self.count as f64;
            if share >= next || seen == self.count {
                curve.push((ms(self.middle(index).as_nanos() as f64), share));
                next = share + step;
            }
        }
        curve
    }

    /// The middle of a bucket, within what was really seen.
    fn middle(&self, index: usize) -> Duration {
        let (low, width) = bounds(index);
        Duration::from_nanos((low + (width - 1) / 2).clamp(self.min_ns, self.max_ns))
    }
}

/// The bucket of a value: its leading binary digit and the `PRECISION` digits after it.
fn bucket(ns: u64) -> usize {
    if ns < 1 << PRECISION {
        return ns as usize;
    }
    let shift = 63 - ns.leading_zeros() - PRECISION;
    ((shift as usize + 1) << PRECISION) + ((ns >> shift) as usize - (1 << PRECISION))
}

/// Lowest value and width of a bucket.
fn bounds(index: usize) -> (u64, u64) {
    let Some(shift) = (index >> PRECISION).checked_sub(1) else {
        return (index as u64, 1);
    };
    let digits = (index & ((1 << PRECISION) - 1)) as u64 + (1 << PRECISION);
    (digits << shift, 1 << shift)
}

fn ms(ns: f64) -> f64 {
    ns / 1e6
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|ns| histogram.record(Duration::from_nanos(*ns)));
        histogram
    }

    #[test]
    fn an_empty_histogram_has_an_empty_summary() {
        assert_eq!(Histogram::default().summary(), Summary::default());
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
        assert!(Histogram::default().distribution(10).is_empty());
    }

    #[test]
    fn one_value_is_every_figure() {
        let summary = histogram(&[2_000_000]).summary();
        assert_eq!((summary.count, summary.mean_ms), (1, 2.0));
        assert_eq!((summary.p50_ms, summary.p99_ms, summary.max_ms), (2.0, 2.0, 2.0));
    }

    #[test]
    fn the_extremes_have_buckets() {
        let extremes = histogram(&[0, u64::MAX]);
        assert_eq!(extremes.quantile(0.0), Duration::ZERO);
        assert_eq!(extremes.count(), 2);
        assert!(bucket(u64::MAX) == BUCKETS - 1);
    }

    proptest! {
        /// Every value lies in the bucket that it is counted in.
        #[test]
        fn buckets_hold_their_values(ns: u64) {
            let (low, width) = bounds(bucket(ns));
            prop_assert!(low <= ns && ns - low < width);
        }

        /// Quantiles agree with those of the sorted values within 0.4 %.
        #[test]
        fn quantiles_are_close_to_exact(
            mut values in vec(prop_oneof![0_u64..1_000, 1_000_u64..10_000_000_000], 1..400),
            q in 0.0_f64..=1.0,
        ) {
            let found = histogram(&values).quantile(q).as_nanos() as f64;
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1] as f64;
            prop_assert!((found - exact).abs() <= exact * 0.004, "{found} against {exact}");
        }

        /// A distribution rises in both coordinates, keeps its bound and ends at 1.
        #[test]
        fn distributions_rise_to_one(values in vec(0_u64..1_000_000_000, 1..300), points in 2_usize..50) {
            let curve = histogram(&values).distribution(points);
            prop_assert!(curve.len() <= points + 1);
            prop_assert!(curve.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1));
            prop_assert_eq!(curve.last().unwrap().1, 1.0);
        }
    }
}
