//! Limits of an index, and its prediction policy.

use std::num::NonZeroUsize;

/// Limits of an [`Index`](crate::Index).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSettings {
    /// Bytes of memory for blocks and for sets of holders; beyond them the oldest blocks go. The
    /// least that works, some hundred KiB, is used whatever is said here. Default 1 GiB.
    pub max_bytes: usize,
    /// Writers that can work at once, rounded up to a power of two, at most 64. More of them take
    /// a little more memory and, for small events, more time. Default 4.
    pub lanes: NonZeroUsize,
    /// Sum of the lengths of all predicted sequences, in blocks; beyond it the oldest go (under
    /// [`PredictionPolicy::Lru`] the oldest of who has the most). Default 2^22.
    pub max_predicted: usize,
    /// Life of predictions. Default: until the moment that each is given.
    pub predicting: PredictionPolicy,
}

/// Life of a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictionPolicy {
    /// Until the moment it was given.
    #[default]
    Ttl,
    /// Until the worker should have evicted it: what was sent to it least recently goes first.
    Lru {
        /// Blocks that a worker has room for.
        blocks_per_worker: usize,
    },
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 30,
            lanes: NonZeroUsize::new(4).expect("4 is not 0"),
            max_predicted: 1 << 22,
            predicting: PredictionPolicy::default(),
        }
    }
}
