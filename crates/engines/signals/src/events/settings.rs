//! Limits of a follower.

use std::num::NonZeroU32;

/// Limits on the blocks of an engine that a follower tracks.
#[derive(Clone, Copy, Debug)]
pub struct FollowSettings {
    /// Tokens per block of our index. An engine is followed if its block size is a multiple or a
    /// divisor of this.
    pub block_size: NonZeroU32,
    /// Most blocks of one engine that are known at once; 4 Mi by default. Further ones are ignored.
    pub blocks_max: usize,
}

impl FollowSettings {
    /// The default settings for an index with blocks of this size.
    pub fn new(block_size: NonZeroU32) -> Self {
        Self { block_size, blocks_max: 1 << 22 }
    }
}
