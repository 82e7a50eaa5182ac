//! How fast an engine computes prompts, which decides what is worth loading.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Tokens of prompts in a step below which its time tells more of other things.
const TOKENS_MIN: u32 = 32;
/// Weight of the last step: one in so many.
const LAST_WEIGHT: u64 = 4;

/// Time that an engine takes for a block of a prompt, measured.
#[derive(Debug)]
pub(super) struct PrefillPace {
    block_size: u32,
    /// Nanoseconds for a token; 0 as long as it is not known.
    token_ns: AtomicU64,
}

impl PrefillPace {
    pub(super) fn new(block_size: u32) -> Self {
        Self { block_size, token_ns: AtomicU64::new(0) }
    }

    /// Takes note of a step. The driver alone calls it.
    pub(super) fn measured(&self, prefill_tokens: u32, time: Duration) {
        if prefill_tokens < TOKENS_MIN {
            return;
        }
        let last = (time.as_nanos() / u128::from(prefill_tokens)).clamp(1, 1 << 40) as u64;
        let known = match self.token_ns.load(Ordering::Relaxed) {
            0 => last,
            known => (known * (LAST_WEIGHT - 1) + last) / LAST_WEIGHT,
        };
        self.token_ns.store(known, Ordering::Relaxed);
    }

    /// Time for one block; zero as long as it is not known.
    pub(super) fn block(&self) -> Duration {
        Duration::from_nanos(self.token_ns.load(Ordering::Relaxed) * u64::from(self.block_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_what_steps_with_long_prompts_took() {
        let pace = PrefillPace::new(16);
        pace.measured(31, Duration::from_secs(9));
        assert_eq!(pace.block(), Duration::ZERO);
        pace.measured(100, Duration::from_micros(100));
        assert_eq!(pace.block(), Duration::from_micros(16));
        pace.measured(100, Duration::from_micros(500));
        assert_eq!(pace.block(), Duration::from_micros(32));
    }
}
