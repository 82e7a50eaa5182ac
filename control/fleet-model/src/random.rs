//! Random numbers from a seed: the same on every machine and in every version.

/// Purpose of a stream of random numbers. Streams of different purposes are independent, so a
/// change of one part of a run leaves the others as they were.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Arrival times of requests.
    Arrivals = 1,
    /// Contents of synthetic requests.
    Shapes = 2,
    /// Deaths: the workers and the times.
    Deaths = 3,
    /// Slow workers.
    Stragglers = 4,
    /// Lost messages.
    Loss = 5,
    /// Ties between workers.
    Picks = 6,
    /// The edge of each request.
    Edges = 7,
    /// Adapters of sessions.
    Adapters = 8,
}

/// The placement's random numbers, in streams and in the shapes that workloads need.
#[derive(Clone, Debug)]
pub(crate) struct Random(stator_placement::Random);

impl Random {
    /// The stream of a seed and a purpose.
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        Self(stator_placement::Random::new(mix(seed) ^ mix((purpose as u64) << 32)))
    }

    /// The next number, uniform over all 64-bit values.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..limit`; 0 for 0.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0.below(limit as usize) as u32
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }

    /// A number from 0 up to, and never, 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Exponentially distributed.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Log-normally distributed tokens: `median`, and `spread` as the deviation of the logarithm,
    /// within `1..=most`.
    pub(crate) fn tokens(&mut self, median: f64, spread: f64, most: u32) -> u32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        (median * (spread * normal).exp()).round().clamp(1.0, f64::from(most)) as u32
    }
}

/// Spreads near numbers over all 64 bits; different ones stay different.
pub(crate) fn mix(value: u64) -> u64 {
    stator_placement::Random::new(value).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_streams_of_their_own() {
        let draw = |seed, purpose| Random::new(seed, purpose).next();
        assert_ne!(draw(1, Purpose::Arrivals), draw(1, Purpose::Shapes));
        assert_ne!(draw(1, Purpose::Arrivals), draw(2, Purpose::Arrivals));
        assert_eq!(draw(1, Purpose::Loss), draw(1, Purpose::Loss));
    }

    #[test]
    fn distributions_have_their_means_and_bounds() {
        let mut random = Random::new(1, Purpose::Shapes);
        let mean = (0..20_000).map(|_| random.exponential(3.0)).sum::<f64>() / 20_000.0;
        assert!((2.9..3.1).contains(&mean), "{mean}");
        let mut tokens: Vec<u32> = (0..20_001).map(|_| random.tokens(500.0, 1.0, 4_000)).collect();
        tokens.sort_unstable();
        assert!((470..530).contains(&tokens[10_000]), "{}", tokens[10_000]);
        assert!(tokens[0] >= 1 && tokens[20_000] == 4_000);
        assert!((0..1_000).all(|_| (3..=5).contains(&random.between(3, 5))));
    }
}
