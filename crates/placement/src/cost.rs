//! Cost of running a request on a worker: in blocks here, in time in [`time`].
//!
//! Source of the cost in blocks: the cost function of NVIDIA Dynamo 1.6's KV router.

mod time;

pub use time::{CostModel, Prediction, TimeWeights, UnknownCostModel};
pub(crate) use time::{TimeInputs, joint_wait, time_score};

use crate::random::Random;
use stator_kv_index::Overlap;
use stator_protos::kv_event::Medium;
use std::fmt;

/// Weights as configuration gives them. Each is a number from 0 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightSettings {
    /// Blocks of prefill that a block on the device saves. Default 1.
    pub overlap_score_credit: f64,
    /// Decay of that credit with the worker's backlog beyond the least backlog of any worker, per
    /// length of the request. Default 0: none.
    pub overlap_score_credit_decay: f64,
    /// Blocks of prefill that a block in host memory saves. Default 0.75.
    pub host_cache_hit_weight: f64,
    /// Blocks of prefill that a block on disk saves. Default 0.25.
    pub disk_cache_hit_weight: f64,
    /// Blocks of prefill that a block in shared storage saves. Default 0.5.
    pub shared_cache_multiplier: f64,
    /// Weight of a block of prefill against a block of decode. Default 1.
    pub prefill_load_scale: f64,
    /// Blocks that each request in flight weighs. Default 0.
    pub decode_active_request_weight: f64,
    /// Randomness: 0, the default, takes the least cost; higher ones spread requests more.
    pub temperature: f64,
    /// Whether prefill counts at all. Default true; false for workers that only decode.
    pub track_prefill_tokens: bool,
    /// Whether requests with a common prefix share its blocks while they run. Default true.
    pub assume_kv_reuse: bool,
    /// Whether a request's own blocks count for less the nearer it is to its most output tokens.
    /// Default false.
    pub output_block_decay: bool,
}

impl Default for WeightSettings {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            shared_cache_multiplier: 0.5,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            temperature: 0.0,
            track_prefill_tokens: true,
            assume_kv_reuse: true,
            output_block_decay: false,
        }
    }
}

/// Weights that one request may override.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// See [`WeightSettings::overlap_score_credit`].
    pub overlap_score_credit: Option<f64>,
    /// See [`WeightSettings::prefill_load_scale`].
    pub prefill_load_scale: Option<f64>,
    /// See [`WeightSettings::shared_cache_multiplier`].
    pub shared_cache_multiplier: Option<f64>,
    /// See [`WeightSettings::temperature`].
    pub temperature: Option<f64>,
    /// See [`WeightSettings::track_prefill_tokens`].
    pub track_prefill_tokens: Option<bool>,
    /// See [`WeightSettings::assume_kv_reuse`].
    pub assume_kv_reuse: Option<bool>,
}

/// One weight that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InvalidWeight {
    /// Its name in configuration.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// The largest value that can be used; the smallest is 0.
    pub limit: f64,
}

/// All weights that cannot be used; at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidWeights(pub Vec<InvalidWeight>);

impl fmt::Display for InvalidWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, weight) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "; " };
            let InvalidWeight { name, value, limit } = weight;
            write!(f, "{separator}{name}: {value} is not in 0..={limit}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidWeights {}

/// Weights that can be used: each is a number in range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights(WeightSettings);

impl Weights {
    /// The largest weight: large enough for any purpose, small enough that no cost overflows.
    pub const MAX: f64 = 1_000_000.0;

    /// Checks all weights.
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] names each that is not a number from 0 to [`Weights::MAX`].
    pub fn new(settings: WeightSettings) -> Result<Self, InvalidWeights> {
        let weights = [
            ("overlap_score_credit", settings.overlap_score_credit),
            ("overlap_score_credit_decay", settings.overlap_score_credit_decay),
            ("host_cache_hit_weight", settings.host_cache_hit_weight),
            ("disk_cache_hit_weight", settings.disk_cache_hit_weight),
            ("shared_cache_multiplier", settings.shared_cache_multiplier),
            ("prefill_load_scale", settings.prefill_load_scale),
            ("decode_active_request_weight", settings.decode_active_request_weight),
            ("temperature", settings.temperature),
        ];
        let limit = Self::MAX;
        let invalid = |&(_, value): &(_, f64)| !(0.0..=limit).contains(&value);
        let named = |(name, value)| InvalidWeight { name, value, limit };
        let invalid: Vec<_> = weights.into_iter().filter(invalid).map(named).collect();
        if invalid.is_empty() { Ok(Self(settings)) } else { Err(InvalidWeights(invalid)) }
    }

    /// These weights with what one request changes.
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] as in [`Weights::new`].
    pub fn overridden(&self, by: &Overrides) -> Result<Self, InvalidWeights> {
        let base = self.0;
        Self::new(WeightSettings {
            overlap_score_credit: by.overlap_score_credit.unwrap_or(base.overlap_score_credit),
            prefill_load_scale: by.prefill_load_scale.unwrap_or(base.prefill_load_scale),
            shared_cache_multiplier: by
                .shared_cache_multiplier
                .unwrap_or(base.shared_cache_multiplier),
            temperature: by.temperature.unwrap_or(base.temperature),
            track_prefill_tokens: by.track_prefill_tokens.unwrap_or(base.track_prefill_tokens),
            assume_kv_reuse: by.assume_kv_reuse.unwrap_or(base.assume_kv_reuse),
            ..base
        })
    }

    /// These weights where another worker computes the prompt.
    pub(crate) fn without_prefill(&self) -> Self {
        Self(WeightSettings { track_prefill_tokens: false, ..self.0 })
    }

    /// The weights themselves.
    pub fn settings(&self) -> &WeightSettings {
        &self.0
    }
}

/// Inputs to the cost of one request on one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: u32,
    /// Blocks of the prompt.
    pub(crate) prompt_blocks: u32,
    /// Tokens of a block.
    pub(crate) block_size: u32,
    /// Blocks of the prompt that the worker holds.
    pub(crate) overlap: Overlap,
    /// Blocks of prefill that blocks outside its device save.
    pub(crate) outer_credit: f64,
    /// Prompt tokens that the worker has still to compute for others.
    pub(crate) backlog_tokens: f64,
    /// The least backlog of any worker.
    pub(crate) least_backlog_tokens: f64,
    /// Blocks in use at the worker once it has the request.
    pub(crate) potential_blocks: f64,
    /// Requests in flight at the worker.
    pub(crate) requests: f64,
}

/// The cost of one choice and its parts: in blocks, or in milliseconds where times are predicted.
/// Less is better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Prefill that is to be done before the request's first token, or the time to it.
    pub prefill: f64,
    /// KV in use with the request, or the time of its further tokens.
    pub decode: f64,
    /// Requests in flight, or the time that others lose.
    pub requests: f64,
    /// Saving by overlap, already taken off the parts above.
    pub credit: f64,
    /// Sum of the parts, lowered for a preferred worker; workers are compared by it.
    pub total: f64,
}

/// The cost of one choice.
#[inline]
pub(crate) fn score(weights: &Weights, inputs: &Inputs) -> Score {
    let weights = &weights.0;
    // Most workers hold nothing of a prompt.
    let is_helped = inputs.overlap.blocks() > 0 || inputs.outer_credit > 0.0;
    let credit = if is_helped { credit(weights, inputs) } else { 0.0 };
    let potential_blocks = inputs.potential_blocks;
    let requests = weights.decode_active_request_weight * inputs.requests;
    let (prefill, decode) = if weights.track_prefill_tokens {
        let tokens = inputs.backlog_tokens + f64::from(inputs.prompt_tokens);
        let blocks = tokens / f64::from(inputs.block_size);
        (weights.prefill_load_scale * (blocks - credit).max(0.0), potential_blocks)
    } else {
        // Without prefill there is only decode for the credit to be taken from.
        (0.0, (potential_blocks - credit).max(0.0))
    };
    Score { prefill, decode, requests, credit, total: prefill + decode + requests }
}

fn credit(weights: &WeightSettings, inputs: &Inputs) -> f64 {
    let on_device = f64::from(inputs.overlap.on(Medium::Device));
    weights.overlap_score_credit * decay(weights, inputs) * on_device + inputs.outer_credit
}

fn decay(weights: &WeightSettings, inputs: &Inputs) -> f64 {
    let excess_tokens = (inputs.backlog_tokens - inputs.least_backlog_tokens).max(0.0);
    let excess_blocks = excess_tokens / f64::from(inputs.block_size);
    let requests_ahead = excess_blocks / f64::from(inputs.prompt_blocks.max(1));
    1.0 / (1.0 + weights.overlap_score_credit_decay * requests_ahead)
}

/// Chooses one of `costs`: at temperature 0 the least, equal ones alike, above it by softmax over
/// costs scaled to 0 to 1, which must all be finite. `None` if there is no finite one.
pub(crate) fn choose(costs: &[f64], temperature: f64, random: &mut Random) -> Option<usize> {
    if temperature > 0.0 {
        return draw(costs, temperature, random);
    }
    let (mut min, mut first, mut ties) = (f64::INFINITY, 0, 0);
    for (position, &cost) in costs.iter().enumerate() {
        if cost < min {
            (min, first, ties) = (cost, position, 1);
        } else if cost == min && ties > 0 {
            ties += 1;
        }
    }
    let skipped = random.below(ties);
    match skipped {
        0 => (ties > 0).then_some(first),
        _ => (first..costs.len()).filter(|&position| costs[position] == min).nth(skipped),
    }
}

/// Draws one of `costs`.
fn draw(costs: &[f64], temperature: f64, random: &mut Random) -> Option<usize> {
    let min = costs.iter().copied().min_by(f64::total_cmp)?;
    let max = costs.iter().copied().max_by(f64::total_cmp)?;
    if max == min {
        return Some(random.below(costs.len()));
    }
    let weight = |cost: f64| (-(cost - min) / (max - min) / temperature).exp();
    let total: f64 = costs.iter().copied().map(weight).sum();
    let mut left = random.unit() * total;
    for (position, &cost) in costs.iter().enumerate() {
        left -= weight(cost);
        if left < 0.0 {
            return Some(position);
        }
    }
    // Rounding may leave a rest.
    Some(costs.len() - 1)
}

#[cfg(test)]
mod tests;
