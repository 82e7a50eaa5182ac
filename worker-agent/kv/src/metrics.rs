//! The block store's metrics, all of them. Counters end in `_total` where they are rendered.

mod decisions;
mod held;
mod kvbm;
mod totals;

pub use kvbm::KvbmNames;
pub use totals::{HitTotals, TierTotals, WayTotals};

use crate::tier::TierError;
use decisions::DecisionMetrics;
pub(crate) use held::HeldBlocks;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

/// Metrics of a process's block stores. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KvMetrics {
    operations: Family<OperationLabels, Counter>,
    bytes: Family<WayLabels, Counter>,
    seconds: Family<WayLabels, Histogram, fn() -> Histogram>,
    blocks: Family<MediumLabels, Gauge>,
    filled: Family<FilledLabels, Counter>,
    hits: Family<HitLabels, Counter>,
    slots: Gauge,
    decisions: DecisionMetrics,
    /// Blocks that requests asked for.
    pub(crate) asked: Counter,
    /// Blocks that were lent to other agents.
    pub(crate) lent: Counter,
    /// Bytes that were read straight from other agents' host memory.
    pub direct_bytes: Counter,
    device_bytes: Family<DeviceLabels, Counter>,
    /// Blocks in host memory whose KV was no longer what was stored.
    pub(crate) corrupt: Counter,
}

/// Direction of a tier's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
pub(crate) enum TierWay {
    /// From the tier into the arena.
    read,
    /// From the arena into the tier.
    write,
}

/// Result of a tier's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
enum TierOutcome {
    done,
    missing,
    corrupt,
    cancelled,
    busy,
    full,
    failed,
}

/// Fate of a slot that an engine has filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
pub(crate) enum FilledOutcome {
    /// The block is new.
    registered,
    /// The block was there already.
    duplicate,
    /// The engine had not been granted the slot.
    not_granted,
    /// The block's tenant has as many blocks as it may have, and all are in use.
    over_quota,
}

/// Direction of the agent's copies for engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
pub(crate) enum DeviceWay {
    /// From a device into host memory.
    store,
    /// From host memory to a device.
    load,
    /// From one engine's memory to another's on the same device.
    pass,
}

/// Place where a request's blocks were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are label values")]
pub(crate) enum HitPlace {
    /// In host memory, at once.
    host,
    /// In a lower tier, from which they have been read.
    below,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    tier: &'static str,
    way: TierWay,
    outcome: TierOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WayLabels {
    tier: &'static str,
    way: TierWay,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeviceLabels {
    way: DeviceWay,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MediumLabels {
    medium: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FilledLabels {
    outcome: FilledOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HitLabels {
    from: HitPlace,
}

/// A tier's work on one block that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierOperation {
    /// The tier's name in labels.
    pub(crate) tier: &'static str,
    /// Direction.
    pub(crate) way: TierWay,
    /// Bytes of the block.
    pub(crate) bytes: usize,
    /// Time from the order to the report.
    pub(crate) took: Duration,
}

impl Default for KvMetrics {
    fn default() -> Self {
        // 50 us, a block in the page cache, to 3.3 s, after which every request has given up.
        let seconds = || Histogram::new(exponential_buckets(50e-6, 2.0, 17));
        Self {
            operations: Family::default(),
            bytes: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            blocks: Family::default(),
            filled: Family::default(),
            hits: Family::default(),
            slots: Gauge::default(),
            decisions: DecisionMetrics::default(),
            asked: Counter::default(),
            lent: Counter::default(),
            direct_bytes: Counter::default(),
            device_bytes: Family::default(),
            corrupt: Counter::default(),
        }
    }
}

impl KvMetrics {
    /// Makes the metrics known to the process's registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_kv");
        let help = "Blocks read from and written to tiers, by how it ended";
        registry.register("tier_operations", help, self.operations.clone());
        let help = "Bytes read from and written to tiers";
        registry.register_with_unit("tier", help, Unit::Bytes, self.bytes.clone());
        let help = "Time from the order to read or write a block to its end";
        registry.register_with_unit("tier", help, Unit::Seconds, self.seconds.clone());
        registry.register("blocks", "Blocks held, by medium", self.blocks.clone());
        let help = "Slots that engines filled, by what became of them";
        registry.register("filled_slots", help, self.filled.clone());
        registry.register("slots", "Slots of host memory", self.slots.clone());
        registry.register("asked_blocks", "Blocks that requests asked for", self.asked.clone());
        let help = "Blocks that requests were given, by where they were found";
        registry.register("hit_blocks", help, self.hits.clone());
        registry.register("lent_blocks", "Blocks lent to other agents", self.lent.clone());
        let help = "Bytes read straight from other agents' host memory, without their processors";
        registry.register("direct_bytes", help, self.direct_bytes.clone());
        let help = "Bytes that the agent copied between engines' devices and host memory";
        registry.register_with_unit("device", help, Unit::Bytes, self.device_bytes.clone());
        let help = "Blocks in host memory that no longer had their checksum";
        registry.register("corrupt_blocks", help, self.corrupt.clone());
        self.decisions.register(registry);
    }

    /// Counts a tier's work that has ended.
    pub(crate) fn ended(&self, operation: TierOperation, error: Option<TierError>) {
        let TierOperation { tier, way, bytes, took } = operation;
        let outcome = error.map_or(TierOutcome::done, TierOutcome::from);
        self.operations.get_or_create(&OperationLabels { tier, way, outcome }).inc();
        if error.is_none() {
            let labels = WayLabels { tier, way };
            self.bytes.get_or_create(&labels).inc_by(bytes as u64);
            self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }

    /// Counts slots that an engine has filled.
    pub(crate) fn filled(&self, outcome: FilledOutcome, slots: usize) {
        self.filled.get_or_create(&FilledLabels { outcome }).inc_by(slots as u64);
    }

    /// Counts bytes that were copied for an engine.
    pub(crate) fn copied(&self, way: DeviceWay, bytes: u64) {
        self.device_bytes.get_or_create(&DeviceLabels { way }).inc_by(bytes);
    }

    /// Bytes that were copied for engines so far.
    #[cfg(test)]
    pub(crate) fn copied_bytes(&self, way: DeviceWay) -> u64 {
        self.device_bytes.get_or_create(&DeviceLabels { way }).get()
    }

    /// Counts blocks that a request was given.
    pub(crate) fn hit(&self, from: HitPlace, blocks: usize) {
        self.hits.get_or_create(&HitLabels { from }).inc_by(blocks as u64);
    }
}

impl From<TierError> for TierOutcome {
    fn from(error: TierError) -> Self {
        match error {
            TierError::Missing => Self::missing,
            TierError::Corrupt => Self::corrupt,
            TierError::Cancelled => Self::cancelled,
            TierError::Busy => Self::busy,
            TierError::Full => Self::full,
            TierError::Failed => Self::failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::kv_event::Medium;

    #[test]
    fn names_carry_the_prefix_and_units() {
        let metrics = KvMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let took = Duration::from_millis(2);
        let read = TierOperation { tier: "disk", way: TierWay::read, bytes: 4096, took };
        metrics.ended(read, None);
        metrics.ended(TierOperation { way: TierWay::write, ..read }, Some(TierError::Full));
        let mut held = HeldBlocks::new(&metrics, 9, &[]);
        held.stored(Medium::Host);
        held.stored(Medium::Host);
        held.removed(Medium::Host);
        metrics.filled(FilledOutcome::duplicate, 1);
        metrics.hit(HitPlace::below, 3);
        metrics.copied(DeviceWay::load, 64);
        let text = rendered(&registry);
        for line in [
            "stator_kv_tier_operations_total{tier=\"disk\",way=\"read\",outcome=\"done\"} 1",
            "stator_kv_tier_operations_total{tier=\"disk\",way=\"write\",outcome=\"full\"} 1",
            "stator_kv_tier_bytes_total{tier=\"disk\",way=\"read\"} 4096",
            "stator_kv_tier_seconds_count{tier=\"disk\",way=\"read\"} 1",
            "stator_kv_blocks{medium=\"host\"} 1",
            "stator_kv_filled_slots_total{outcome=\"duplicate\"} 1",
            "stator_kv_hit_blocks_total{from=\"below\"} 3",
            "stator_kv_device_bytes_total{way=\"load\"} 64",
            "stator_kv_corrupt_blocks_total 0",
            "stator_kv_slots 9",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("tier_bytes_total{tier=\"disk\",way=\"write\"}"), "{text}");
        drop(held);
        let text = rendered(&registry);
        assert!(text.contains("stator_kv_blocks{medium=\"host\"} 0"), "{text}");
        assert!(text.contains("stator_kv_slots 0"), "{text}");
    }

    fn rendered(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }
}
