//! Settings of placement, for operators.

use crate::cost::{CostModel, InvalidWeight, InvalidWeights, TimeWeights, Weights};
use crate::mode::Mode;
use crate::sessions::SessionSettings;
use crate::split::{Nearness, Split};
use stator_kv_index::IndexSettings;
use std::num::NonZeroU32;
use std::time::Duration;

/// Settings of one model's placement. A value of this type is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementSettings {
    /// Way to choose a worker. Default [`Mode::Kv`].
    pub mode: Mode,
    /// Tokens per KV block. Default 16; the model's workers say what it is.
    pub block_size: NonZeroU32,
    /// Unit of costs. Default [`CostModel::Auto`].
    pub cost: CostModel,
    /// Weights of the cost in blocks.
    pub weights: Weights,
    /// Weights of the cost in time.
    pub time_weights: TimeWeights,
    /// Times of a kind that must have been seen before any is predicted. Default 32.
    pub min_samples: u64,
    /// Rule for computing prompts on other workers. Default [`Split::Measured`].
    pub split: Split,
    /// Required nearness of the two workers. Default: as the transfer costs.
    pub nearness: Nearness,
    /// Binding of sessions to workers. Default: none.
    pub sessions: Option<SessionSettings>,
    /// Load from which on a worker counts as busy. Default: never.
    pub busy: BusyThresholds,
    /// Limits of the KV index, and how it predicts.
    pub index: IndexSettings,
    /// Life of a booking without news of its request. Default 300 s.
    pub booking_lease: Duration,
    /// Life of a predicted block on a worker that publishes no events. Default 120 s.
    pub prediction_ttl: Duration,
    /// Life of a predicted block on a worker that publishes events, until the event arrives.
    /// Default: none, so that only events count.
    pub early_prediction_ttl: Option<Duration>,
    /// Life of a load report. Default 10 s.
    pub report_ttl: Duration,
}

impl Default for PlacementSettings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            block_size: NonZeroU32::new(16).expect("16 is not 0"),
            cost: CostModel::default(),
            weights: Weights::default(),
            time_weights: TimeWeights::default(),
            min_samples: 32,
            split: Split::default(),
            nearness: Nearness::default(),
            sessions: None,
            busy: BusyThresholds::default(),
            index: IndexSettings::default(),
            booking_lease: Duration::from_secs(300),
            prediction_ttl: Duration::from_secs(120),
            early_prediction_ttl: None,
            report_ttl: Duration::from_secs(10),
        }
    }
}

/// Load from which on a worker counts as busy; a busy worker takes no more requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyThresholds {
    decode_blocks: Option<f64>,
    prefill_tokens: Option<u64>,
    prefill_steps: Option<f64>,
    requests: Option<u64>,
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
        check("active_decode_blocks_threshold", decode_blocks, 1.0)?;
        Ok(Self { decode_blocks, prefill_tokens, ..Self::default() })
    }

    /// Busy also above so many full steps of prompt tokens to be computed, from 0 to
    /// [`Weights::MAX`], where a worker says how many a step has.
    ///
    /// Source: `active_prefill_tokens_threshold_frac` of Dynamo.
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] if it is no such number.
    pub fn with_prefill_steps(self, steps: Option<f64>) -> Result<Self, InvalidWeights> {
        check("active_prefill_tokens_threshold_frac", steps, Weights::MAX)?;
        Ok(Self { prefill_steps: steps, ..self })
    }

    /// Busy also with so many requests in flight.
    pub fn with_requests(self, requests: Option<u64>) -> Self {
        Self { requests, ..self }
    }

    /// Whether any worker can be busy.
    pub(crate) fn are_set(&self) -> bool {
        *self != Self::default()
    }

    /// Whether a worker is busy by its requests or their blocks; by these never if it does not say
    /// how many it can hold.
    pub(crate) fn full(&self, requests: u64, blocks: u64, total_blocks: u32) -> bool {
        let by_blocks = self.decode_blocks.is_some_and(|share| {
            total_blocks > 0 && blocks as f64 > share * f64::from(total_blocks)
        });
        by_blocks || self.requests.is_some_and(|limit| requests >= limit)
    }

    /// Whether a worker is busy by the prompt tokens that it has to compute.
    pub(crate) fn behind(&self, prefill_tokens: u64, batch_tokens: u32) -> bool {
        let by_steps = self.prefill_steps.is_some_and(|steps| {
            batch_tokens > 0 && prefill_tokens as f64 > steps * f64::from(batch_tokens)
        });
        by_steps || self.prefill_tokens.is_some_and(|limit| prefill_tokens > limit)
    }
}

fn check(name: &'static str, value: Option<f64>, limit: f64) -> Result<(), InvalidWeights> {
    match value {
        Some(value) if !(0.0..=limit).contains(&value) => {
            Err(InvalidWeights(vec![InvalidWeight { name, value, limit }]))
        }
        _ => Ok(()),
    }
}
