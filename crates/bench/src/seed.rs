//! Deterministic randomness: prompts and arrivals depend on the seed alone, on every machine and
//! in every version, so that two runs compare like with like.

/// A stream of pseudo-random numbers. Fast, of good statistical quality, not secret.
///
/// Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014.
#[derive(Clone, Debug)]
pub(crate) struct Seed(u64);

impl Seed {
    /// The stream that belongs to a seed, a purpose and an index; streams of different purposes
    /// or indices are independent.
    pub(crate) fn of(seed: u64, purpose: Purpose, index: u64) -> Self {
        let mut mixer = Self(seed ^ (purpose as u64).rotate_left(56));
        Self(mixer.next() ^ Self(index).next())
    }

    /// The next number, uniform over all 64-bit values.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number in `0..bound`. The bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// The next number in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Purpose of a stream of random numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A prefix that the requests of one group share.
    Prefix = 1,
    /// The part of a prompt that no other request shares.
    Request = 2,
    /// A block of a recorded trace.
    Block = 3,
    /// Times of arrival.
    Arrival = 4,
    /// Requests before the measurement begins.
    Warmup = 5,
    /// The lengths and the group of a request.
    Shape = 6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_the_reference() {
        let mut seed = Seed(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| seed.next()).collect();
        let reference =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, reference);
    }

    #[test]
    fn purposes_and_indices_have_streams_of_their_own() {
        let draw = |purpose, index| Seed::of(7, purpose, index).next();
        assert_ne!(draw(Purpose::Prefix, 0), draw(Purpose::Request, 0));
        assert_ne!(draw(Purpose::Request, 0), draw(Purpose::Request, 1));
        assert_eq!(draw(Purpose::Block, 5), draw(Purpose::Block, 5));
    }

    #[test]
    fn bounded_numbers_stay_in_bounds() {
        let mut seed = Seed(3);
        assert!((0..1_000).all(|_| seed.below(7) < 7));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&seed.unit())));
    }
}
