//! A histogram that many threads fill without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of values by bucket, and their sum.
///
/// That of the metrics library takes a lock and tries one bucket after another. This one is a
/// search and two atomic changes; a reader may see a value in its bucket and not yet in the sum.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for what is above the last.
    counts: Box<[AtomicU64]>,
    /// The bits of a float.
    sum: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Upper bounds, the last of them infinite, each with the number of values between the bound
    /// before and this one.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of the values.
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram over ascending upper bounds.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0.0_f64.to_bits()) }
    }

    /// Counts a value.
    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let mut bits = self.sum.load(Ordering::Relaxed);
        loop {
            let sum = (f64::from_bits(bits) + value).to_bits();
            match self.sum.compare_exchange_weak(bits, sum, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => bits = changed,
            }
        }
    }

    /// Counts a duration, in seconds.
    pub(crate) fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// The present counts and sum; `None` before the first value.
    pub(crate) fn read(&self) -> Option<Reading> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        buckets.iter().any(|(_, count)| *count > 0).then_some(Reading { buckets, sum })
    }
}

impl Reading {
    /// Adds what another histogram over the same bounds holds.
    pub(crate) fn add(&mut self, other: &Self) {
        for ((_, count), (_, more)) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::{HIT_RATIO, INPUT_TOKENS};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn filled(bounds: &'static [f64], values: &[u32]) -> Histogram {
        let histogram = Histogram::new(bounds);
        values.iter().for_each(|value| histogram.observe(f64::from(*value)));
        histogram
    }

    /// What a reading must be: each value under the first bound that is not less than it.
    fn expected(bounds: &[f64], values: &[u32]) -> Option<Reading> {
        let mut below = f64::NEG_INFINITY;
        let mut buckets = Vec::new();
        for bound in bounds.iter().copied().chain([f64::INFINITY]) {
            let within = |value: &&u32| f64::from(**value) > below && f64::from(**value) <= bound;
            buckets.push((bound, values.iter().filter(within).count() as u64));
            below = bound;
        }
        let sum = values.iter().map(|value| f64::from(*value)).sum();
        (!values.is_empty()).then_some(Reading { buckets, sum })
    }

    proptest! {
        #[test]
        fn agrees_with_counting_by_hand(
            values in vec(prop_oneof![0_u32..40, any::<u32>()], 0..50),
        ) {
            prop_assert_eq!(filled(INPUT_TOKENS, &values).read(), expected(INPUT_TOKENS, &values));
        }

        #[test]
        fn adding_is_the_same_as_one_histogram_of_both(
            (one, two) in (vec(0_u32..3, 1..9), vec(0_u32..3, 1..9)),
        ) {
            let mut sum = filled(HIT_RATIO, &one).read().expect("it has values");
            sum.add(&filled(HIT_RATIO, &two).read().expect("it has values"));
            let both = [one, two].concat();
            prop_assert_eq!(Some(sum), filled(HIT_RATIO, &both).read());
        }
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::new(HIT_RATIO);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| histogram.observe(0.5)));
            }
        });
        let reading = histogram.read().expect("it has values");
        assert_eq!(reading.buckets[5], (0.5, 4000));
        assert_eq!(reading.sum, 2000.0);
    }
}
