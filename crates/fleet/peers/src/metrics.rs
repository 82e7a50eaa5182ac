//! Metrics of what replicas share.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// Counters of a replica among its peers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeersMetrics {
    /// Peers that are heard.
    pub(crate) connected: Gauge,
    /// Peers that hear us.
    pub(crate) listeners: Gauge,
    /// Connections to peers that ended because nothing came.
    pub(crate) silent: Counter,
    /// Connections to this replica itself, or to one that is heard at another address.
    pub(crate) aliases: Counter,
    /// Changed gauges sent.
    pub(crate) gauges_sent: Counter,
    /// Changed gauges received.
    pub(crate) gauges_received: Counter,
    /// Prompts put in peers' queues.
    pub(crate) prefixes_sent: Counter,
    /// Prompts of peers received.
    pub(crate) prefixes_received: Counter,
    /// Prompts that had no room in the outbox.
    pub(crate) outbox_dropped: Counter,
    /// Prompts that a peer was too slow for.
    pub(crate) queue_dropped: Counter,
    /// 1 for the peer that gave the warm start, or for `none`.
    pub(crate) warm_source: Family<[(&'static str, String); 1], Gauge>,
    pub(crate) warm_seconds: Gauge<f64, AtomicU64>,
    pub(crate) warm_blocks: Gauge,
    /// Snapshots given to replicas that started.
    pub(crate) snapshots_given: Counter,
}

impl PeersMetrics {
    /// Makes the metrics known to the process's registry, under `prefix` and `_peers`.
    pub(crate) fn register(&self, registry: &mut Registry, prefix: &str) {
        let registry = registry.sub_registry_with_prefix(format!("{prefix}_peers"));
        let gauges = [
            ("connected", "Peers that are heard", &self.connected),
            ("listeners", "Peers that hear this replica", &self.listeners),
            ("warm_start_blocks", "Blocks that a peer told at the start", &self.warm_blocks),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let counters = [
            ("silent", "Connections ended because a peer fell silent", &self.silent),
            ("aliases", "Connections to oneself, or to a peer heard already", &self.aliases),
            ("gauges_sent", "Changes of in-flight gauges sent", &self.gauges_sent),
            ("gauges_received", "Changes of in-flight gauges received", &self.gauges_received),
            ("prefixes_sent", "Prompts told to peers, once for each", &self.prefixes_sent),
            ("prefixes_received", "Prompts told by peers", &self.prefixes_received),
            ("outbox_dropped", "Prompts not told for want of room", &self.outbox_dropped),
            ("queue_dropped", "Prompts not told to a slow peer", &self.queue_dropped),
            ("snapshots_given", "Starting replicas given a snapshot", &self.snapshots_given),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let help = "Seconds that the warm start took";
        registry.register("warm_start_seconds", help, self.warm_seconds.clone());
        let help = "Which peer gave the warm start, or none";
        registry.register("warm_start_source", help, self.warm_source.clone());
    }
}
