//! Position of a block's cell: shard, lane and home bucket, by its hash alone.

use crate::settings::IndexSettings;

/// Bytes of a bucket: a cache line.
pub(crate) const BUCKET_BYTES: usize = 64;
/// Most lanes there can be.
const MAX_LANES: usize = 64;
/// 2^8 shards: each is copied at once when it grows, so that a hundred million blocks grow in
/// steps of a millisecond, of which readers see nothing.
const SHARD_BITS: u32 = 8;
const FIRST_BUCKETS: usize = 16;
/// Shards below this, of 2 MiB all together, are left as they are: there is nothing to save.
const FITTED_BUCKETS: usize = 128;

/// Spread of hashes. The top bits of a scattered hash name the shard (and with it the lane), the
/// rest the bucket within the shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    shard_bits: u32,
    lane_bits: u32,
    first_buckets: usize,
    fitted_buckets: usize,
}

impl Layout {
    pub(crate) fn new(settings: &IndexSettings) -> Self {
        let lanes = settings.lanes.get().min(MAX_LANES).next_power_of_two();
        let fitting = settings.max_bytes / 4 / (BUCKET_BYTES << SHARD_BITS);
        Self {
            shard_bits: SHARD_BITS,
            lane_bits: lanes.ilog2(),
            first_buckets: FIRST_BUCKETS.min(fitting).max(1),
            fitted_buckets: FITTED_BUCKETS,
        }
    }

    /// Few shards, each of one bucket at first, so that all that happens to large tables happens
    /// to small ones.
    #[cfg(all(test, not(stator_loom)))]
    pub(crate) fn tiny(lanes: usize) -> Self {
        let (shard_bits, lane_bits) = (lanes.ilog2() + 1, lanes.ilog2());
        Self { shard_bits, lane_bits, first_buckets: 1, fitted_buckets: 2 }
    }

    pub(crate) fn shards(&self) -> usize {
        1 << self.shard_bits
    }

    pub(crate) fn lanes(&self) -> usize {
        1 << self.lane_bits
    }

    pub(crate) fn shards_per_lane(&self) -> usize {
        1 << (self.shard_bits - self.lane_bits)
    }

    /// The shard of a block, and its place within the shard.
    #[inline]
    pub(crate) fn place(&self, hash: u64) -> (usize, u64) {
        // Sequence hashes are spread well as they are; the multiplication spreads also those that
        // are not, and costs a nanosecond.
        let scattered = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((scattered >> (64 - self.shard_bits)) as usize, scattered << self.shard_bits)
    }

    /// The lane of a shard.
    #[inline]
    pub(crate) fn lane_of(&self, shard: usize) -> usize {
        shard >> (self.shard_bits - self.lane_bits)
    }

    /// Buckets that the background leaves a shard at least.
    pub(crate) fn fitted_buckets(&self) -> usize {
        self.fitted_buckets
    }

    /// Buckets of a new shard. Shards start with slightly unlike sizes, so that they do not all
    /// grow at once.
    pub(crate) fn first_buckets(&self, shard: usize) -> usize {
        (self.first_buckets + shard % 4 * self.first_buckets / 8).next_multiple_of(2)
    }
}
