//! Metrics of what clients hold and of how they are turned away.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Reason for which a client was turned away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Refusal {
    /// `limit` for what all clients hold together, `address` and `key` for one's share.
    pub reason: &'static str,
}

/// The phase in which a client was too slow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Lateness {
    /// `handshake`, `head`, `body` or `write`.
    pub phase: &'static str,
}

/// The metrics of a door.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoorMetrics {
    pub connections: Gauge,
    pub connections_refused: Family<Refusal, Counter>,
    pub timeouts: Family<Lateness, Counter>,
    pub requests_refused: Family<Refusal, Counter>,
    pub bodies_held_bytes: Gauge,
    pub bodies_refused: Family<Refusal, Counter>,
    pub accept_errors: Counter,
}

impl DoorMetrics {
    /// Registers all of them under a process's prefix.
    pub(crate) fn register(&self, registry: &mut Registry, prefix: &str) {
        let registry = registry.sub_registry_with_prefix(prefix);
        let help = "Connections of clients, those for probes included";
        registry.register("connections", help, self.connections.clone());
        let help = "Connections that found no place, and got probes answered at most, by reason";
        registry.register("connections_refused", help, self.connections_refused.clone());
        let help = "Clients that took too long, by what was waited for";
        registry.register("client_timeouts", help, self.timeouts.clone());
        let help = "Requests refused because too many ran, by whose limit it was";
        registry.register("requests_refused", help, self.requests_refused.clone());
        let help = "Bytes that are set aside for request bodies";
        registry.register("bodies_held_bytes", help, self.bodies_held_bytes.clone());
        let help = "Requests refused for want of room for their bodies, by whose limit it was";
        registry.register("bodies_refused", help, self.bodies_refused.clone());
        let help = "Times that the system gave no connection, mostly for want of file descriptors";
        registry.register("accept_errors", help, self.accept_errors.clone());
    }

    /// Counts a client that took too long.
    pub(crate) fn late(&self, phase: &'static str) {
        self.timeouts.get_or_create(&Lateness { phase }).inc();
    }
}
