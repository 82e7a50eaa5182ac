//! A cache's part of the gauges, which goes with the cache.

use super::{KvMetrics, MediumLabels};
use crate::store::StoreStatus;
use stator_protos::kv_event::Medium;

/// Blocks that one cache holds, and the state of its store as it was published last.
#[derive(Debug)]
pub(crate) struct HeldBlocks {
    metrics: KvMetrics,
    slots: u32,
    tiers: Vec<&'static str>,
    blocks: [i64; Medium::ALL.len()],
    published: Option<StoreStatus>,
}

impl HeldBlocks {
    /// A cache with so many slots and these tiers, and no blocks yet.
    pub(crate) fn new(metrics: &KvMetrics, slots: u32, tiers: &[&'static str]) -> Self {
        metrics.slots.inc_by(slots.into());
        Self {
            metrics: metrics.clone(),
            slots,
            tiers: tiers.to_vec(),
            blocks: [0; Medium::ALL.len()],
            published: None,
        }
    }

    /// Counts a block that a medium holds from now on.
    pub(crate) fn stored(&mut self, medium: Medium) {
        self.add(medium, 1);
    }

    /// Counts a block that a medium holds no more.
    pub(crate) fn removed(&mut self, medium: Medium) {
        self.add(medium, -1);
    }

    /// Counts that no medium holds any block any more.
    pub(crate) fn clear(&mut self) {
        for medium in Medium::ALL {
            self.add(medium, -self.blocks[medium as usize]);
        }
    }

    /// Publishes the store's state, where it is given.
    pub(crate) fn publish(&mut self, status: Option<StoreStatus>) {
        if status.is_some() {
            let last = std::mem::replace(&mut self.published, status);
            self.metrics.decisions.publish(&self.tiers, last.as_ref(), self.published.as_ref());
        }
    }

    fn add(&mut self, medium: Medium, blocks: i64) {
        self.blocks[medium as usize] += blocks;
        self.metrics.blocks.get_or_create(&labels(medium)).inc_by(blocks);
    }
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        self.clear();
        self.metrics.slots.dec_by(self.slots.into());
        self.metrics.decisions.publish(&self.tiers, self.published.as_ref(), None);
    }
}

fn labels(medium: Medium) -> MediumLabels {
    let medium = match medium {
        Medium::Device => "device",
        Medium::Host => "host",
        Medium::Disk => "disk",
        Medium::Remote => "remote",
    };
    MediumLabels { medium }
}
