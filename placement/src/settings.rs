//! What an operator may choose.

use crate::cost::{InvalidWeight, InvalidWeights, Weights};
use crate::mode::Mode;
use std::num::NonZeroU32;
use std::time::Duration;

/// Settings of one model's placement. A value of this type is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How a worker is chosen. Default [`Mode::Kv`].
    pub mode: Mode,
    /// Tokens per KV block. Default 16; the model's workers say what it is.
    pub block_size: NonZeroU32,
    /// Weights of the cost function.
    pub weights: Weights,
    /// When a worker counts as busy. Default never.
    pub busy: BusyThresholds,
    /// Most entries of the KV index, see [`crate::Index`]; about 100 bytes each. Default
    /// 16,777,216.
    pub max_blocks: usize,
    /// How long a booking lasts without news of its request. Default 300 s.
    pub booking_lease: Duration,
    /// How long a worker that publishes no events is taken to hold what it was sent. Default
    /// 120 s.
    pub prediction_ttl: Duration,
    /// The same for workers that do publish events, until the event arrives. Default none: only
    /// what they report counts.
    pub early_prediction_ttl: Option<Duration>,
    /// How long a load report counts. Default 10 s.
    pub report_ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            block_size: NonZeroU32::new(16).expect("16 is not 0"),
            weights: Weights::default(),
            busy: BusyThresholds::default(),
            max_blocks: 1 << 24,
            booking_lease: Duration::from_secs(300),
            prediction_ttl: Duration::from_secs(120),
            early_prediction_ttl: None,
            report_ttl: Duration::from_secs(10),
        }
    }
}

/// When a worker counts as busy, and takes no more requests until it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyThresholds {
    decode_blocks: Option<f64>,
    prefill_tokens: Option<u64>,
}

impl BusyThresholds {
    /// Busy above a share of KV blocks in use (0 to 1), or above a number of prompt tokens to be
    /// computed; `None` sets no limit.
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] if the share is no number from 0 to 1.
    pub fn new(
        decode_blocks: Option<f64>,
        prefill_tokens: Option<u64>,
    ) -> Result<Self, InvalidWeights> {
        match decode_blocks {
            Some(value) if !(0.0..=1.0).contains(&value) => {
                let name = "active_decode_blocks_threshold";
                Err(InvalidWeights(vec![InvalidWeight { name, value, limit: 1.0 }]))
            }
            _ => Ok(Self { decode_blocks, prefill_tokens }),
        }
    }

    /// Whether a worker is busy; one of unknown size never is by its blocks.
    pub(crate) fn exceeded(&self, blocks: u64, total_blocks: u32, prefill_tokens: u64) -> bool {
        let by_blocks = self.decode_blocks.is_some_and(|share| {
            total_blocks > 0 && blocks as f64 > share * f64::from(total_blocks)
        });
        by_blocks || self.prefill_tokens.is_some_and(|limit| prefill_tokens > limit)
    }
}
