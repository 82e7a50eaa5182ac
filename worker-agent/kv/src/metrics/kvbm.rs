//! The metrics under the names of NVIDIA Dynamo's KV block manager, for dashboards that know these.

use super::{KvMetrics, TierTotals};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shows metrics under Dynamo's names. They are gauges here: our counters end in `_total`, Dynamo's
/// do not.
///
/// Source: `kvbm_*` of Dynamo 1.6.1. Its words for copies: `d2h` device to host, `h2d` host to disk
/// where blocks leave and host to device where they come back, `d2d` between device and disk, `d2o`
/// and `o2d` to and from an object store. Blocks go through host memory here, so what is read from
/// disk or object store counts as onboarded from there, and no block goes from device to disk.
#[derive(Debug)]
pub struct KvbmNames {
    /// The metrics that are shown.
    pub metrics: KvMetrics,
    /// Tokens of a block; 0 as long as it is not known.
    pub block_tokens: Arc<AtomicU32>,
}

impl KvbmNames {
    fn values(&self) -> [(&'static str, &'static str, f64); 15] {
        let hits = self.metrics.hit_totals();
        let disk = self.metrics.tier_totals("disk");
        let object = self.metrics.tier_totals("object");
        let found = hits.host + hits.below;
        let tokens = found * u64::from(self.block_tokens.load(Ordering::Relaxed));
        let rate = |blocks: u64| blocks as f64 / hits.asked.max(1) as f64;
        let count = |blocks: u64| blocks as f64;
        let TierTotals { read, write } = object;
        [
            ("kvbm_matched_tokens", "Prompt tokens found in tiers", count(tokens)),
            ("kvbm_offload_blocks_d2h", "Blocks from device to host", count(hits.filled)),
            ("kvbm_offload_blocks_h2d", "Blocks from host to disk", count(disk.write.done)),
            ("kvbm_offload_blocks_d2d", "Blocks from device to disk", 0.0),
            ("kvbm_offload_blocks_d2o", "Blocks to the object store", count(write.done)),
            ("kvbm_onboard_blocks_h2d", "Blocks from host to device", count(hits.host)),
            ("kvbm_onboard_blocks_d2d", "Blocks from disk", count(disk.read.done)),
            ("kvbm_onboard_blocks_o2d", "Blocks from the object store", count(read.done)),
            ("kvbm_host_cache_hit_rate", "Share of blocks found in host", rate(hits.host)),
            ("kvbm_disk_cache_hit_rate", "Share of blocks read from disk", rate(disk.read.done)),
            ("kvbm_object_cache_hit_rate", "Share of blocks read from objects", rate(read.done)),
            ("kvbm_offload_bytes_object", "Bytes to the object store", count(write.bytes)),
            ("kvbm_onboard_bytes_object", "Bytes from the object store", count(read.bytes)),
            ("kvbm_object_read_failures", "Reads of objects that failed", count(read.failed)),
            ("kvbm_object_write_failures", "Writes of objects that failed", count(write.failed)),
        ]
    }
}

impl Collector for KvbmNames {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in self.values() {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{FilledOutcome, HitPlace, TierOperation, TierWay};
    use crate::tier::TierError;
    use prometheus_client::registry::Registry;
    use std::time::Duration;

    #[test]
    fn dynamos_names_show_what_was_counted() {
        let metrics = KvMetrics::default();
        let mut registry = Registry::default();
        let block_tokens = Arc::new(AtomicU32::new(16));
        let shown = KvbmNames { metrics: metrics.clone(), block_tokens };
        registry.register_collector(Box::new(shown));
        metrics.asked.inc_by(8);
        metrics.hit(HitPlace::host, 2);
        metrics.hit(HitPlace::below, 1);
        metrics.filled(FilledOutcome::registered, 5);
        let took = Duration::from_millis(1);
        let read = TierOperation { tier: "disk", way: TierWay::read, bytes: 4096, took };
        metrics.ended(read, None);
        let write = TierOperation { tier: "object", way: TierWay::write, ..read };
        metrics.ended(write, None);
        metrics.ended(write, Some(TierError::Failed));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kvbm_matched_tokens 48.0",
            "kvbm_offload_blocks_d2h 5.0",
            "kvbm_onboard_blocks_d2d 1.0",
            "kvbm_host_cache_hit_rate 0.25",
            "kvbm_offload_bytes_object 4096.0",
            "kvbm_object_write_failures 1.0",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
