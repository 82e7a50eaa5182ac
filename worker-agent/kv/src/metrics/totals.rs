//! Totals of the metrics, for those who show them elsewhere than on the metrics page.

use super::{
    FilledLabels, FilledOutcome, HitLabels, HitPlace, KvMetrics, OperationLabels, TierOutcome,
    TierWay, WayLabels,
};

/// Blocks that requests asked for and were given, since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitTotals {
    /// Blocks that requests asked for.
    pub asked: u64,
    /// Blocks asked for that were in host memory.
    pub host: u64,
    /// Blocks asked for that were read from tiers below while the request waited.
    pub below: u64,
    /// Blocks that engines have filled and that were new.
    pub filled: u64,
    /// Blocks in host memory that no longer had their checksum.
    pub corrupt: u64,
}

/// Work of a tier since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierTotals {
    /// Reads.
    pub read: WayTotals,
    /// Writes.
    pub write: WayTotals,
}

/// Reads or writes of a tier since the process began, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayTotals {
    /// Blocks that were moved.
    pub done: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Blocks that were not there, or were forgotten meanwhile.
    pub missing: u64,
    /// Blocks whose bytes were wrong.
    pub corrupt: u64,
    /// Blocks for which too much was queued.
    pub busy: u64,
    /// Blocks for which there was no room.
    pub full: u64,
    /// Blocks for which the device or the store failed.
    pub failed: u64,
}

impl KvMetrics {
    /// Blocks that requests asked for and were given.
    pub fn hit_totals(&self) -> HitTotals {
        let hits = |from| self.hits.get_or_create(&HitLabels { from }).get();
        let outcome = FilledOutcome::registered;
        HitTotals {
            asked: self.asked.get(),
            host: hits(HitPlace::host),
            below: hits(HitPlace::below),
            filled: self.filled.get_or_create(&FilledLabels { outcome }).get(),
            corrupt: self.corrupt.get(),
        }
    }

    /// The work of a tier, by its name in metrics.
    pub fn tier_totals(&self, tier: &'static str) -> TierTotals {
        TierTotals {
            read: self.way_totals(tier, TierWay::read),
            write: self.way_totals(tier, TierWay::write),
        }
    }

    fn way_totals(&self, tier: &'static str, way: TierWay) -> WayTotals {
        let blocks =
            |outcome| self.operations.get_or_create(&OperationLabels { tier, way, outcome }).get();
        WayTotals {
            done: blocks(TierOutcome::done),
            bytes: self.bytes.get_or_create(&WayLabels { tier, way }).get(),
            missing: blocks(TierOutcome::missing),
            corrupt: blocks(TierOutcome::corrupt),
            busy: blocks(TierOutcome::busy),
            full: blocks(TierOutcome::full),
            failed: blocks(TierOutcome::failed),
        }
    }
}
