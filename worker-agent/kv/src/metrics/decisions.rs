//! Metrics of stores' decisions and conditions: published from time to time, as differences,
//! because a process may have several stores.

use crate::store::{HostStatus, StoreStats, StoreStatus, TierStats, TierStatus};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of stores' decisions. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct DecisionMetrics {
    waits_cut: Counter,
    not_granted: Counter,
    evicted: Family<EvictionLabels, Counter>,
    decisions: Family<DecisionLabels, Counter>,
    slot_use: Family<SlotUseLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabels {
    /// Whether a tier below holds the block.
    kept_below: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    tier: &'static str,
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotUseLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    tier: &'static str,
    condition: &'static str,
}

impl DecisionMetrics {
    /// Makes the metrics known to the stores' part of a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Waits of requests that ended before all their blocks were there";
        registry.register("waits_cut", help, self.waits_cut.clone());
        let help = "Slots that engines wanted to fill and were not given";
        registry.register("slots_refused", help, self.not_granted.clone());
        let help = "Blocks evicted from host memory";
        registry.register("evicted_blocks", help, self.evicted.clone());
        let help = "Decisions on blocks of tiers";
        registry.register("tier_decisions", help, self.decisions.clone());
        let help = "Slots of host memory by their use";
        registry.register("slot_use", help, self.slot_use.clone());
        let help = "Whether a tier is off, left alone after failures, not written to, or stalled";
        registry.register("tier_condition", help, self.conditions.clone());
    }

    /// Adds what has changed in one store, which appears with no `last` and goes with no `now`.
    pub(super) fn publish(
        &self,
        tiers: &[&'static str],
        last: Option<&StoreStatus>,
        now: Option<&StoreStatus>,
    ) {
        let host = |status: Option<&StoreStatus>| status.map_or([0; 6], |of| slots(&of.host));
        let uses = ["limit", "used", "granted", "pinned", "kept", "client_pins"];
        for (state, change) in uses.into_iter().zip(changes(host(last), host(now))) {
            self.slot_use.get_or_create(&SlotUseLabels { state }).inc_by(change);
        }
        for (at, tier) in tiers.iter().enumerate() {
            let of = |status: Option<&StoreStatus>| {
                status.and_then(|of| of.tiers.get(at)).map_or([0; 4], conditions)
            };
            let names = ["off", "left_alone", "writes_paused", "stalled"];
            for (condition, change) in names.into_iter().zip(changes(of(last), of(now))) {
                let labels = ConditionLabels { tier, condition };
                self.conditions.get_or_create(&labels).inc_by(change);
            }
        }
        // Counts stay when a store goes.
        if let Some(now) = now {
            self.count(tiers, last, now);
        }
    }

    fn count(&self, tiers: &[&'static str], last: Option<&StoreStatus>, now: &StoreStatus) {
        let stats = |of: Option<&StoreStats>| {
            of.map_or([0; 4], |of| {
                let kept = of.evictions - of.evictions_for_good;
                [of.waits_cut, of.not_granted, kept, of.evictions_for_good]
            })
        };
        let evicted =
            |kept_below| self.evicted.get_or_create(&EvictionLabels { kept_below }).clone();
        let counters =
            [self.waits_cut.clone(), self.not_granted.clone(), evicted("true"), evicted("false")];
        let grown = grown(stats(last.map(|of| &of.stats)), stats(Some(&now.stats)));
        for (counter, grown) in counters.into_iter().zip(grown) {
            counter.inc_by(grown);
        }
        for ((at, tier), status) in tiers.iter().enumerate().zip(&now.tiers) {
            let last = last.and_then(|of| of.tiers.get(at)).map(|of| &of.stats);
            let grown = grown_tier(last, &status.stats);
            for (decision, grown) in grown {
                self.decisions.get_or_create(&DecisionLabels { tier, decision }).inc_by(grown);
            }
        }
    }
}

fn slots(host: &HostStatus) -> [i64; 6] {
    let HostStatus { limit, used, granted, pinned, kept, client_pins, .. } = *host;
    [limit, used, granted, pinned, kept, client_pins].map(|slots| slots as i64)
}

fn conditions(tier: &TierStatus) -> [i64; 4] {
    let TierStatus { is_off, left_alone, writes_paused, is_stalled, .. } = tier;
    [*is_off, !left_alone.is_zero(), !writes_paused.is_zero(), *is_stalled].map(i64::from)
}

fn grown_tier(last: Option<&TierStats>, now: &TierStats) -> [(&'static str, u64); 7] {
    let none = TierStats::default();
    let counts = |of: &TierStats| {
        let read = [of.demanded, of.prefetched, of.refused_by_cost, of.refused_by_load];
        let [demanded, prefetched, by_cost, by_load] = read;
        [demanded, prefetched, by_cost, by_load, of.not_written, of.gone, of.breaks]
    };
    let names = [
        "demanded",
        "prefetched",
        "refused_by_cost",
        "refused_by_load",
        "not_written",
        "gone",
        "left_alone",
    ];
    let grown = grown(counts(last.unwrap_or(&none)), counts(now));
    std::array::from_fn(|at| (names[at], grown[at]))
}

fn changes<const N: usize>(last: [i64; N], now: [i64; N]) -> [i64; N] {
    std::array::from_fn(|at| now[at] - last[at])
}

fn grown<const N: usize>(last: [u64; N], now: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| now[at].saturating_sub(last[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{BlockStore, StoreSettings, TierId, TierSettings};
    use stator_protos::kv_event::Medium;
    use std::time::Duration;

    #[test]
    fn gauges_go_with_their_store_and_counts_stay() {
        let disk = TierSettings::new(Medium::Disk);
        let mut store = BlockStore::new(StoreSettings::new(4, 4096, vec![disk]));
        let owner = store.connect();
        let before = store.status(Duration::ZERO);
        store.grant(owner, 9, Duration::ZERO);
        store.set_tier_on(TierId(0), false);
        let after = store.status(Duration::ZERO);
        let metrics = DecisionMetrics::default();
        metrics.publish(&["disk"], None, Some(&before));
        metrics.publish(&["disk"], Some(&before), Some(&after));
        let used = || metrics.slot_use.get_or_create(&SlotUseLabels { state: "used" }).get();
        let off = ConditionLabels { tier: "disk", condition: "off" };
        let off = || metrics.conditions.get_or_create(&off).get();
        assert_eq!((used(), off(), metrics.not_granted.get()), (1, 1, 8));
        metrics.publish(&["disk"], Some(&after), None);
        assert_eq!((used(), off(), metrics.not_granted.get()), (0, 0, 8));
    }
}
