//! Cumulative buckets of a histogram, as metrics pages have them.

/// Upper bounds and the values up to each, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// Adds values up to a bound.
    pub(super) fn add(&mut self, bound: f64, count: f64) {
        match self.0.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(at) => self.0[at].1 += count,
            Err(at) => self.0.insert(at, (bound, count)),
        }
    }

    /// Adds the values of another histogram.
    pub(super) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(bound, count)| self.add(*bound, *count));
    }

    /// The values since `earlier`; all of them after a restart of the counters.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        if self.0.len() != earlier.0.len() || self.count() < earlier.count() {
            return self.clone();
        }
        let pairs = self.0.iter().zip(&earlier.0);
        Self(pairs.map(|((bound, now), (_, then))| (*bound, (now - then).max(0.0))).collect())
    }

    /// Number of values.
    pub(super) fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Share of values up to a limit, evenly spread within a bucket; 1 without values.
    pub(super) fn share_within(&self, limit: f64) -> f64 {
        let (mut below, mut before) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *bound > limit {
                let part = if bound.is_finite() { (limit - below) / (bound - below) } else { 0.0 };
                return ratio(before + part * (count - before), self.count());
            }
            (below, before) = (*bound, *count);
        }
        1.0
    }

    /// The value below which such a share of the values is; 0 without values.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let rank = share * self.count();
        let (mut below, mut before) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= rank && *count > 0.0 {
                let part = (rank - before) / (count - before).max(f64::MIN_POSITIVE);
                return if bound.is_finite() { below + part * (bound - below) } else { below };
            }
            (below, before) = (*bound, *count);
        }
        below
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets() -> Buckets {
        let mut buckets = Buckets::default();
        for (bound, count) in [(0.2, 4.0), (0.1, 2.0), (f64::INFINITY, 5.0)] {
            buckets.add(bound, count);
        }
        buckets
    }

    #[test]
    fn shares_and_quantiles_are_evenly_spread_within_a_bucket() {
        assert!((buckets().share_within(0.15) - 0.6).abs() < 1e-9);
        assert!((buckets().share_within(9.0) - 0.8).abs() < 1e-9);
        assert!((buckets().quantile(0.6) - 0.15).abs() < 1e-9);
        assert!((buckets().quantile(1.0) - 0.2).abs() < 1e-9);
        assert_eq!(
            (Buckets::default().share_within(1.0), Buckets::default().quantile(0.5)),
            (1.0, 0.0)
        );
    }

    #[test]
    fn differences_count_what_came_and_restarts_count_all() {
        let mut later = buckets();
        [0.1, 0.2, f64::INFINITY].iter().for_each(|bound| later.add(*bound, 1.0));
        let grown = later.since(&buckets());
        assert_eq!((grown.count(), grown.share_within(0.1)), (1.0, 1.0));
        assert_eq!(buckets().since(&later), buckets());
    }
}
