//! Cost of running a request on a worker, in milliseconds.

use super::{InvalidWeight, InvalidWeights, Score, Weights};
use crate::learn::Speed;
use std::fmt;
use std::str::FromStr;

/// Unit in which choices are costed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CostModel {
    /// Blocks to compute and blocks in use, by [`Weights`].
    Blocks,
    /// Predicted time, as far as anything is known of it; blocks before.
    Time,
    /// Predicted time once enough was seen of prompts and answers, blocks before.
    #[default]
    Auto,
}

impl CostModel {
    /// Every model, for help texts.
    pub const ALL: [Self; 3] = [Self::Blocks, Self::Time, Self::Auto];

    /// Name in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Time => "time",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No cost model has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown cost model {0:?}: expected one of blocks, time, auto")]
pub struct UnknownCostModel(pub String);

impl FromStr for CostModel {
    type Err = UnknownCostModel;

    fn from_str(name: &str) -> Result<Self, UnknownCostModel> {
        let found = Self::ALL.into_iter().find(|model| model.name() == name);
        found.ok_or_else(|| UnknownCostModel(name.to_owned()))
    }
}

/// A wait for the first token of so many seconds counts twice, one of twice as many three times:
/// without it the sum of all waits is kept low at the expense of a few very long ones. Chosen by
/// simulation, see BENCHMARKS.md: 0.15 s to 0.5 s give nearly the same.
const PATIENCE_S: f64 = 0.25;

/// Of what is computed of prompts, the share that is computed once more because this pushed it out
/// of a worker's memory. Chosen by simulation: 0.3 to 1 give nearly the same, without it fewer
/// prompts meet what is left of them.
const PUSHED_OUT: f64 = 0.5;

/// Weights of the parts of the predicted time. A value of this type is valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeWeights {
    first_token: f64,
    decode: f64,
    others: f64,
}

impl Default for TimeWeights {
    /// All requests' added waiting because of this one: a long wait for a first token counts more,
    /// and a wait while an answer is read a quarter. Chosen by simulation, see BENCHMARKS.md: with
    /// 1 for `decode` first tokens are 3 % later.
    fn default() -> Self {
        Self { first_token: 1.0, decode: 0.25, others: 1.0 }
    }
}

impl TimeWeights {
    /// Weights from 0 to [`Weights::MAX`] of the time to the first token, of the pace of all further
    /// ones, its own and those of running requests, and of the time that others stand still.
    ///
    /// # Errors
    ///
    /// [`InvalidWeights`] names each that is no such number.
    pub fn new(first_token: f64, decode: f64, others: f64) -> Result<Self, InvalidWeights> {
        let limit = Weights::MAX;
        let weights =
            [("time_first_token", first_token), ("time_decode", decode), ("time_others", others)];
        let invalid = weights.into_iter().filter(|(_, value)| !(0.0..=limit).contains(value));
        let invalid: Vec<_> =
            invalid.map(|(name, value)| InvalidWeight { name, value, limit }).collect();
        match invalid.is_empty() {
            true => Ok(Self { first_token, decode, others }),
            false => Err(InvalidWeights(invalid)),
        }
    }
}

/// Predicted latency of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Time to the first token, in milliseconds.
    pub ttft_ms: f64,
    /// Time between tokens, in milliseconds.
    pub itl_ms: f64,
}

/// Inputs to the predicted time of one request on one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeInputs {
    pub(crate) speed: Speed,
    /// Requests in flight at the worker.
    pub(crate) requests: f64,
    /// Blocks that they use.
    pub(crate) blocks: f64,
    /// Blocks that the worker can hold; 0 is unknown.
    pub(crate) total_blocks: f64,
    /// Seconds until it has computed the prompts of all that came before.
    pub(crate) queue_s: f64,
    /// Seconds that it computes the prompt of this one; 0 where another worker does.
    pub(crate) own_s: f64,
    /// Blocks that this one adds.
    pub(crate) new_blocks: f64,
    /// Tokens that its answer is expected to have; 0 where another worker answers.
    pub(crate) output_tokens: f64,
    /// Requests that come to the worker each second.
    pub(crate) arrivals_per_s: f64,
    /// Requests in flight at a worker, on average over the fleet.
    pub(crate) mean_requests: f64,
    /// Seconds until what another worker computed is here.
    pub(crate) transfer_s: f64,
    /// Seconds until what is loaded of the prompt is here. It comes while the request waits for its
    /// turn.
    pub(crate) load_s: f64,
}

/// The cost of one choice: how much longer requests wait because of it.
///
/// - first token: the queue, the prompt, the transfer; and where blocks run out, the wait until
///   requests end that free them: blocks are given back evenly over the time of an answer; more
///   than in proportion where it is long;
/// - decode: the answer's tokens at the pace of a step with this request in it, and the longer
///   steps of running ones while it is answered;
/// - others: running ones stand still while the prompt is computed; those that come before it is
///   computed wait for it; and what is computed pushes out what others would have reused, which
///   makes one wait and those that run beside it.
#[inline]
pub(crate) fn time_score(weights: &TimeWeights, inputs: &TimeInputs) -> (Score, Prediction) {
    let TimeInputs { speed, requests, blocks, new_blocks, output_tokens, .. } = *inputs;
    let answers = output_tokens > 0.0;
    let step = if answers { speed.step(requests + 1.0, blocks + new_blocks) } else { 0.0 };
    let own = inputs.own_s;
    let queue = if own > 0.0 { inputs.queue_s.max(inputs.load_s) } else { 0.0 };
    // Engines keep a block for each that runs, lest it runs out in the middle of an answer.
    let lacking = blocks + new_blocks + requests - inputs.total_blocks;
    let room = match inputs.total_blocks > 0.0 && lacking > 0.0 {
        true => lacking / inputs.total_blocks * output_tokens.max(1.0) * step,
        false => 0.0,
    };
    let ttft = queue + own + inputs.transfer_s + room;
    let added = speed.step_request_s + speed.step_block_s * new_blocks;
    let (stopped, slowed) = match answers {
        true => (requests * own, requests * output_tokens * added),
        false => (0.0, 0.0),
    };
    let kept_waiting = inputs.arrivals_per_s * (queue + own) * own;
    let pushed_out = PUSHED_OUT * own * (1.0 + inputs.mean_requests);
    let parts = [
        weights.first_token * ttft * (1.0 + ttft / PATIENCE_S),
        weights.decode * (output_tokens * step + slowed),
        weights.others * (stopped + kept_waiting + pushed_out),
    ];
    let [prefill, decode, requests] = parts.map(|seconds| (seconds * 1e3).min(f64::MAX));
    let total = (prefill + decode + requests).min(f64::MAX);
    let score = Score { prefill, decode, requests, credit: 0.0, total };
    (score, Prediction { ttft_ms: ttft * 1e3, itl_ms: step * 1e3 })
}

/// Cost of two parts of one wait for the first token, in milliseconds, beyond the cost of each by
/// itself: one long wait counts more than two short ones.
pub(crate) fn joint_wait(weights: &TimeWeights, one_ms: f64, other_ms: f64) -> f64 {
    (weights.first_token * 2.0 * one_ms * other_ms / (PATIENCE_S * 1e3)).min(f64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// A queue of 10 ms; steps of 5 ms, 0.1 ms a request, 1 us a block.
    fn inputs() -> TimeInputs {
        let speed =
            Speed { step_s: 5e-3, step_request_s: 1e-4, step_block_s: 1e-6, ..Speed::default() };
        TimeInputs { speed, queue_s: 0.01, output_tokens: 100.0, ..TimeInputs::default() }
    }

    fn total(inputs: &TimeInputs) -> f64 {
        time_score(&TimeWeights::default(), inputs).0.total
    }

    #[test]
    fn an_idle_worker_costs_the_request_alone() {
        let idle = TimeInputs { own_s: 0.1, new_blocks: 100.0, ..inputs() };
        let (score, seen) = time_score(&TimeWeights::default(), &idle);
        assert!((seen.ttft_ms - 110.0).abs() < 1e-9 && (seen.itl_ms - 5.2).abs() < 1e-9);
        // One wait that counts 1 + 0.11 / 0.25 times, a quarter of the answer, half a prompt again.
        assert!((score.total - (110.0 * 1.44 + 130.0 + 50.0)).abs() < 1e-9);
    }

    #[test]
    fn a_wait_in_two_parts_costs_what_it_costs_in_one() {
        let weights = TimeWeights::default();
        let wait = |own_s: f64| {
            let inputs = TimeInputs { own_s, output_tokens: 0.0, ..inputs() };
            let (score, seen) = time_score(&weights, &inputs);
            (score.prefill, seen.ttft_ms)
        };
        // Each has the 10 ms of its queue.
        let ((whole, _), (one, one_ms), (other, other_ms)) = (wait(0.41), wait(0.1), wait(0.3));
        assert!((one + other + joint_wait(&weights, one_ms, other_ms) - whole).abs() < 1e-6);
    }

    #[test]
    fn what_is_loaded_comes_while_the_request_waits() {
        let asked = TimeInputs { own_s: 0.1, ..inputs() };
        let ttft =
            |load_s| time_score(&TimeWeights::default(), &TimeInputs { load_s, ..asked }).1.ttft_ms;
        assert_eq!(ttft(0.009), ttft(0.0));
        assert!((ttft(0.03) - 130.0).abs() < 1e-9);
    }

    #[test]
    fn running_requests_count_by_what_they_lose() {
        let busy = TimeInputs { requests: 10.0, own_s: 0.1, ..inputs() };
        // 10 requests stand still for 100 ms each.
        let (score, _) = time_score(&TimeWeights::default(), &busy);
        assert!((score.requests - (1000.0 + 50.0)).abs() < 1e-9);
        // They lose 0.1 ms in each of 100 steps, and the answer takes 100 of 6.1 ms.
        assert!((score.decode - 0.25 * (100.0 + 610.0)).abs() < 1e-9);
        // What is pushed out is computed where as many run as anywhere.
        let full = TimeInputs { mean_requests: 9.0, ..busy };
        let more = time_score(&TimeWeights::default(), &full).0.requests - score.requests;
        assert!((more - 450.0).abs() < 1e-9);
        let alone = TimeWeights::new(1.0, 1.0, 0.0).expect("the weights are in range");
        assert_eq!(time_score(&alone, &busy).0.requests, 0.0);
    }

    #[test]
    fn a_full_worker_makes_wait_for_room() {
        let full =
            TimeInputs { blocks: 1000.0, new_blocks: 100.0, total_blocks: 1000.0, ..inputs() };
        let roomy = TimeInputs { total_blocks: 1100.0, ..full };
        assert!(total(&full) > total(&roomy) + 10.0);
        assert_eq!(total(&roomy), total(&TimeInputs { total_blocks: 0.0, ..full }));
    }

    #[test]
    fn names_are_known() {
        for model in CostModel::ALL {
            assert_eq!(model.to_string().parse(), Ok(model));
            assert!(UnknownCostModel(String::new()).to_string().contains(model.name()));
        }
        let wrong = TimeWeights::new(f64::NAN, -1.0, 1.0).expect_err("two are wrong");
        assert_eq!(wrong.0.len(), 2);
    }

    proptest! {
        /// More of anything never costs less, and nothing is not finite.
        #[test]
        fn more_work_never_costs_less(values in vec(0.0..1e7f64, 8), more in 0.0..1e7f64, at in 0usize..8) {
            let of = |values: &[f64]| {
                let each: [f64; 8] = values.try_into().expect("there are eight");
                let [requests, blocks, queue_s, own_s, new_blocks, ..] = each;
                total(&TimeInputs {
                    requests,
                    blocks,
                    queue_s,
                    own_s: own_s + 1.0,
                    new_blocks,
                    total_blocks: 1000.0,
                    output_tokens: each[5] + 1.0,
                    arrivals_per_s: each[6],
                    transfer_s: each[7],
                    ..inputs()
                })
            };
            let mut larger = values.clone();
            larger[at] += more;
            prop_assert!(of(&values).is_finite() && of(&larger) >= of(&values));
        }
    }
}
