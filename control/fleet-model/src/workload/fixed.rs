//! Requests that are all alike, at random moments.

use super::mix::Poisson;
use super::{ArrivalTime, Workload, WorkloadRequest};
use std::iter;

/// Requests of one length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedWorkload {
    /// Tokens of every prompt, at least 1.
    pub prompt_tokens: u32,
    /// Leading tokens that all prompts share, below `prompt_tokens`; whole blocks of them count.
    pub shared_tokens: u32,
    /// Tokens of every answer, at least 1.
    pub output_tokens: u32,
    /// Requests per second, on average.
    pub rate: f64,
    /// Tokens per block.
    pub block_size: u32,
}

impl Workload {
    /// `count` requests that are all alike, at the moments of a Poisson process.
    pub fn fixed(fixed: FixedWorkload, count: u32, seed: u64) -> Self {
        let FixedWorkload { prompt_tokens, shared_tokens, output_tokens, rate, block_size } = fixed;
        let mut workload = Self::new(block_size);
        let mut arrivals = Poisson::new(seed, rate);
        let shared = shared_tokens / block_size;
        let own = prompt_tokens / block_size - shared;
        for number in 0..count {
            let arrival = ArrivalTime::At(arrivals.next());
            let first = shared + number * own;
            let blocks = iter::chain(0..shared, first..first + own);
            workload.push(WorkloadRequest::new(arrival, prompt_tokens, output_tokens), blocks);
        }
        workload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{SECOND, seconds};

    #[test]
    fn requests_share_the_prefix_alone_and_come_at_the_rate() {
        let fixed = FixedWorkload {
            prompt_tokens: 100,
            shared_tokens: 40,
            output_tokens: 7,
            rate: 5.0,
            block_size: 16,
        };
        let workload = Workload::fixed(fixed, 1_000, 1);
        let blocks = |request| {
            let mut blocks = Vec::new();
            workload.blocks(request, &mut blocks);
            blocks
        };
        assert_eq!(blocks(0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(blocks(1), [0, 1, 6, 7, 8, 9]);
        let Some(ArrivalTime::At(last)) = workload.requests.last().map(|last| last.arrival) else {
            panic!("every request has a moment");
        };
        assert!((150.0..250.0).contains(&seconds(last)), "{}", last / SECOND);
    }
}
