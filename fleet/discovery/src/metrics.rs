//! Metrics of how well the back-end can be followed.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether what is known of the fleet is fresh. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryMetrics {
    stale: Gauge,
    stale_since: Gauge,
    losses: Counter,
}

impl DiscoveryMetrics {
    /// Makes the metrics known to a registry, which carries their prefix.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("discovery");
        registry.register(
            "stale",
            "Whether discovery is out of reach, and the fleet is as it last said",
            self.stale.clone(),
        );
        registry.register(
            "stale_since_seconds",
            "Unix time at which discovery went out of reach; 0 while it answers",
            self.stale_since.clone(),
        );
        registry.register("losses", "Times that discovery went out of reach", self.losses.clone());
    }

    pub(crate) fn set_stale(&self, stale: bool, now: SystemTime) {
        let was = self.stale.set(i64::from(stale)) != 0;
        match (was, stale) {
            (false, true) => {
                self.losses.inc();
                let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                self.stale_since.set(i64::try_from(since).unwrap_or(i64::MAX));
            }
            (true, false) => drop(self.stale_since.set(0)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_loss_is_counted_once_and_its_beginning_stays() {
        let metrics = DiscoveryMetrics::default();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        metrics.set_stale(false, at(1));
        metrics.set_stale(true, at(2));
        metrics.set_stale(true, at(3));
        assert_eq!((metrics.stale.get(), metrics.stale_since.get()), (1, 2));
        metrics.set_stale(false, at(4));
        assert_eq!((metrics.stale.get(), metrics.stale_since.get()), (0, 0));
        metrics.set_stale(true, at(5));
        assert_eq!((metrics.losses.get(), metrics.stale_since.get()), (2, 5));
    }
}
