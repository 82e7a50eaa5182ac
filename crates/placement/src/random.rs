//! Random numbers from a seed: the same on every machine and in every version.

use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of decisions, each another than the one before.
#[derive(Debug)]
pub struct SeedSequence(AtomicU64);

impl SeedSequence {
    /// The sequence that begins at `start`.
    pub fn new(start: u64) -> Self {
        Self(AtomicU64::new(start))
    }

    /// The next seed.
    pub fn next_seed(&self) -> u64 {
        // Golden-ratio steps and the mixing of [`Random`] make a good sequence of any start.
        self.0.fetch_add(STEP, Ordering::Relaxed)
    }
}

/// The golden ratio of 2^64, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of numbers that its seed determines.
///
/// Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, uniform over all 64-bit values.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..limit`, each equally likely up to a part in 2^64 / `limit`; 0 for 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next_u64()) * limit as u128) >> 64) as usize
    }

    /// A number from 0 up to, and never, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_cover_their_range_evenly() {
        let mut random = Random::new(1);
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[random.below(7)] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(random.below(0), 0);
    }
}
