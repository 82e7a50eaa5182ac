//! Speeds of workers, learnt from the times of their requests.
//!
//! A model of the whole fleet says how times grow with tokens, requests and blocks; each worker has
//! a factor by which it is slower. A worker with few samples is assumed to be like the others, and
//! a straggler is found after a few requests.

mod fit;

use crate::work::Work;
use fit::{Fit, WorkerPace};
use rustc_hash::FxHashMap;

/// Tokens, pairs of them, requests and blocks that count as 1 in the models.
const TOKENS: f64 = 1000.0;
const PAIRS: f64 = 1e7;
const REQUESTS: f64 = 16.0;
const BLOCKS: f64 = 1000.0;
/// Seconds; what took longer was not computed all that time.
const LONGEST_S: f64 = 600.0;
/// Pairs of workers whose transfers are told apart. Beyond them all are forgotten.
const LINKS_MAX: usize = 65_536;
/// Share of the latest in the running means.
const MEAN_SHARE: f64 = 1.0 / 256.0;

/// Speed of one worker or of the whole fleet, as learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Seconds before a request's first token that do not depend on prompts.
    pub prefill_s: f64,
    /// Seconds for each prompt token to be computed, whatever comes before it.
    pub prefill_token_s: f64,
    /// Seconds for each pair of such a token and one that it attends to.
    pub prefill_pair_s: f64,
    /// Seconds of a decode step of nothing.
    pub step_s: f64,
    /// Seconds that each request in flight adds to a step.
    pub step_request_s: f64,
    /// Seconds that each block in use adds to a step.
    pub step_block_s: f64,
}

impl Speed {
    /// Seconds between two tokens of each of `requests` that use `blocks` together.
    pub fn step(&self, requests: f64, blocks: f64) -> f64 {
        self.step_s + self.step_request_s * requests + self.step_block_s * blocks
    }

    /// Seconds until prompts are computed, those before them in the queue included.
    pub(crate) fn prefill(&self, work: Work) -> f64 {
        self.prefill_s + self.work(work)
    }

    /// Seconds that prompts take by themselves.
    pub(crate) fn work(&self, work: Work) -> f64 {
        self.prefill_token_s * work.tokens + self.prefill_pair_s * work.pairs
    }
}

/// A time from the booking of a request to its first token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstToken {
    /// Prompt work ahead of the token: the request's own prompt and the prompts before it.
    pub(crate) work: Work,
    pub(crate) seconds: f64,
}

/// A time between tokens of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// Tokens that came.
    pub(crate) tokens: f64,
    pub(crate) seconds: f64,
    /// Requests in flight at the worker, and blocks that they use.
    pub(crate) requests: f64,
    pub(crate) blocks: f64,
    /// Prompt work that the worker did meanwhile.
    pub(crate) prefilled: Work,
}

#[derive(Clone, Copy, Default)]
struct Paces {
    prefill: WorkerPace,
    decode: WorkerPace,
}

/// All that is learnt.
#[derive(Default)]
pub(crate) struct Learner {
    min_samples: u64,
    prefill: Fit<3>,
    decode: Fit<3>,
    transfer: Fit<2>,
    workers: Vec<Paces>,
    links: FxHashMap<(u32, u32), WorkerPace>,
    output_tokens: Option<f64>,
    /// The last arrival, in seconds since the start, and the mean time between two.
    last_arrival: Option<f64>,
    arrival_gap: Option<f64>,
}

impl Learner {
    /// A learner that says nothing before it has seen `min_samples` of a kind.
    pub(crate) fn new(min_samples: u64) -> Self {
        Self { min_samples, ..Self::default() }
    }

    /// The worker in `slot` is a new one.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(paces) = self.workers.get_mut(slot as usize) {
            *paces = Paces::default();
        }
        self.links.retain(|&(from, to), _| from != slot && to != slot);
    }

    /// Whether times can be told. Times of decoding alone are not enough, nor of prefill alone.
    pub(crate) fn is_ready(&self) -> bool {
        self.knows_prefill() && self.decode.samples() >= self.min_samples
    }

    pub(crate) fn knows_prefill(&self) -> bool {
        self.prefill.samples() >= self.min_samples
    }

    /// Speed of the worker in `slot`; parts with too few samples are 0.
    pub(crate) fn speed(&self, slot: u32) -> Speed {
        self.speed_of(slot, &self.fleet_speed())
    }

    /// Speed of the worker in `slot`, given [`Learner::fleet_speed`].
    pub(crate) fn speed_of(&self, slot: u32, fleet: &Speed) -> Speed {
        let Some(Paces { prefill, decode }) = self.workers.get(slot as usize) else {
            return *fleet;
        };
        let (prefill, decode) = (prefill.factor(), decode.factor());
        Speed {
            prefill_s: fleet.prefill_s * prefill,
            prefill_token_s: fleet.prefill_token_s * prefill,
            prefill_pair_s: fleet.prefill_pair_s * prefill,
            step_s: fleet.step_s * decode,
            step_request_s: fleet.step_request_s * decode,
            step_block_s: fleet.step_block_s * decode,
        }
    }

    /// Speed of a worker without samples: that of the fleet.
    pub(crate) fn fleet_speed(&self) -> Speed {
        let mut speed = Speed::default();
        if self.knows_prefill() {
            let [fixed, tokens, pairs] = self.prefill.coefficients();
            (speed.prefill_s, speed.prefill_token_s) = (fixed, tokens / TOKENS);
            speed.prefill_pair_s = pairs / PAIRS;
        }
        if self.decode.samples() >= self.min_samples {
            let [step, requests, blocks] = self.decode.coefficients();
            speed.step_s = step;
            speed.step_request_s = requests / REQUESTS;
            speed.step_block_s = blocks / BLOCKS;
        }
        speed
    }

    /// Seconds that the transfer of `blocks` takes from one worker to another; `None` before
    /// enough was seen.
    pub(crate) fn transfer(&self, from: u32, to: u32, blocks: f64) -> Option<f64> {
        let seconds = self.transfer.predict([1.0, blocks / BLOCKS]);
        let pace = self.links.get(&(from, to)).map_or(1.0, WorkerPace::factor);
        (self.transfer.samples() >= self.min_samples).then_some(seconds * pace)
    }

    /// Tokens that an answer has on average; `None` if none ended yet.
    pub(crate) fn output_tokens(&self) -> Option<f64> {
        self.output_tokens
    }

    /// Requests that come each second.
    pub(crate) fn arrivals_per_s(&self) -> f64 {
        self.arrival_gap.map_or(0.0, |gap| 1.0 / gap.max(1e-6))
    }

    pub(crate) fn arrived(&mut self, now_s: f64) {
        if let Some(last) = self.last_arrival.replace(now_s) {
            let gap = (now_s - last).clamp(0.0, LONGEST_S);
            mean(&mut self.arrival_gap, gap);
        }
    }

    pub(crate) fn answered(&mut self, tokens: u32) {
        if tokens > 0 {
            mean(&mut self.output_tokens, f64::from(tokens));
        }
    }

    pub(crate) fn first_token(&mut self, slot: u32, seen: FirstToken) {
        // A prompt that was all cached says nothing of the speed.
        if !plausible(seen.seconds) || seen.work.tokens < 1.0 {
            return;
        }
        let features = [1.0, seen.work.tokens / TOKENS, seen.work.pairs / PAIRS];
        let expected = self.prefill.predict(features);
        self.prefill.learn(features, seen.seconds);
        if self.knows_prefill() {
            self.paces(slot).prefill.learn(seen.seconds, expected);
        }
    }

    pub(crate) fn gap(&mut self, slot: u32, seen: Gap) {
        if !plausible(seen.seconds) || seen.tokens < 1.0 {
            return;
        }
        // Steps that computed prompts too took longer by what those cost. At least a tenth is
        // decoding, however wrong that cost is.
        let prefill = self.speed(slot).work(seen.prefilled);
        let seconds = (seen.seconds - prefill).max(seen.seconds / 10.0) / seen.tokens;
        let features = [1.0, seen.requests / REQUESTS, seen.blocks / BLOCKS];
        let expected = self.decode.predict(features);
        self.decode.learn(features, seconds);
        if self.decode.samples() > self.min_samples {
            self.paces(slot).decode.learn(seconds, expected);
        }
    }

    pub(crate) fn transferred(&mut self, from: u32, to: u32, blocks: f64, seconds: f64) {
        if !plausible(seconds) || blocks < 1.0 {
            return;
        }
        let features = [1.0, blocks / BLOCKS];
        let expected = self.transfer.predict(features);
        self.transfer.learn(features, seconds);
        if self.transfer.samples() > self.min_samples {
            if self.links.len() >= LINKS_MAX {
                self.links.clear();
            }
            self.links.entry((from, to)).or_default().learn(seconds, expected);
        }
    }

    fn paces(&mut self, slot: u32) -> &mut Paces {
        let slot = slot as usize;
        if slot >= self.workers.len() {
            self.workers.resize(slot + 1, Paces::default());
        }
        &mut self.workers[slot]
    }
}

fn plausible(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= LONGEST_S
}

fn mean(mean: &mut Option<f64>, value: f64) {
    let known = mean.get_or_insert(value);
    *known += MEAN_SHARE * (value - *known);
}

#[cfg(test)]
mod tests;
