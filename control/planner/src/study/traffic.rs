//! Requests of the study: recorded ones, and rates that change as a formula says.

use stator_fleet_model::time::{from_seconds, seconds};
use stator_fleet_model::{ArrivalTime, Workload, WorkloadRequest};
use stator_placement::Random;

/// Tokens of a block.
pub(super) const BLOCK_TOKENS: u32 = 128;

/// Rate and lengths of requests at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Requests a second.
    pub rate: f64,
    /// Tokens of a prompt.
    pub prompt_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
}

/// Requests at random moments of a rate that changes, for so many seconds. `rate_max` is never
/// passed.
pub fn varying(span_s: f64, rate_max: f64, seed: u64, of: impl Fn(f64) -> Moment) -> Workload {
    let mut random = Random::new(seed);
    let mut workload = Workload::new(BLOCK_TOKENS);
    let (mut at_s, mut block) = (0.0, 0);
    loop {
        at_s -= (1.0 - random.unit()).ln() / rate_max;
        if at_s >= span_s {
            return workload;
        }
        let moment = of(at_s);
        // Thinning makes a Poisson process of the largest rate one of the present rate.
        if random.unit() * rate_max >= moment.rate {
            continue;
        }
        let arrival = ArrivalTime::At(from_seconds(at_s));
        let request = WorkloadRequest::new(arrival, moment.prompt_tokens, moment.output_tokens);
        let blocks = moment.prompt_tokens / BLOCK_TOKENS;
        workload.push(request, block..block + blocks);
        block += blocks;
    }
}

/// A rate between `low` and `high` that comes back after `period_s` seconds, lowest at the start.
pub fn sine(at_s: f64, low: f64, high: f64, period_s: f64) -> f64 {
    let wave = (1.0 - (at_s / period_s * std::f64::consts::TAU).cos()) / 2.0;
    low + (high - low) * wave
}

/// Each request so many times, each copy up to `spread_s` seconds later: a trace as of a larger
/// service. Copies share no prefix.
pub fn thickened(workload: &Workload, copies: u32, spread_s: f64, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let mut requests: Vec<(f64, WorkloadRequest)> = Vec::new();
    for request in &workload.requests {
        let ArrivalTime::At(at) = request.arrival else { continue };
        for _ in 0..copies {
            requests.push((seconds(at) + spread_s * random.unit(), *request));
        }
    }
    requests.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut thick = Workload::new(BLOCK_TOKENS);
    let mut block = 0;
    for (at_s, request) in requests {
        let arrival = ArrivalTime::At(from_seconds(at_s));
        let request = WorkloadRequest::new(arrival, request.prompt_tokens, request.output_tokens);
        let blocks = request.prompt_tokens / BLOCK_TOKENS;
        thick.push(request, block..block + blocks);
        block += blocks;
    }
    thick
}
