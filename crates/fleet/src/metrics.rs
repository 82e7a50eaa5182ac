//! Metrics of what the proxy knows of the fleet.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stator_discovery::DiscoveryMetrics;

/// Counters of discovery and the event plane. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FleetMetrics {
    /// Whether discovery answers.
    pub(super) discovery: DiscoveryMetrics,
    /// Agents that are followed.
    pub agents: Gauge,
    /// Followed agents whose leases have ended.
    pub agents_suspect: Gauge,
    /// Records that could not be understood or contradicted others.
    pub records_refused: Counter,
    /// Messages of the event plane that could not be read.
    pub(super) messages_malformed: Counter,
    /// Events of an unknown kind.
    pub(super) events_skipped: Counter,
    /// Event batches applied.
    pub(super) batches: Counter,
    /// Replays asked for because numbers were missing.
    pub(super) replays: Counter,
    /// Replays that failed.
    pub(super) replays_failed: Counter,
    /// Snapshots asked for.
    pub(super) snapshots: Counter,
    /// Snapshots that failed.
    pub(super) snapshots_failed: Counter,
}

impl FleetMetrics {
    /// Makes the metrics known to the process's registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("stator_fleet");
        self.discovery.register(registry);
        registry.register("agents", "Agents that are followed", self.agents.clone());
        registry.register(
            "agents_suspect",
            "Agents whose leases have ended and that answer: used where no other is",
            self.agents_suspect.clone(),
        );
        let counters = [
            ("records_refused", "Discovery records that were refused", &self.records_refused),
            ("messages_malformed", "Event plane messages not read", &self.messages_malformed),
            ("events_skipped", "KV events of an unknown kind", &self.events_skipped),
            ("batches", "KV event batches applied", &self.batches),
            ("replays", "Replays asked for", &self.replays),
            ("replays_failed", "Replays that failed", &self.replays_failed),
            ("snapshots", "Snapshots asked for", &self.snapshots),
            ("snapshots_failed", "Snapshots that failed", &self.snapshots_failed),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }
}
