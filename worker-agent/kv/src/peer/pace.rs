//! Measured speed of reads from one peer.

use crate::cost::Average;
use stator_protos::load::LoadCost;
use std::time::Duration;
use tokio::time::Instant;

/// Batches over which both times are averaged.
const SAMPLES: f64 = 8.0;
/// Age after which a measurement says nothing any more.
const STALE: Duration = Duration::from_secs(600);

/// Times of the latest batches that came from a peer.
#[derive(Debug, Default)]
pub(super) struct PeerPace {
    /// Seconds from the wish for a batch to the peer's word that it keeps the blocks.
    latency: Average,
    /// Seconds for each block from then on.
    per_block: Average,
    measured: Option<Instant>,
}

impl PeerPace {
    /// A batch of so many blocks was kept after `latency`, and here `took` later.
    pub(super) fn add(&mut self, latency: Duration, blocks: usize, took: Duration, now: Instant) {
        self.latency.add(latency.as_secs_f64(), SAMPLES);
        self.per_block.add(took.as_secs_f64() / blocks.max(1) as f64, SAMPLES);
        self.measured = Some(now);
    }

    /// The cost of a read that begins now behind so many others, and when it was measured last; none
    /// where that was too long ago.
    pub(super) fn cost(&self, waiting: usize, now: Instant) -> Option<(Instant, LoadCost)> {
        let measured = self.measured.filter(|at| now.saturating_duration_since(*at) < STALE)?;
        let block_s = self.per_block.mean();
        let latency_us = (self.latency.mean() + block_s * waiting as f64) * 1e6;
        let latency_us = (latency_us as u64).min(LoadCost::NEVER_US);
        Some((measured, LoadCost { latency_us, block_ns: ((block_s * 1e9) as u64).max(1) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cost_is_a_mean_that_grows_old() {
        let mut pace = PeerPace::default();
        let start = Instant::now();
        assert_eq!(pace.cost(0, start), None);
        pace.add(Duration::from_millis(1), 10, Duration::from_millis(20), start);
        pace.add(Duration::from_millis(3), 10, Duration::from_millis(40), start);
        let cost = LoadCost { latency_us: 2_000, block_ns: 3_000_000 };
        assert_eq!(pace.cost(0, start), Some((start, cost)));
        let behind = LoadCost { latency_us: 14_000, ..cost };
        assert_eq!(pace.cost(4, start), Some((start, behind)));
        assert_eq!(pace.cost(0, start + STALE), None);
    }
}
