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
    /// Seconds from the wish for a batch to the peer's word that it keeps the blocks, but for its disk.
    latency: Average,
    /// Seconds for which the peer waited for its disk.
    disk: Average,
    /// Seconds for each block from then on.
    per_block: Average,
    measured: Option<Instant>,
}

/// A batch that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct PulledBatch {
    /// Time from the wish for it to the peer's word that it keeps the blocks.
    pub(super) latency: Duration,
    /// Part of the latency in which the peer waited for its disk.
    pub(super) disk: Duration,
    pub(super) blocks: usize,
    /// Time from then on until all blocks were here.
    pub(super) took: Duration,
}

/// Costs of reads from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerCosts {
    /// Cost of blocks that are in the peer's host memory.
    pub(super) link: LoadCost,
    /// Cost of blocks of which as many are on the peer's disk as lately.
    pub(super) all: LoadCost,
}

impl PeerPace {
    /// A batch has come.
    pub(super) fn add(&mut self, batch: PulledBatch, now: Instant) {
        let PulledBatch { latency, disk, blocks, took } = batch;
        // The peer may say what it likes.
        let disk = disk.min(latency);
        self.latency.add((latency - disk).as_secs_f64(), SAMPLES);
        self.disk.add(disk.as_secs_f64(), SAMPLES);
        self.per_block.add(took.as_secs_f64() / blocks.max(1) as f64, SAMPLES);
        self.measured = Some(now);
    }

    /// The costs of a read that begins now behind so many others, and when they were measured last; none
    /// where that was too long ago.
    pub(super) fn cost(&self, waiting: usize, now: Instant) -> Option<(Instant, PeerCosts)> {
        let measured = self.measured.filter(|at| now.saturating_duration_since(*at) < STALE)?;
        let block_s = self.per_block.mean();
        let link_s = self.latency.mean() + block_s * waiting as f64;
        let [link, all] = [link_s, link_s + self.disk.mean()].map(|latency_s| LoadCost {
            latency_us: ((latency_s * 1e6) as u64).min(LoadCost::NEVER_US),
            block_ns: ((block_s * 1e9) as u64).max(1),
        });
        Some((measured, PeerCosts { link, all }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cost_is_a_mean_that_grows_old_and_the_peers_disk_is_told_apart() {
        let ms = Duration::from_millis;
        let mut pace = PeerPace::default();
        let start = Instant::now();
        assert_eq!(pace.cost(0, start), None);
        let batch = PulledBatch { latency: ms(1), disk: ms(0), blocks: 10, took: ms(20) };
        pace.add(batch, start);
        pace.add(PulledBatch { latency: ms(11), disk: ms(8), took: ms(40), ..batch }, start);
        let link = LoadCost { latency_us: 2_000, block_ns: 3_000_000 };
        let all = LoadCost { latency_us: 6_000, ..link };
        assert_eq!(pace.cost(0, start), Some((start, PeerCosts { link, all })));
        let behind = |cost: LoadCost| LoadCost { latency_us: cost.latency_us + 12_000, ..cost };
        let costs = PeerCosts { link: behind(link), all: behind(all) };
        assert_eq!(pace.cost(4, start), Some((start, costs)));
        assert_eq!(pace.cost(0, start + STALE), None);
        // No time is negative, whatever a peer says.
        pace.add(PulledBatch { latency: ms(1), disk: ms(9_000), ..batch }, start);
        assert!(pace.cost(0, start).is_some());
    }
}
