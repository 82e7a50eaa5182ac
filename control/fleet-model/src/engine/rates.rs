//! Step times in whole picoseconds.

use crate::time::{Ps, from_seconds};
use stator_timing::Timing;

/// A [`Timing`] in whole picoseconds: many equal steps at once then take exactly as long as one
/// after the other. Rounding its rates changes them by less than a thousandth for real engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    step: Ps,
    token: Ps,
    prefill_pair: Ps,
    decode_kv_token: Ps,
}

/// The sequences that decode: how many, and the tokens that they have together in the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) sequences: u64,
    pub(crate) context: u64,
}

impl Rates {
    /// The rates of an engine that is `slow` times as slow as `timing` says.
    pub(crate) fn new(timing: &Timing, slow: f64) -> Self {
        let rate = |seconds: f64| from_seconds(seconds * slow);
        Self {
            step: rate(timing.step_s),
            token: rate(timing.token_s),
            prefill_pair: rate(timing.prefill_pair_s),
            decode_kv_token: rate(timing.decode_kv_token_s),
        }
    }

    /// Time that the prompt tokens `start..end` add to a step.
    pub(crate) fn chunk(&self, start: u32, end: u32) -> Ps {
        let (start, end) = (u64::from(start), u64::from(end));
        let tokens = end - start;
        let attention = match tokens {
            1 => self.decode_kv_token * end,
            // Token i attends to i + 1 tokens.
            _ => self.prefill_pair * (tokens * (start + end + 1) / 2),
        };
        self.token * tokens + attention
    }

    /// `steps` steps in a row in which all of the batch decode and nothing else happens: the
    /// context grows by one token per sequence and step.
    pub(crate) fn decode(&self, batch: Batch, steps: u32) -> Ps {
        let steps = u64::from(steps);
        let grown = batch.sequences * (steps * steps.saturating_sub(1) / 2);
        steps * (self.step + self.token * batch.sequences)
            + self.decode_kv_token * (steps * batch.context + grown)
    }

    /// Most steps, up to `most`, that are over after `span`.
    pub(crate) fn steps_within(&self, batch: Batch, span: Ps, most: u32) -> u32 {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.decode(batch, middle) <= span { low = middle } else { high = middle - 1 }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_take_what_the_shared_timing_says() {
        let timing = Timing::preset("h100-llama-8b").expect("a known preset");
        let rates = Rates::new(&timing, 1.0);
        let check = |expected: std::time::Duration, span: Ps| {
            let expected = expected.as_secs_f64() * 1e12;
            assert!((span as f64 / expected - 1.0).abs() < 1e-3, "{span} is not {expected}");
        };
        let batch = Batch { sequences: 2, context: 3_002 };
        check(timing.step([999..1000, 2001..2002]), rates.decode(batch, 1));
        let chunk = rates.decode(Batch::default(), 1) + rates.chunk(512, 4_096);
        check(timing.step(std::iter::once(512..4_096)), chunk);
    }

    proptest! {
        #[test]
        fn many_steps_at_once_take_as_long_as_one_by_one(
            sequences in 1_u64..300, context in 300_u64..1_000_000, steps in 0_u32..2_000,
            slow in 1.0..4.0,
        ) {
            let timing = Timing::preset("a100-llama-8b").expect("a known preset");
            let rates = Rates::new(&timing, slow);
            let start = Batch { sequences, context };
            let mut batch = start;
            let mut sum = 0;
            for _ in 0..steps {
                sum += rates.decode(batch, 1);
                batch.context += sequences;
            }
            prop_assert_eq!(rates.decode(start, steps), sum);
            prop_assert_eq!(rates.steps_within(start, sum, 4_000), steps);
            if steps > 0 {
                prop_assert_eq!(rates.steps_within(start, sum - 1, 4_000), steps - 1);
            }
        }
    }
}
